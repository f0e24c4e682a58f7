// RocksDB over tiers: a FileSystem whose files lie on a hierarchy of devices, and a listener that reports to it what
// the FileSystem interface leaves out (docs/guide/rocksdb-plugin.md). RocksDB itself is not changed.
//
//   std::shared_ptr<archipelago::TierFileSystem> tiers;
//   archipelago::TierFileSystem::Open("settings.toml", ARCHIPELAGO_OPTIONS_INIT, nullptr, &tiers);
//   std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(tiers);
//   options.env = env.get();
//   options.listeners.push_back(archipelago::NewTierListener(tiers));
//   rocksdb::DB::Open(options, "tiers:/db", &db);
//
// Programs that accept a URI need no further code. After this library is loaded, "archipelago://settings.toml" names
// such a file system (db_bench --fs_uri, Env::CreateFromUri).
//
// Thread-safety: any thread may call any method. Failure: a call returns the status of the C library's failure.
#pragma once

#include <archipelago_tiers.h>
#include <rocksdb/file_system.h>
#include <rocksdb/listener.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace rocksdb {
class DB;
}

namespace archipelago {

// Source of a table's level when the table is created.
enum class LevelFrom { kListener, kHints, kNothing };

// Counters of the reports that the file system has received.
struct Told {
  std::atomic<uint64_t> logs{0};
  // Number of tables by LevelFrom.
  std::array<std::atomic<uint64_t>, 3> tables{};
  // Number of tables that changed their level without being written (trivial moves), and of ingested tables.
  std::atomic<uint64_t> moves{0};
  std::atomic<uint64_t> ingested{0};
};

// Open tiers. They are closed with their last file system, file and lock.
class Tiers {
 public:
  explicit Tiers(int handle) : handle_(handle) {}
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  int handle() const { return handle_; }

 private:
  const int handle_;
};

// File system over tiers. Paths below `root` lie in the tiers, and all other paths in the base file system.
class TierFileSystem : public rocksdb::FileSystemWrapper {
 public:
  static const char* kClassName() { return "ArchipelagoTiers"; }
  static const char* kDefaultRoot() { return "tiers:"; }

  // Opens the tiers of a settings file. `base` is the base file system, or nullptr for that of the operating system.
  static rocksdb::Status Open(const std::string& settings, const archipelago_options& options,
                              const std::shared_ptr<rocksdb::FileSystem>& base,
                              std::shared_ptr<TierFileSystem>* result);

  // A file system over tiers that were opened with the root `root`.
  TierFileSystem(std::shared_ptr<Tiers> tiers, std::string root, const std::shared_ptr<rocksdb::FileSystem>& base);

  const char* Name() const override { return kClassName(); }

  // Assigns a table to `level` without writing it anew.
  rocksdb::Status SetLevel(const std::string& path, int level);

  // Corrects the levels of the tables of an open database that the tiers know wrongly. That happens if the database was
  // written without a listener, or ended between a trivial move and its report. Returns the number of corrected tables,
  // or -1 if some could not be corrected.
  int TellLevels(rocksdb::DB* db);

  // Records that a compaction of `db`, possibly a trivial move, has moved a table to `level`. RocksDB reports later,
  // without its lock, so two moves of one table may be reported in either order. If the tiers know the table at a
  // deeper level, the function asks the database for the current level. `job` is the context of the compaction, or
  // nullptr.
  rocksdb::Status Moved(rocksdb::DB* db, const std::string& path, int level,
                        const archipelago_context* job = nullptr);

  // A report about the tiers for people.
  std::string Report() const;

  Told& told() { return told_; }
  const std::shared_ptr<Tiers>& tiers() const { return tiers_; }
  bool Owns(const std::string& path) const;

  rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                      rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* result,
                                       rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus ReuseWritableFile(const std::string& path, const std::string& old_path,
                                      const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSWritableFile>* result,
                                      rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewRandomRWFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSRandomRWFile>* result,
                                    rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewMemoryMappedFileBuffer(const std::string& path,
                                              std::unique_ptr<rocksdb::MemoryMappedFileBuffer>* result) override;
  rocksdb::IOStatus NewDirectory(const std::string& path, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* result, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus FileExists(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetChildren(const std::string& dir, const rocksdb::IOOptions& options,
                                std::vector<std::string>* result, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetChildrenFileAttributes(const std::string& dir, const rocksdb::IOOptions& options,
                                              std::vector<rocksdb::FileAttributes>* result,
                                              rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Truncate(const std::string& path, size_t size, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus CreateDir(const std::string& dir, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus CreateDirIfMissing(const std::string& dir, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus DeleteDir(const std::string& dir, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetFileSize(const std::string& path, const rocksdb::IOOptions& options, uint64_t* size,
                                rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetFileModificationTime(const std::string& path, const rocksdb::IOOptions& options, uint64_t* time,
                                            rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetAbsolutePath(const std::string& path, const rocksdb::IOOptions& options, std::string* result,
                                    rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus LinkFile(const std::string& from, const std::string& to, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NumFileLinks(const std::string& path, const rocksdb::IOOptions& options, uint64_t* count,
                                 rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus AreFilesSame(const std::string& first, const std::string& second,
                                 const rocksdb::IOOptions& options, bool* same, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus LockFile(const std::string& path, const rocksdb::IOOptions& options, rocksdb::FileLock** lock,
                             rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus UnlockFile(rocksdb::FileLock* lock, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewLogger(const std::string& path, const rocksdb::IOOptions& options,
                              std::shared_ptr<rocksdb::Logger>* result, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options, uint64_t* free_bytes,
                                 rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus IsDirectory(const std::string& path, const rocksdb::IOOptions& options, bool* is_dir,
                                rocksdb::IODebugContext* dbg) override;

 private:
  int TellLevelsLocked(rocksdb::DB* db);

  const std::shared_ptr<Tiers> tiers_;
  const std::string root_;
  Told told_;
  // Held from the question to a database to the report to the tiers, so that no older answer replaces a newer one.
  // RocksDB holds none of its locks when this one is taken.
  std::mutex levels_;
};

// A listener that reports flushes, compactions, trivial moves and ingestions of its databases to `fs`.
std::shared_ptr<rocksdb::EventListener> NewTierListener(const std::shared_ptr<TierFileSystem>& fs);

}  // namespace archipelago
