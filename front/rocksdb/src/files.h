// Open files of tiers, in the interfaces of RocksDB.
#pragma once

#include <archipelago_rocksdb.h>

#include <memory>
#include <string>

namespace archipelago {

// The status for the last failed call of the C library in this thread, with the path `path`.
rocksdb::IOStatus LastError(const std::string& path);

rocksdb::IOStatus OpenSequential(const std::shared_ptr<Tiers>& tiers, const std::string& path,
                                 const rocksdb::FileOptions& options,
                                 std::unique_ptr<rocksdb::FSSequentialFile>* result);

rocksdb::IOStatus OpenRandom(const std::shared_ptr<Tiers>& tiers, const std::string& path,
                             const rocksdb::FileOptions& options,
                             std::unique_ptr<rocksdb::FSRandomAccessFile>* result);

// `told` belongs to the file system, which RocksDB keeps as long as its files. So it outlives the file.
rocksdb::IOStatus OpenWritable(const std::shared_ptr<Tiers>& tiers, Told* told, const std::string& path,
                               const rocksdb::FileOptions& options,
                               std::unique_ptr<rocksdb::FSWritableFile>* result);

}  // namespace archipelago
