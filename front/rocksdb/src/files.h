// Open files of tiers as RocksDB sees them.
#pragma once

#include <archipelago_rocksdb.h>

#include <memory>
#include <string>

namespace archipelago {

// The failure of the library's last call in this thread, about `path`.
rocksdb::IOStatus LastError(const std::string& path);

rocksdb::IOStatus OpenSequential(const std::shared_ptr<Tiers>& tiers, const std::string& path,
                                 const rocksdb::FileOptions& options,
                                 std::unique_ptr<rocksdb::FSSequentialFile>* result);

rocksdb::IOStatus OpenRandom(const std::shared_ptr<Tiers>& tiers, const std::string& path,
                             const rocksdb::FileOptions& options,
                             std::unique_ptr<rocksdb::FSRandomAccessFile>* result);

// `told` outlives the file: it is that of the file system, which RocksDB keeps as long as its files.
rocksdb::IOStatus OpenWritable(const std::shared_ptr<Tiers>& tiers, Told* told, const std::string& path,
                               const rocksdb::FileOptions& options,
                               std::unique_ptr<rocksdb::FSWritableFile>* result);

}  // namespace archipelago
