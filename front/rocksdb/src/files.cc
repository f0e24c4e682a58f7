#include "files.h"

#include <errno.h>
#include <fcntl.h>

#include "job.h"

namespace archipelago {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

// An open file of the C library, which the destructor closes.
class Handle {
 public:
  Handle(std::shared_ptr<Tiers> tiers, std::string path) : tiers_(std::move(tiers)), path_(std::move(path)) {}
  ~Handle() { (void)Close(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  IOStatus Open(int flags, const archipelago_context& context) {
    number_ = archipelago_open(tiers_->handle(), path_.c_str(), flags, &context);
    return number_ < 0 ? LastError(path_) : IOStatus::OK();
  }

  IOStatus Close() {
    const int number = number_;
    number_ = -1;
    return number >= 0 && archipelago_close(number) < 0 ? LastError(path_) : IOStatus::OK();
  }

  // The caller needs the bytes that were read no longer.
  IOStatus Forget(size_t offset, size_t length) const {
    const int done = archipelago_fadvise(number_, offset, length, ARCHIPELAGO_WONT_NEED);
    return done < 0 ? LastError(path_) : IOStatus::OK();
  }

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }
  const std::string& path() const { return path_; }

 private:
  const std::shared_ptr<Tiers> tiers_;
  const std::string path_;
  int number_ = -1;
};

archipelago_context ReadContext(const std::string& path) {
  archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
  switch (WhatIs(path)) {
    case NameSays::kLog:
      context.file_class = ARCHIPELAGO_CLASS_LOG;
      context.reason = ARCHIPELAGO_FOR_RECOVERY;
      break;
    case NameSays::kTable:
      context.file_class = ARCHIPELAGO_CLASS_TABLE;
      context.reason = ARCHIPELAGO_FOR_READ;
      break;
    case NameSays::kBlob:
      context.file_class = ARCHIPELAGO_CLASS_VALUES;
      context.reason = ARCHIPELAGO_FOR_READ;
      break;
    case NameSays::kManifest:
      context.file_class = ARCHIPELAGO_CLASS_MANIFEST;
      context.reason = ARCHIPELAGO_FOR_RECOVERY;
      break;
    case NameSays::kOther:
      break;
  }
  return context;
}

// With use_mmap_reads RocksDB may pass no buffer, and may keep the returned memory as long as the file is open.
IOStatus NotMapped(const std::string& path, const FileOptions& options) {
  if (!options.use_mmap_reads) return IOStatus::OK();
  return IOStatus::NotSupported(path, "files of tiers cannot be mapped by RocksDB: leave allow_mmap_reads off");
}

class SequentialFile : public rocksdb::FSSequentialFile {
 public:
  SequentialFile(const std::shared_ptr<Tiers>& tiers, const std::string& path) : handle_(tiers, path) {}

  IOStatus Open(int flags) { return handle_.Open(flags, ReadContext(handle_.path())); }

  IOStatus Read(size_t n, const IOOptions&, Slice* result, char* scratch, IODebugContext*) override {
    const int64_t got = archipelago_read(handle_.number(), scratch, n);
    *result = Slice(scratch, got < 0 ? 0 : static_cast<size_t>(got));
    return got < 0 ? LastError(handle_.path()) : IOStatus::OK();
  }

  IOStatus Skip(uint64_t n) override {
    const bool fits = n <= static_cast<uint64_t>(INT64_MAX);
    if (fits && archipelago_lseek(handle_.number(), static_cast<int64_t>(n), 1) >= 0) return IOStatus::OK();
    return fits ? LastError(handle_.path()) : IOStatus::InvalidArgument(handle_.path(), "skips too far");
  }

  IOStatus InvalidateCache(size_t offset, size_t length) override { return handle_.Forget(offset, length); }

 private:
  Handle handle_;
};

class RandomFile : public rocksdb::FSRandomAccessFile {
 public:
  RandomFile(const std::shared_ptr<Tiers>& tiers, const std::string& path) : handle_(tiers, path) {}

  IOStatus Open(int flags) { return handle_.Open(flags, ReadContext(handle_.path())); }

  IOStatus Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    const int64_t got = archipelago_pread(handle_.number(), scratch, n, offset);
    *result = Slice(scratch, got < 0 ? 0 : static_cast<size_t>(got));
    return got < 0 ? LastError(handle_.path()) : IOStatus::OK();
  }

  // Returns NotSupported if reads are direct. RocksDB then reads ahead into its own memory.
  IOStatus Prefetch(uint64_t offset, size_t n, const IOOptions&, IODebugContext*) override {
    // A length of 0 would mean the whole file.
    if (n == 0) return IOStatus::OK();
    const int done = archipelago_fadvise(handle_.number(), offset, n, ARCHIPELAGO_WILL_NEED);
    return done == 0 ? IOStatus::OK() : LastError(handle_.path());
  }

  IOStatus InvalidateCache(size_t offset, size_t length) override { return handle_.Forget(offset, length); }

 private:
  Handle handle_;
};

// A file that RocksDB writes. A table is created with its first byte, because RocksDB tells its priority and its
// lifetime hint only after NewWritableFile. Without a listener these hints decide the device.
class WritableFile : public rocksdb::FSWritableFile {
 public:
  WritableFile(const std::shared_ptr<Tiers>& tiers, Told* told, const std::string& path, const FileOptions& options)
      : FSWritableFile(options), handle_(tiers, path), told_(told) {
    flags_ = O_WRONLY | O_CREAT | O_TRUNC | (options.use_direct_writes ? O_DIRECT : 0);
  }

  ~WritableFile() override = default;

  IOStatus Open() {
    archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
    context.reason = ARCHIPELAGO_FOR_WRITE;
    switch (WhatIs(handle_.path())) {
      case NameSays::kTable:
        NoteJob();
        return IOStatus::OK();
      case NameSays::kBlob:
        // The blob files that a compaction writes hold what its garbage collection relocates.
        context.file_class = ARCHIPELAGO_CLASS_VALUES;
        context.reason = ThisJob().compacting ? ARCHIPELAGO_FOR_GARBAGE : ARCHIPELAGO_FOR_FLUSH;
        break;
      case NameSays::kLog:
        context.file_class = ARCHIPELAGO_CLASS_LOG;
        told_->logs++;
        break;
      case NameSays::kManifest:
        context.file_class = ARCHIPELAGO_CLASS_MANIFEST;
        break;
      case NameSays::kOther:
        break;
    }
    return handle_.Open(flags_, context);
  }

  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    const IOStatus made = Make();
    if (!made.ok()) return made;
    if (archipelago_write(handle_.number(), data.data(), data.size()) < 0) return LastError(handle_.path());
    size_ += data.size();
    return IOStatus::OK();
  }

  using FSWritableFile::Append;
  using FSWritableFile::PositionedAppend;

  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions&, IODebugContext*) override {
    const IOStatus made = Make();
    if (!made.ok()) return made;
    if (archipelago_pwrite(handle_.number(), data.data(), data.size(), offset) < 0) return LastError(handle_.path());
    size_ += data.size();
    return IOStatus::OK();
  }

  // No bytes beyond the end were written, so nothing has to be cut off.
  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override {
    if (size == size_) return IOStatus::OK();
    return IOStatus::NotSupported(handle_.path(), "files of tiers are written once");
  }

  IOStatus Close(const IOOptions&, IODebugContext*) override {
    if (closed_) return IOStatus::OK();
    const IOStatus made = Make();
    closed_ = true;
    return made.ok() ? handle_.Close() : made;
  }

  // An append has reached the operating system when it returns.
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return Make(); }

  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    const IOStatus made = Make();
    if (!made.ok()) return made;
    return archipelago_fsync(handle_.number()) < 0 ? LastError(handle_.path()) : IOStatus::OK();
  }

  bool IsSyncThreadSafe() const override { return true; }

  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return size_; }

 private:
  // The job of the thread, which applies to the table that it has announced.
  void NoteJob() {
    const Job& job = ThisJob();
    if (job.table != handle_.path()) return;
    facts_.from_listener = true;
    facts_.family = job.family;
    facts_.is_compaction = job.reason == rocksdb::TableFileCreationReason::kCompaction;
    if (!facts_.is_compaction) {
      const bool flushed = job.reason == rocksdb::TableFileCreationReason::kFlush ||
                           job.reason == rocksdb::TableFileCreationReason::kRecovery;
      facts_.to_level = flushed ? 0 : -1;
    } else if (job.compacting) {
      facts_.from_level = job.from_level;
      facts_.to_level = job.to_level;
    }
  }

  IOStatus Make() {
    if (handle_.is_open()) return IOStatus::OK();
    if (closed_) return IOStatus::IOError(handle_.path(), "is closed");
    archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
    facts_.priority = io_priority_;
    facts_.life_time = write_hint_;
    told_->tables[static_cast<size_t>(Decide(facts_, &context))]++;
    return handle_.Open(flags_, context);
  }

  Handle handle_;
  Told* const told_;
  int flags_;
  TableFacts facts_;
  std::atomic<uint64_t> size_{0};
  bool closed_ = false;
};

}  // namespace

IOStatus OpenSequential(const std::shared_ptr<Tiers>& tiers, const std::string& path, const FileOptions& options,
                        std::unique_ptr<rocksdb::FSSequentialFile>* result) {
  auto file = std::make_unique<SequentialFile>(tiers, path);
  const IOStatus opened = file->Open(O_RDONLY | (options.use_direct_reads ? O_DIRECT : 0));
  if (opened.ok()) *result = std::move(file);
  return opened;
}

IOStatus OpenRandom(const std::shared_ptr<Tiers>& tiers, const std::string& path, const FileOptions& options,
                    std::unique_ptr<rocksdb::FSRandomAccessFile>* result) {
  const IOStatus possible = NotMapped(path, options);
  if (!possible.ok()) return possible;
  auto file = std::make_unique<RandomFile>(tiers, path);
  const IOStatus opened = file->Open(O_RDONLY | (options.use_direct_reads ? O_DIRECT : 0));
  if (opened.ok()) *result = std::move(file);
  return opened;
}

IOStatus OpenWritable(const std::shared_ptr<Tiers>& tiers, Told* told, const std::string& path,
                      const FileOptions& options, std::unique_ptr<rocksdb::FSWritableFile>* result) {
  auto file = std::make_unique<WritableFile>(tiers, told, path, options);
  const IOStatus opened = file->Open();
  if (opened.ok()) *result = std::move(file);
  return opened;
}

}  // namespace archipelago
