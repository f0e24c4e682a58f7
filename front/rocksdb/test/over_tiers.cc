// Tests of unmodified RocksDB over tiers, with the listener and with hints alone. They write enough
// for compactions, check the device of every file, and read everything back after a reopen and
// after a kill.
//
// With the arguments "child SETTINGS" the program is the process that a test kills.

#include <archipelago_rocksdb.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/utilities/backup_engine.h>
#include <rocksdb/utilities/checkpoint.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "check.h"

using archipelago::LevelFrom;
using archipelago::TierFileSystem;

namespace {

constexpr char kDb[] = "tiers:/rocks/db";
// The log and L0 to L2 belong to the fast device, whatever the tiers observe.
constexpr int kFastLevels = 3;

std::string Key(uint64_t number) {
  char text[24];
  snprintf(text, sizeof text, "key%012llu", static_cast<unsigned long long>(number));
  return text;
}

// A value that names its key and version, and that does not compress.
std::string Value(uint64_t number, uint64_t version) {
  std::mt19937_64 random(number * 1000003 + version);
  std::string value = std::to_string(number) + ":" + std::to_string(version) + ":";
  while (value.size() < 400) value.push_back(static_cast<char>(random()));
  return value;
}

// Writes a settings file and returns its path. With a `cache_share` of 0 no table stays on the fast
// device because it is read often, so every table lies where its level belongs.
std::string Settings(const TemporaryDir& dir, uint64_t fast_mib, const char* cache_share = "0.75") {
  const std::string path = dir / "settings.toml";
  WriteText(path, "[[tiers]]\nname = \"fast\"\npath = \"" + (dir / "fast") + "\"\ncreate = true\ncapacity_bytes = " +
                      std::to_string(fast_mib << 20) + "\ncache_share = " + cache_share + "\n[[tiers]]\nname = \"slow\"\npath = \"" + (dir / "slow") +
                      "\"\ncreate = true\ncapacity_bytes = " + std::to_string(4096ull << 20) + "\n");
  return path;
}

// Options of a database whose levels are so small that it has five of them.
rocksdb::Options SmallLevels() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.write_buffer_size = 256 << 10;
  options.target_file_size_base = 128 << 10;
  options.max_bytes_for_level_base = 512 << 10;
  options.max_bytes_for_level_multiplier = 3;
  options.level_compaction_dynamic_level_bytes = false;
  options.compression = rocksdb::kNoCompression;
  options.max_background_jobs = 4;
  options.max_subcompactions = 2;
  return options;
}

// An open database over tiers.
struct Open {
  std::shared_ptr<TierFileSystem> fs;
  std::unique_ptr<rocksdb::Env> env;
  std::unique_ptr<rocksdb::DB> db;

  Open(const std::string& settings, bool listen, rocksdb::Options options = SmallLevels()) {
    archipelago_options pinned = ARCHIPELAGO_OPTIONS_INIT;
    pinned.fast_levels = kFastLevels;
    OK(TierFileSystem::Open(settings, pinned, nullptr, &fs));
    env = rocksdb::NewCompositeEnv(fs);
    options.env = env.get();
    if (listen) options.listeners.push_back(archipelago::NewTierListener(fs));
    OK(env->CreateDirIfMissing("tiers:/rocks"));
    rocksdb::DB* raw = nullptr;
    OK(rocksdb::DB::Open(options, kDb, &raw));
    db.reset(raw);
  }

  archipelago_stat_t Stat(const std::string& path) const {
    archipelago_stat_t stat;
    CHECK(archipelago_stat(fs->tiers()->handle(), path.c_str(), &stat) == 0);
    return stat;
  }

  uint64_t Told(LevelFrom from) const { return fs->told().tables[static_cast<size_t>(from)]; }

  // Waits until no compaction is running or due. A scheduled job counts as neither before it
  // starts, so the background work is paused for each check, which waits for such jobs.
  void Settle() const {
    uint64_t pending = 1, running = 1;
    while (pending + running > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      OK(db->PauseBackgroundWork());
      CHECK(db->GetIntProperty("rocksdb.compaction-pending", &pending));
      CHECK(db->GetIntProperty("rocksdb.num-running-compactions", &running));
      OK(db->ContinueBackgroundWork());
    }
  }
};

using Model = std::map<uint64_t, uint64_t>;

// Makes random updates of 60,000 keys, and adds new keys in ascending order. RocksDB moves the
// tables of the latter down without rewriting them.
void Write(rocksdb::DB* db, Model* model, uint64_t seed, int writes) {
  std::mt19937_64 random(seed);
  uint64_t next = model->empty() ? 1'000'000 : std::max<uint64_t>(1'000'000, model->rbegin()->first + 1);
  for (int at = 0; at < writes; at++) {
    const uint64_t key = at % 4 == 0 ? next++ : random() % 60'000;
    const uint64_t version = ++(*model)[key];
    OK(db->Put({}, Key(key), Value(key, version)));
  }
}

void ReadAll(rocksdb::DB* db, const Model& model) {
  std::string value;
  for (const auto& [key, version] : model) {
    OK(db->Get({}, Key(key), &value));
    CHECK(value == Value(key, version));
  }
  std::unique_ptr<rocksdb::Iterator> all(db->NewIterator({}));
  size_t seen = 0;
  for (all->SeekToFirst(); all->Valid(); all->Next()) seen++;
  OK(all->status());
  CHECK(seen == model.size());
}

// Number of tables by level and device.
using Places = std::map<std::pair<int, int>, int>;

Places Look(const Open& open, bool exact) {
  Places places;
  std::vector<rocksdb::LiveFileMetaData> files;
  open.db->GetLiveFilesMetaData(&files);
  for (const auto& file : files) {
    const archipelago_stat_t stat = open.Stat(file.db_path + file.name);
    places[{file.level, stat.device}]++;
    CHECK(stat.file_class == ARCHIPELAGO_CLASS_TABLE);
    if (!exact) continue;
    const int wanted = file.level < kFastLevels ? 0 : 1;
    if (stat.level != file.level || stat.device != wanted) {
      fprintf(stderr, "%s of L%d is known as L%d and lies on device %d\n%s\n", file.name.c_str(), file.level,
              stat.level, stat.device, open.fs->Report().c_str());
    }
    CHECK(stat.level == file.level);
    CHECK(stat.device == wanted);
  }
  return places;
}

void Print(const char* what, const Open& open, const Places& places) {
  printf("%s: levels known from the listener %llu, from hints %llu, not at all %llu; trivial moves %llu; logs %llu\n",
         what, static_cast<unsigned long long>(open.Told(LevelFrom::kListener)),
         static_cast<unsigned long long>(open.Told(LevelFrom::kHints)),
         static_cast<unsigned long long>(open.Told(LevelFrom::kNothing)),
         static_cast<unsigned long long>(open.fs->told().moves), static_cast<unsigned long long>(open.fs->told().logs));
  for (const auto& [place, count] : places) printf("  L%d on device %d: %d files\n", place.first, place.second, count);
}

int Deepest(const Places& places) { return places.empty() ? -1 : places.rbegin()->first.first; }

// Checks that the log, the manifest and all other small files lie on the fast device.
void LookAtOthers(const Open& open) {
  std::vector<std::string> names;
  OK(open.env->GetChildren(kDb, &names));
  int logs = 0, manifests = 0;
  for (const auto& name : names) {
    const archipelago_stat_t stat = open.Stat(std::string(kDb) + "/" + name);
    if (stat.file_class == ARCHIPELAGO_CLASS_TABLE || stat.file_class == ARCHIPELAGO_CLASS_VALUES) continue;
    CHECK(stat.device == 0);
    logs += stat.file_class == ARCHIPELAGO_CLASS_LOG;
    manifests += stat.file_class == ARCHIPELAGO_CLASS_MANIFEST;
  }
  CHECK(logs >= 1 && manifests >= 3);
}

// Waits until each table lies on the device of its level, because the tiers carry out trivial moves
// in the background.
Places LookOnceSettled(const Open& open) {
  for (int tries = 0; tries < 500; tries++) {
    const Places places = Look(open, false);
    bool settled = true;
    for (const auto& [place, count] : places) settled &= place.first < kFastLevels || place.second == 1;
    if (settled) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return Look(open, true);
}

// RocksDB may report two moves of one table in either order. A report that arrives late changes
// nothing.
void ReportedLate(const Open& open) {
  std::vector<rocksdb::LiveFileMetaData> files;
  open.db->GetLiveFilesMetaData(&files);
  const auto deep = std::find_if(files.begin(), files.end(), [](const auto& file) { return file.level >= 3; });
  CHECK(deep != files.end());
  rocksdb::CompactionJobInfo late;
  late.cf_name = "default";
  late.base_input_level = deep->level - 2;
  late.output_level = deep->level - 1;
  late.output_files = {deep->db_path + deep->name};
  for (auto* infos : {&late.input_file_infos, &late.output_file_infos}) {
    infos->push_back({deep->level - 2, deep->file_number, 0});
  }
  late.output_file_infos[0].level++;
  const auto listener = archipelago::NewTierListener(open.fs);
  listener->OnCompactionCompleted(open.db.get(), late);
  CHECK(open.Stat(late.output_files[0]).level == deep->level);
  // The next report also corrects a level that the tiers know wrongly.
  OK(open.fs->SetLevel(late.output_files[0], deep->level + 1));
  listener->OnCompactionCompleted(open.db.get(), late);
  CHECK(open.Stat(late.output_files[0]).level == deep->level);
  CHECK(open.fs->Moved(open.db.get(), "tiers:/rocks/none.sst", 3).IsPathNotFound());

  // RocksDB reports a failed compaction like any other, although it has moved nothing.
  rocksdb::CompactionJobInfo failed = late;
  failed.status = rocksdb::Status::IOError("the disk is full");
  failed.output_file_infos[0].level = deep->level + 1;
  const uint64_t moves = open.fs->told().moves;
  listener->OnCompactionCompleted(open.db.get(), failed);
  CHECK(open.Stat(late.output_files[0]).level == deep->level && open.fs->told().moves == moves);
  // A table that was written to another level than that of its job is recorded, and does not count
  // as moved.
  for (const int known : {deep->level - 1, deep->level + 1}) {
    OK(open.fs->SetLevel(late.output_files[0], known));
    rocksdb::CompactionJobInfo written = late;
    written.input_file_infos.clear();
    written.output_file_infos[0].level = deep->level;
    listener->OnCompactionCompleted(open.db.get(), written);
    CHECK(open.Stat(late.output_files[0]).level == deep->level && open.fs->told().moves == moves);
  }
}

// A backup writes a table under another name first. The file counts as a table nevertheless, and
// does not stay on the fast device.
void BackUp(const Open& open, const Model& model) {
  const std::string dir = "tiers:/rocks/backup";
  rocksdb::BackupEngine* raw = nullptr;
  OK(rocksdb::BackupEngine::Open(rocksdb::BackupEngineOptions(dir, open.env.get()), open.env.get(), &raw));
  std::unique_ptr<rocksdb::BackupEngine> engine(raw);
  OK(engine->CreateNewBackup(open.db.get()));
  std::vector<std::string> names;
  OK(open.env->GetChildren(dir + "/shared_checksum", &names));
  CHECK(names.size() > 10);
  for (const auto& name : names) {
    const archipelago_stat_t stat = open.Stat(dir + "/shared_checksum/" + name);
    CHECK(stat.file_class == ARCHIPELAGO_CLASS_TABLE && stat.device == 1);
  }
  OK(engine->RestoreDBFromLatestBackup("tiers:/rocks/restored", "tiers:/rocks/restored"));
  rocksdb::Options options = SmallLevels();
  options.env = open.env.get();
  rocksdb::DB* restored = nullptr;
  OK(rocksdb::DB::Open(options, "tiers:/rocks/restored", &restored));
  std::unique_ptr<rocksdb::DB> owner(restored);
  ReadAll(restored, model);
}

void WithListener() {
  TemporaryDir dir("/tmp");
  const std::string settings = Settings(dir, 256, "0");
  Model model;
  {
    Open open(settings, true);
    Write(open.db.get(), &model, 1, 120'000);
    OK(open.db->Flush({}));
    open.Settle();
    const Places places = LookOnceSettled(open);
    Print("with the listener", open, places);
    LookAtOthers(open);
    ReportedLate(open);
    CHECK(Deepest(places) >= 3);
    CHECK(open.Told(LevelFrom::kListener) > 100);
    CHECK(open.Told(LevelFrom::kHints) == 0 && open.Told(LevelFrom::kNothing) == 0);
    CHECK(open.fs->told().moves > 0);
    CHECK(open.fs->told().logs > 1);
    ReadAll(open.db.get(), model);
  }
  {
    // Tables of L0 lie on the fast device until a compaction takes them.
    rocksdb::Options waiting = SmallLevels();
    waiting.disable_auto_compactions = true;
    Open open(settings, true, waiting);
    ReadAll(open.db.get(), model);
    Write(open.db.get(), &model, 2, 5'000);
    OK(open.db->Flush({}));
    const Places places = LookOnceSettled(open);
    CHECK(places.begin()->first == std::make_pair(0, 0) && places.begin()->second >= 4);
  }
  Open open(settings, true);
  ReadAll(open.db.get(), model);
  CHECK(open.fs->TellLevels(open.db.get()) == 0);

  // The writer of this table does not know its level. The plugin asks the database after the
  // ingestion.
  const std::string table = "tiers:/rocks/ingest.sst";
  rocksdb::Options options = SmallLevels();
  options.env = open.env.get();
  rocksdb::SstFileWriter writer({}, options);
  OK(writer.Open(table));
  for (uint64_t key = 5'000'000; key < 5'000'100; key++) OK(writer.Put(Key(key), Value(key, model[key] = 1)));
  OK(writer.Finish());
  rocksdb::IngestExternalFileOptions move;
  move.move_files = true;
  OK(open.db->IngestExternalFile({table}, move));
  CHECK(open.fs->told().ingested > 0);
  open.Settle();
  (void)LookOnceSettled(open);

  // A checkpoint outside the tiers is a plain database.
  rocksdb::Checkpoint* raw = nullptr;
  OK(rocksdb::Checkpoint::Create(open.db.get(), &raw));
  std::unique_ptr<rocksdb::Checkpoint> checkpoint(raw);
  OK(checkpoint->CreateCheckpoint(dir / "checkpoint"));
  rocksdb::DB* plain = nullptr;
  OK(rocksdb::DB::Open(SmallLevels(), dir / "checkpoint", &plain));
  std::unique_ptr<rocksdb::DB> owner(plain);
  ReadAll(plain, model);
  BackUp(open, model);
  // A checkpoint within the tiers consists of links, and stays as it is while the database goes on.
  const std::string within = "tiers:/rocks/checkpoint";
  OK(checkpoint->CreateCheckpoint(within));
  CHECK(checkpoint->CreateCheckpoint(within).IsInvalidArgument());
  const Model then = model;

  Write(open.db.get(), &model, 11, 5'000);
  OK(open.db->CompactRange({}, nullptr, nullptr));
  ReadAll(open.db.get(), model);
  const std::string report = open.fs->Report();
  CHECK(report.find("slow") != std::string::npos && report.find('\0') == std::string::npos);
  rocksdb::DB* again = nullptr;
  OK(rocksdb::DB::Open(options, within, &again));
  std::unique_ptr<rocksdb::DB> of_then(again);
  ReadAll(again, then);
  of_then.reset();
  OK(rocksdb::DestroyDB(within, options));
}

// RocksDB decides while it writes a table whether it belongs to the last level or to the one above.
void KeptOffTheLastLevel() {
  TemporaryDir dir("/tmp");
  Model model;
  rocksdb::Options options = SmallLevels();
  options.compaction_style = rocksdb::kCompactionStyleUniversal;
  options.preclude_last_level_data_seconds = 100'000;
  Open open(Settings(dir, 256, "0"), true, options);
  Write(open.db.get(), &model, 9, 20'000);
  OK(open.db->CompactRange({}, nullptr, nullptr));
  open.Settle();
  std::vector<rocksdb::LiveFileMetaData> files;
  open.db->GetLiveFilesMetaData(&files);
  CHECK(Deepest(Look(open, false)) == options.num_levels - 2);
  for (const auto& file : files) CHECK(open.Stat(file.db_path + file.name).level == file.level);
  CHECK(open.fs->told().moves == 0);
  ReadAll(open.db.get(), model);
}

// Calls of RocksDB that do not concern the bytes of files, and calls that the files refuse.
void Contract() {
  TemporaryDir dir("/tmp");
  Open open(Settings(dir, 256), true);
  Model model;
  Write(open.db.get(), &model, 10, 2'000);
  OK(open.db->Flush({}));
  rocksdb::FileSystem& fs = *open.fs;
  const rocksdb::IOOptions plain;
  std::vector<std::string> names;
  CHECK(fs.GetChildren("tiers:/none", plain, &names, nullptr).IsNotFound());
  std::vector<rocksdb::FileAttributes> files;
  CHECK(fs.GetChildrenFileAttributes("tiers:/none", plain, &files, nullptr).IsNotFound());

  const auto same = [&](const std::string& first, const std::string& second) {
    bool are_same = false;
    OK(fs.AreFilesSame(first, second, plain, &are_same, nullptr));
    return are_same;
  };
  const std::string current = std::string(kDb) + "/CURRENT";
  CHECK(same(kDb, kDb) && same(kDb, "tiers:/rocks//./db/") && !same(kDb, "tiers:/rocks"));
  CHECK(same(current, current) && !same(current, std::string(kDb) + "/IDENTITY") && !same(kDb, current));

  rocksdb::FileLock* lock = reinterpret_cast<rocksdb::FileLock*>(&open);
  CHECK(fs.LockFile(std::string(kDb) + "/LOCK", plain, &lock, nullptr).IsBusy() && lock == nullptr);

  // With direct reads, RocksDB must read ahead itself.
  std::vector<rocksdb::LiveFileMetaData> live;
  open.db->GetLiveFilesMetaData(&live);
  CHECK(!live.empty());
  rocksdb::FileOptions how;
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  for (const bool direct : {false, true}) {
    how.use_direct_reads = direct;
    OK(fs.NewRandomAccessFile(live[0].db_path + live[0].name, how, &file, nullptr));
    const rocksdb::IOStatus fetched = file->Prefetch(0, 4096, plain, nullptr);
    CHECK(direct ? fetched.IsNotSupported() : fetched.ok());
  }

  // The open of a database with mapped reads is refused, and the error names the setting.
  open.db.reset();
  rocksdb::Options options = SmallLevels();
  options.env = open.env.get();
  options.allow_mmap_reads = true;
  rocksdb::DB* raw = nullptr;
  for (const char* at : {kDb, "tiers:/rocks/new"}) {
    const rocksdb::Status mapped = rocksdb::DB::Open(options, at, &raw);
    CHECK(!mapped.ok() && mapped.ToString().find("allow_mmap_reads") != std::string::npos);
  }
}

// Column families of different sizes with dynamic level sizes. Each has a base level of its own,
// and its fast levels are counted from that level.
void Families() {
  TemporaryDir dir("/tmp");
  const std::string settings = Settings(dir, 256, "0");
  rocksdb::Options options = SmallLevels();
  options.level_compaction_dynamic_level_bytes = true;
  archipelago_options pinned = ARCHIPELAGO_OPTIONS_INIT;
  pinned.fast_levels = 2;
  std::shared_ptr<TierFileSystem> fs;
  OK(TierFileSystem::Open(settings, pinned, nullptr, &fs));
  std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(fs);
  options.env = env.get();
  options.create_missing_column_families = true;
  options.listeners.push_back(archipelago::NewTierListener(fs));
  OK(env->CreateDirIfMissing("tiers:/rocks"));
  rocksdb::DB* raw = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  OK(rocksdb::DB::Open(options, kDb, {{"default", options}, {"small", options}}, &families, &raw));
  std::unique_ptr<rocksdb::DB> db(raw);
  std::mt19937_64 random(14);
  for (int at = 0; at < 120'000; at++) {
    const uint64_t key = random() % 60'000;
    OK(db->Put({}, Key(key), Value(key, 1)));
    if (at % 100 == 0) OK(db->Put({}, families[1], Key(key), Value(key, 1)));
    if (at % 10'000 == 9'999) OK(db->Flush({}, families));
  }
  // The large family rewrites its deep levels after the small one was the last to compact out of
  // L0.
  OK(db->Flush({}, families));
  OK(db->CompactRange({}, families[0], nullptr, nullptr));
  OK(db->CompactRange({}, families[1], nullptr, nullptr));
  rocksdb::CompactRangeOptions anew;
  anew.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  OK(db->CompactRange(anew, families[0], nullptr, nullptr));
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  int deep = 0, first = 0;
  for (const auto& file : files) {
    archipelago_stat_t stat;
    CHECK(archipelago_stat(fs->tiers()->handle(), (file.db_path + file.name).c_str(), &stat) == 0);
    const bool is_small = file.column_family_name == "small";
    (is_small ? first : deep) += file.level == options.num_levels - 1;
    // The last level is the small family's first level below L0.
    CHECK(stat.device == (is_small ? 0 : 1) || file.level < options.num_levels - 1);
  }
  CHECK(deep > 10 && first > 0);
  for (auto* family : families) OK(db->DestroyColumnFamilyHandle(family));
  OK(db->Close());
}

// RocksDB removes archived logs when they are old.
void ArchivedLogs() {
  TemporaryDir dir("/tmp");
  rocksdb::Options options = SmallLevels();
  options.WAL_ttl_seconds = 1;
  Open open(Settings(dir, 256), true, options);
  const auto archived = [&] {
    std::vector<std::string> names;
    OK(open.fs->GetChildren(std::string(kDb) + "/archive", {}, &names, nullptr));
    return names;
  };
  Model model;
  Write(open.db.get(), &model, 12, 100);
  OK(open.db->Flush({}));
  std::set<std::string> first;
  for (const std::string& name : archived()) first.insert(name);
  CHECK(!first.empty());
  // RocksDB looks for old logs at flushes, at most once in half a second.
  const auto is_left = [&] {
    const std::vector<std::string> now = archived();
    return std::any_of(now.begin(), now.end(), [&](const std::string& name) { return first.count(name) > 0; });
  };
  for (int tries = 0; is_left(); tries++) {
    CHECK(tries < 600);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    Write(open.db.get(), &model, 13, 10);
    OK(open.db->Flush({}));
  }
  ReadAll(open.db.get(), model);
}

// Without a listener, the plugin learns the job and the level of a table from hints that RocksDB
// gives after it has created the file.
void WithHints() {
  TemporaryDir dir("/tmp");
  const std::string settings = Settings(dir, 256, "0");
  Model model;
  {
    Open open(settings, false);
    Write(open.db.get(), &model, 3, 120'000);
    OK(open.db->Flush({}));
    open.Settle();
    const Places places = Look(open, false);
    Print("with hints alone", open, places);
    LookAtOthers(open);
    CHECK(open.Told(LevelFrom::kListener) == 0 && open.Told(LevelFrom::kNothing) == 0);
    CHECK(open.Told(LevelFrom::kHints) > 100);
    CHECK(open.fs->told().moves == 0);
    int deep_fast = 0, deep_slow = 0;
    for (const auto& [place, count] : places) {
      if (place.first <= 2) CHECK(place.second == 0);
      if (place.first >= 3) (place.second == 0 ? deep_fast : deep_slow) += count;
    }
    // Hints do not report trivial moves, so a table that was moved down stays on its device.
    CHECK(deep_slow > 0 && deep_slow > deep_fast);
    ReadAll(open.db.get(), model);
  }
  // A listener that is added later corrects the levels.
  Open open(settings, true);
  CHECK(open.fs->TellLevels(open.db.get()) > 0);
  CHECK(open.fs->TellLevels(open.db.get()) == 0);
  (void)LookOnceSettled(open);
  ReadAll(open.db.get(), model);
}

// With room for copies, a table that was read may stay on the fast device when its level gets
// deeper, and hot ranges are copied there.
void WithCopies() {
  TemporaryDir dir("/tmp");
  Model model;
  Open open(Settings(dir, 256), true);
  Write(open.db.get(), &model, 7, 120'000);
  OK(open.db->Flush({}));
  open.Settle();
  ReadAll(open.db.get(), model);
  Write(open.db.get(), &model, 8, 40'000);
  OK(open.db->Flush({}));
  open.Settle();
  ReadAll(open.db.get(), model);
  for (const auto& [place, count] : Look(open, false)) CHECK(place.first >= kFastLevels || place.second == 0);
  LookAtOthers(open);
}

[[noreturn]] void Child(const std::string& settings) {
  Open open(settings, true);
  rocksdb::WriteOptions sync;
  for (uint64_t number = 0;; number++) {
    sync.sync = number % 16 == 0;
    OK(open.db->Put(sync, Key(number % 5000), Value(number % 5000, number / 5000)));
    // The parent reads from the pipe which writes were acknowledged.
    CHECK(write(STDOUT_FILENO, &number, sizeof number) == sizeof number);
  }
}

// After kill -9 at any moment, the database has every acknowledged write.
void Killed(const char* self) {
  TemporaryDir dir("/tmp");
  const std::string settings = Settings(dir, 256);
  std::map<uint64_t, uint64_t> acknowledged;
  for (int round = 0; round < 4; round++) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      execl(self, self, "child", settings.c_str(), static_cast<char*>(nullptr));
      _exit(1);
    }
    close(ends[1]);
    std::map<uint64_t, uint64_t> last;
    uint64_t number = 0;
    const uint64_t enough = 4'000 + 3'000 * round;
    bool killed = false;
    while (read(ends[0], &number, sizeof number) == sizeof number) {
      last[number % 5000] = number / 5000;
      if (number >= enough && !killed) killed = kill(child, SIGKILL) == 0;
    }
    close(ends[0]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && number >= enough);
    Open open(settings, true);
    std::string value;
    for (const auto& [key, version] : last) {
      OK(open.db->Get({}, Key(key), &value));
      // The write that was in progress may exist as well.
      CHECK(value == Value(key, version) || value == Value(key, version + 1));
    }
  }
}

// A program without code for tiers names them by a URI. The second round uses direct I/O, and both
// rounds ask for recycled logs.
void ByUri() {
  TemporaryDir dir("/tmp");
  const std::string uri = "archipelago://" + Settings(dir, 256);
  Model model;
  for (int round = 0; round < 2; round++) {
    rocksdb::Env* env = nullptr;
    std::shared_ptr<rocksdb::Env> owner;
    OK(rocksdb::Env::CreateFromUri(rocksdb::ConfigOptions(), "", uri, &env, &owner));
    rocksdb::Options options = SmallLevels();
    options.env = env;
    options.recycle_log_file_num = 2;
    options.use_direct_reads = round == 1;
    options.use_direct_io_for_flush_and_compaction = round == 1;
    rocksdb::DB* raw = nullptr;
    OK(rocksdb::DB::Open(options, "tiers:/by_uri", &raw));
    std::unique_ptr<rocksdb::DB> db(raw);
    ReadAll(raw, model);
    Write(raw, &model, 5 + round, 10'000);
    ReadAll(raw, model);
  }
  rocksdb::Env* env = nullptr;
  std::shared_ptr<rocksdb::Env> owner;
  const rocksdb::Status none =
      rocksdb::Env::CreateFromUri(rocksdb::ConfigOptions(), "", "archipelago:///nowhere.toml", &env, &owner);
  CHECK(!none.ok() && none.ToString().find("nowhere.toml") != std::string::npos);
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && std::string(arguments[1]) == "child") Child(arguments[2]);
  // This test forks, so it runs before RocksDB has threads, which a child would not have.
  Killed(arguments[0]);
  WithListener();
  WithHints();
  KeptOffTheLastLevel();
  WithCopies();
  Contract();
  ArchivedLogs();
  Families();
  ByUri();
  puts("RocksDB over tiers: all as it should be");
  return 0;
}
