// RocksDB over tiers: a FileSystem whose files lie on a hierarchy of devices, and a listener that tells it what the
// FileSystem interface does not say (docs/guide/rocksdb-plugin.md). RocksDB itself stays as it is.
//
//   std::shared_ptr<archipelago::TierFileSystem> tiers;
//   archipelago::TierFileSystem::Open("settings.toml", ARCHIPELAGO_OPTIONS_INIT, nullptr, &tiers);
//   std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(tiers);
//   options.env = env.get();
//   options.listeners.push_back(archipelago::NewTierListener(tiers));
//   rocksdb::DB::Open(options, "tiers:/db", &db);
//
// Programs that take a URI need no line of code: with this library loaded, "archipelago://settings.toml" names such a
// file system (db_bench --fs_uri, Env::CreateFromUri).
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

// From what a table's level was known when it was created.
enum class LevelFrom { kListener, kHints, kNothing };

// What the file system was told so far.
struct Told {
  std::atomic<uint64_t> logs{0};
  // Tables by LevelFrom.
  std::array<std::atomic<uint64_t>, 3> tables{};
  // Files that changed their level without being written (trivial moves), and ingested ones.
  std::atomic<uint64_t> moves{0};
  std::atomic<uint64_t> ingested{0};
};

// Open tiers; closed when the last file system, file and lock of them is gone.
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

// Paths below `root` lie in the tiers, all others where the base file system has them. Thread-safe.
class TierFileSystem : public rocksdb::FileSystemWrapper {
 public:
  static const char* kClassName() { return "ArchipelagoTiers"; }
  static const char* kDefaultRoot() { return "tiers:"; }

  // Opens the tiers that a settings file lists. `base`: nullptr for the system's.
  static rocksdb::Status Open(const std::string& settings, const archipelago_options& options,
                              const std::shared_ptr<rocksdb::FileSystem>& base,
                              std::shared_ptr<TierFileSystem>* result);

  // Takes over tiers that are open with that root.
  TierFileSystem(std::shared_ptr<Tiers> tiers, std::string root, const std::shared_ptr<rocksdb::FileSystem>& base);

  const char* Name() const override { return kClassName(); }

  // Tells that a table belongs to `level` now without having been written anew.
  rocksdb::Status SetLevel(const std::string& path, int level);

  // Tells the level of every table of an open database that the tiers know otherwise: after it was written without a
  // listener, or ended between a trivial move and its report. How many there were, or -1 if some could not be told.
  int TellLevels(rocksdb::DB* db);

  // A trivial move or another compaction of `db` brought a table to `level`. RocksDB reports afterwards, without its lock: two
  // moves of one table may be reported in either order. So when the table is known to be deeper, the database says where it is. `job`: what is known
  // of the compaction, if anything is.
  rocksdb::Status Moved(rocksdb::DB* db, const std::string& path, int level,
                        const archipelago_context* job = nullptr);

  // What the tiers hold and did, for people.
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
  // Held from asking a database to telling the tiers, so that no later report is overtaken. RocksDB holds no lock of its
  // own when it is taken.
  std::mutex levels_;
};

// Tells `fs` of flushes, compactions, trivial moves and ingestions of the databases that have it.
std::shared_ptr<rocksdb::EventListener> NewTierListener(const std::shared_ptr<TierFileSystem>& fs);

}  // namespace archipelago
