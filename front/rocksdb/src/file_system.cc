// FileSystem of RocksDB over the C library: names, directories and locks. files.cc has the open files.

#include <errno.h>
#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/utilities/object_registry.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "files.h"
#include "job.h"

namespace archipelago {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Status;

IOStatus LastError(const std::string& path) {
  const int number = errno;
  const std::string why = archipelago_last_error();
  switch (number) {
    case ENOENT:
      return IOStatus::PathNotFound(path, why);
    case ENOSPC:
    case EDQUOT:
      return IOStatus::NoSpace(path, why);
    case EOPNOTSUPP:
      return IOStatus::NotSupported(path, why);
    case EBUSY:
      return IOStatus::Busy(path, why);
    case EINVAL:
      return IOStatus::InvalidArgument(path, why);
    case EBADMSG:
      return IOStatus::Corruption(path, why);
    default:
      return IOStatus::IOError(path, why);
  }
}

namespace {

IOStatus Done(int outcome, const std::string& path) { return outcome < 0 ? LastError(path) : IOStatus::OK(); }

class TierLock : public rocksdb::FileLock {
 public:
  TierLock(std::shared_ptr<Tiers> tiers, int handle) : tiers_(std::move(tiers)), handle_(handle) {}
  ~TierLock() override { (void)archipelago_unlock(handle_); }

 private:
  const std::shared_ptr<Tiers> tiers_;
  const int handle_;
};

class TierDirectory : public rocksdb::FSDirectory {
 public:
  TierDirectory(std::shared_ptr<Tiers> tiers, std::string path) : tiers_(std::move(tiers)), path_(std::move(path)) {}

  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return Done(archipelago_fsync_dir(tiers_->handle(), path_.c_str()), path_);
  }

  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  const std::shared_ptr<Tiers> tiers_;
  const std::string path_;
};

// The path without redundant parts: "a//b/./" becomes "a/b".
std::string Plain(const std::string& path) {
  std::string plain = path.rfind('/', 0) == 0 ? "/" : "";
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '/');) {
    if (part.empty() || part == ".") continue;
    if (!plain.empty() && plain.back() != '/') plain += '/';
    plain += part;
  }
  return plain;
}

IOStatus Crosses(const std::string& from, const std::string& to) {
  return IOStatus::NotSupported(from, "does not lie on the same side of the tiers as " + to);
}

}  // namespace

Tiers::~Tiers() { (void)archipelago_tiers_close(handle_); }

TierFileSystem::TierFileSystem(std::shared_ptr<Tiers> tiers, std::string root,
                               const std::shared_ptr<rocksdb::FileSystem>& base)
    : FileSystemWrapper(base), tiers_(std::move(tiers)), root_(std::move(root)) {}

Status TierFileSystem::Open(const std::string& settings, const archipelago_options& options,
                            const std::shared_ptr<rocksdb::FileSystem>& base,
                            std::shared_ptr<TierFileSystem>* result) {
  if (archipelago_abi() != ARCHIPELAGO_ABI) {
    return Status::NotSupported("libarchipelago_tiers is of another version", archipelago_version());
  }
  const std::string root = options.root == nullptr ? kDefaultRoot() : options.root;
  const int handle = archipelago_tiers_open_file(settings.c_str(), &options);
  if (handle < 0) return LastError(settings);
  auto tiers = std::make_shared<Tiers>(handle);
  *result = std::make_shared<TierFileSystem>(tiers, root, base ? base : rocksdb::FileSystem::Default());
  return Status::OK();
}

bool TierFileSystem::Owns(const std::string& path) const {
  return path.compare(0, root_.size(), root_) == 0 &&
         (path.size() == root_.size() || path[root_.size()] == '/' || root_.back() == '/');
}

Status TierFileSystem::SetLevel(const std::string& path, int level) {
  if (!Owns(path)) return Status::InvalidArgument(path, "does not lie in the tiers");
  return Done(archipelago_set_level(tiers_->handle(), path.c_str(), level), path);
}

int TierFileSystem::TellLevels(rocksdb::DB* db) {
  const std::lock_guard<std::mutex> lock(levels_);
  return TellLevelsLocked(db);
}

Status TierFileSystem::Moved(rocksdb::DB* db, const std::string& path, int level, const archipelago_context* job) {
  if (!Owns(path)) return Status::InvalidArgument(path, "does not lie in the tiers");
  const std::lock_guard<std::mutex> lock(levels_);
  archipelago_stat_t stat;
  if (archipelago_stat(tiers_->handle(), path.c_str(), &stat) < 0) return Done(-1, path);
  if (stat.level == level) return Status::OK();
  if (stat.level < level && job == nullptr) return SetLevel(path, level);
  if (stat.level < level) {
    archipelago_context context = *job;
    // A table on a level other than that of the job does not show which level L0 compacts into.
    if (level != job->level) context.reason = ARCHIPELAGO_FOR_MAINTENANCE;
    context.level = level;
    return Done(archipelago_reassign(tiers_->handle(), path.c_str(), &context), path);
  }
  return TellLevelsLocked(db) < 0 ? Status::IOError(path, "its level could not be told") : Status::OK();
}

int TierFileSystem::TellLevelsLocked(rocksdb::DB* db) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  int told = 0;
  bool failed = false;
  // L0 compacts into the first level of each family below L0. Deeper levels are counted from that level.
  std::sort(files.begin(), files.end(), [](const auto& one, const auto& other) { return one.level < other.level; });
  std::map<std::string, int> bases;
  for (const auto& file : files) {
    if (file.level > 0) bases.emplace(file.column_family_name, file.level);
    const std::string path = file.db_path + file.name;
    archipelago_stat_t stat;
    if (!Owns(path)) continue;
    Status status = Done(archipelago_stat(tiers_->handle(), path.c_str(), &stat), path);
    if (status.ok() && stat.level != file.level) {
      archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
      context.file_class = ARCHIPELAGO_CLASS_TABLE;
      const bool is_base = file.level > 0 && file.level == bases[file.column_family_name];
      context.reason = is_base ? ARCHIPELAGO_FOR_COMPACTION : ARCHIPELAGO_FOR_MAINTENANCE;
      context.from_level = is_base ? 0 : -1;
      context.level = file.level;
      context.family = FamilyOf(db->GetName(), file.column_family_name);
      status = Done(archipelago_reassign(tiers_->handle(), path.c_str(), &context), path);
      told += status.ok();
    }
    // A compaction may have removed the table since the database was asked.
    failed |= !status.ok() && !status.IsPathNotFound();
  }
  return failed ? -1 : told;
}

std::string TierFileSystem::Report() const {
  const int64_t length = archipelago_stats(tiers_->handle(), nullptr, 0);
  if (length < 0) return archipelago_last_error();
  // The second text may have another length than the first. What a longer text has more is cut off.
  std::string text(static_cast<size_t>(length) + 1, '\0');
  const int64_t written = archipelago_stats(tiers_->handle(), text.data(), text.size());
  if (written < 0) return archipelago_last_error();
  text.resize(static_cast<size_t>(std::min(written, length)));
  return text;
}

IOStatus TierFileSystem::NewSequentialFile(const std::string& path, const FileOptions& options,
                                           std::unique_ptr<rocksdb::FSSequentialFile>* result, IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::NewSequentialFile(path, options, result, dbg);
  return OpenSequential(tiers_, path, options, result);
}

IOStatus TierFileSystem::NewRandomAccessFile(const std::string& path, const FileOptions& options,
                                             std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                             IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::NewRandomAccessFile(path, options, result, dbg);
  return OpenRandom(tiers_, path, options, result);
}

IOStatus TierFileSystem::NewWritableFile(const std::string& path, const FileOptions& options,
                                         std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::NewWritableFile(path, options, result, dbg);
  return OpenWritable(tiers_, &told_, path, options, result);
}

IOStatus TierFileSystem::ReopenWritableFile(const std::string& path, const FileOptions& options,
                                            std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::ReopenWritableFile(path, options, result, dbg);
  return IOStatus::NotSupported(path, "files of tiers are written once");
}

IOStatus TierFileSystem::ReuseWritableFile(const std::string& path, const std::string& old_path,
                                           const FileOptions& options,
                                           std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext* dbg) {
  if (!Owns(path) && !Owns(old_path)) {
    return FileSystemWrapper::ReuseWritableFile(path, old_path, options, result, dbg);
  }
  // A new file replaces the old one, none of whose bytes are used.
  const IOStatus removed = DeleteFile(old_path, options.io_options, dbg);
  return removed.ok() ? NewWritableFile(path, options, result, dbg) : removed;
}

IOStatus TierFileSystem::NewRandomRWFile(const std::string& path, const FileOptions& options,
                                         std::unique_ptr<rocksdb::FSRandomRWFile>* result, IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::NewRandomRWFile(path, options, result, dbg);
  return IOStatus::NotSupported(path, "files of tiers are written once");
}

IOStatus TierFileSystem::NewMemoryMappedFileBuffer(const std::string& path,
                                                   std::unique_ptr<rocksdb::MemoryMappedFileBuffer>* result) {
  if (!Owns(path)) return FileSystemWrapper::NewMemoryMappedFileBuffer(path, result);
  return IOStatus::NotSupported(path, "files of tiers cannot be mapped");
}

IOStatus TierFileSystem::NewDirectory(const std::string& path, const IOOptions& options,
                                      std::unique_ptr<rocksdb::FSDirectory>* result, IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::NewDirectory(path, options, result, dbg);
  bool is_dir = false;
  const IOStatus found = IsDirectory(path, options, &is_dir, dbg);
  if (!found.ok()) return found;
  if (!is_dir) return IOStatus::IOError(path, "is not a directory");
  *result = std::make_unique<TierDirectory>(tiers_, path);
  return IOStatus::OK();
}

IOStatus TierFileSystem::FileExists(const std::string& path, const IOOptions& options, IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::FileExists(path, options, dbg);
  const int exists = archipelago_exists(tiers_->handle(), path.c_str());
  if (exists < 0) return LastError(path);
  return exists == 1 ? IOStatus::OK() : IOStatus::NotFound(path);
}

IOStatus TierFileSystem::GetChildren(const std::string& dir, const IOOptions& options,
                                     std::vector<std::string>* result, IODebugContext* dbg) {
  if (!Owns(dir)) return FileSystemWrapper::GetChildren(dir, options, result, dbg);
  std::vector<rocksdb::FileAttributes> found;
  const IOStatus listed = GetChildrenFileAttributes(dir, options, &found, dbg);
  result->clear();
  for (auto& file : found) result->push_back(std::move(file.name));
  return listed;
}

IOStatus TierFileSystem::GetChildrenFileAttributes(const std::string& dir, const IOOptions& options,
                                                   std::vector<rocksdb::FileAttributes>* result,
                                                   IODebugContext* dbg) {
  if (!Owns(dir)) return FileSystemWrapper::GetChildrenFileAttributes(dir, options, result, dbg);
  result->clear();
  const int listing = archipelago_opendir(tiers_->handle(), dir.c_str());
  if (listing < 0) return errno == ENOENT ? IOStatus::NotFound(dir, archipelago_last_error()) : LastError(dir);
  archipelago_dirent entry;
  int more;
  while ((more = archipelago_readdir(listing, &entry)) == 1) result->push_back({entry.name, entry.size});
  const IOStatus read = Done(more, dir);
  (void)archipelago_closedir(listing);
  return read;
}

IOStatus TierFileSystem::DeleteFile(const std::string& path, const IOOptions& options, IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::DeleteFile(path, options, dbg);
  return Done(archipelago_unlink(tiers_->handle(), path.c_str()), path);
}

IOStatus TierFileSystem::Truncate(const std::string& path, size_t size, const IOOptions& options,
                                  IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::Truncate(path, size, options, dbg);
  return IOStatus::NotSupported(path, "files of tiers are written once");
}

IOStatus TierFileSystem::CreateDir(const std::string& dir, const IOOptions& options, IODebugContext* dbg) {
  if (!Owns(dir)) return FileSystemWrapper::CreateDir(dir, options, dbg);
  return Done(archipelago_mkdir(tiers_->handle(), dir.c_str()), dir);
}

IOStatus TierFileSystem::CreateDirIfMissing(const std::string& dir, const IOOptions& options, IODebugContext* dbg) {
  if (!Owns(dir)) return FileSystemWrapper::CreateDirIfMissing(dir, options, dbg);
  if (archipelago_mkdir(tiers_->handle(), dir.c_str()) == 0) return IOStatus::OK();
  const bool taken = errno == EEXIST;
  const IOStatus failed = LastError(dir);
  bool is_dir = false;
  return taken && IsDirectory(dir, options, &is_dir, dbg).ok() && is_dir ? IOStatus::OK() : failed;
}

IOStatus TierFileSystem::DeleteDir(const std::string& dir, const IOOptions& options, IODebugContext* dbg) {
  if (!Owns(dir)) return FileSystemWrapper::DeleteDir(dir, options, dbg);
  return Done(archipelago_rmdir(tiers_->handle(), dir.c_str()), dir);
}

IOStatus TierFileSystem::GetFileSize(const std::string& path, const IOOptions& options, uint64_t* size,
                                     IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::GetFileSize(path, options, size, dbg);
  archipelago_stat_t stat;
  if (archipelago_stat(tiers_->handle(), path.c_str(), &stat) < 0) return LastError(path);
  *size = stat.size;
  return IOStatus::OK();
}

IOStatus TierFileSystem::GetFileModificationTime(const std::string& path, const IOOptions& options, uint64_t* time,
                                                 IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::GetFileModificationTime(path, options, time, dbg);
  archipelago_stat_t stat;
  if (archipelago_stat(tiers_->handle(), path.c_str(), &stat) < 0) return LastError(path);
  if (stat.modified_ms == 0) return IOStatus::NotSupported(path, "its device does not tell when it was written");
  *time = stat.modified_ms / 1000;
  return IOStatus::OK();
}

IOStatus TierFileSystem::GetAbsolutePath(const std::string& path, const IOOptions& options, std::string* result,
                                         IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::GetAbsolutePath(path, options, result, dbg);
  *result = path;
  return IOStatus::OK();
}

IOStatus TierFileSystem::RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                                    IODebugContext* dbg) {
  if (!Owns(from) && !Owns(to)) return FileSystemWrapper::RenameFile(from, to, options, dbg);
  if (!Owns(from) || !Owns(to)) return Crosses(from, to);
  return Done(archipelago_rename(tiers_->handle(), from.c_str(), to.c_str()), from);
}

IOStatus TierFileSystem::LinkFile(const std::string& from, const std::string& to, const IOOptions& options,
                                  IODebugContext* dbg) {
  if (!Owns(from) && !Owns(to)) return FileSystemWrapper::LinkFile(from, to, options, dbg);
  if (!Owns(from)) return Crosses(from, to);
  // For a path outside the tiers the library links if that is possible. Otherwise RocksDB copies.
  return Done(archipelago_link(tiers_->handle(), from.c_str(), to.c_str()), from);
}

IOStatus TierFileSystem::NumFileLinks(const std::string& path, const IOOptions& options, uint64_t* count,
                                      IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::NumFileLinks(path, options, count, dbg);
  archipelago_stat_t stat;
  if (archipelago_stat(tiers_->handle(), path.c_str(), &stat) < 0) return LastError(path);
  *count = stat.links;
  return IOStatus::OK();
}

IOStatus TierFileSystem::AreFilesSame(const std::string& first, const std::string& second, const IOOptions& options,
                                      bool* same, IODebugContext* dbg) {
  if (!Owns(first) && !Owns(second)) return FileSystemWrapper::AreFilesSame(first, second, options, same, dbg);
  *same = false;
  if (!Owns(first) || !Owns(second)) return IOStatus::OK();
  archipelago_stat_t one, other;
  if (archipelago_stat(tiers_->handle(), first.c_str(), &one) < 0) return LastError(first);
  if (archipelago_stat(tiers_->handle(), second.c_str(), &other) < 0) return LastError(second);
  const bool are_dirs = one.is_directory == 1 && other.is_directory == 1;
  *same = are_dirs ? Plain(first) == Plain(second) : one.file_id == other.file_id && one.file_id != 0;
  return IOStatus::OK();
}

IOStatus TierFileSystem::LockFile(const std::string& path, const IOOptions& options, rocksdb::FileLock** lock,
                                  IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::LockFile(path, options, lock, dbg);
  *lock = nullptr;
  const int handle = archipelago_lock(tiers_->handle(), path.c_str());
  if (handle < 0) return LastError(path);
  *lock = new TierLock(tiers_, handle);
  return IOStatus::OK();
}

IOStatus TierFileSystem::UnlockFile(rocksdb::FileLock* lock, const IOOptions& options, IODebugContext* dbg) {
  auto* ours = dynamic_cast<TierLock*>(lock);
  if (ours == nullptr) return FileSystemWrapper::UnlockFile(lock, options, dbg);
  delete ours;
  return IOStatus::OK();
}

IOStatus TierFileSystem::NewLogger(const std::string& path, const IOOptions& options,
                                   std::shared_ptr<rocksdb::Logger>* result, IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::NewLogger(path, options, result, dbg);
  return FileSystem::NewLogger(path, options, result, dbg);
}

IOStatus TierFileSystem::GetFreeSpace(const std::string& path, const IOOptions& options, uint64_t* free_bytes,
                                      IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::GetFreeSpace(path, options, free_bytes, dbg);
  return Done(archipelago_free_bytes(tiers_->handle(), free_bytes), path);
}

IOStatus TierFileSystem::IsDirectory(const std::string& path, const IOOptions& options, bool* is_dir,
                                     IODebugContext* dbg) {
  if (!Owns(path)) return FileSystemWrapper::IsDirectory(path, options, is_dir, dbg);
  archipelago_stat_t stat;
  if (archipelago_stat(tiers_->handle(), path.c_str(), &stat) < 0) return LastError(path);
  *is_dir = stat.is_directory == 1;
  return IOStatus::OK();
}

namespace {

constexpr char kScheme[] = "archipelago";

// Makes the file system of a URI "archipelago://settings.toml". It has no listener, so levels come from hints.
rocksdb::FileSystem* OfUri(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* guard, std::string* message) {
  const std::string settings = uri.substr(sizeof(kScheme) - 1 + 3);
  const int handle = archipelago_tiers_open_file(settings.c_str(), nullptr);
  if (handle < 0) {
    *message = archipelago_last_error();
    return nullptr;
  }
  *guard = std::make_unique<TierFileSystem>(std::make_shared<Tiers>(handle), TierFileSystem::kDefaultRoot(),
                                            rocksdb::FileSystem::Default());
  return guard->get();
}

[[maybe_unused]] const auto kRegistered = rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::FileSystem>(
    rocksdb::ObjectLibrary::PatternEntry(kScheme, false).AddSeparator("://"), OfUri);

}  // namespace

}  // namespace archipelago
