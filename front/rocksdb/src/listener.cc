// Listener of RocksDB: it passes the reports of RocksDB to the file system. job.h keeps those that belong to a thread,
// and TierFileSystem::Moved handles tables that change their level without being written.

#include <rocksdb/db.h>

#include <algorithm>

#include "job.h"

namespace archipelago {

namespace {

class TierListener : public rocksdb::EventListener {
 public:
  explicit TierListener(std::shared_ptr<TierFileSystem> fs) : fs_(std::move(fs)) {}

  const char* Name() const override { return "ArchipelagoTierListener"; }

  // RocksDB calls this in the thread that runs a part of the compaction. Its reads are not those of a user.
  void OnSubcompactionBegin(const rocksdb::SubcompactionJobInfo& info) override {
    Job& job = ThisJob();
    job.compacting = true;
    job.from_level = info.base_input_level;
    job.to_level = info.output_level;
    archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
    context.file_class = ARCHIPELAGO_CLASS_TABLE;
    context.reason = ARCHIPELAGO_FOR_COMPACTION;
    context.from_level = job.from_level;
    context.level = job.to_level;
    (void)archipelago_thread_context(&context);
  }

  void OnSubcompactionCompleted(const rocksdb::SubcompactionJobInfo&) override {
    ThisJob() = Job();
    (void)archipelago_thread_context(nullptr);
  }

  // RocksDB calls this directly before NewWritableFile, in the same thread.
  void OnTableFileCreationStarted(const rocksdb::TableFileCreationBriefInfo& info) override {
    Job& job = ThisJob();
    job.table = info.file_path;
    job.reason = info.reason;
    job.family = FamilyOf(info.db_name, info.cf_name);
  }

  void OnTableFileCreated(const rocksdb::TableFileCreationInfo&) override { ThisJob().table.clear(); }

  // A file that is both input and output, on different levels, is a trivial move. A table that was written is known at
  // the output level of the compaction, but RocksDB may have changed that level meanwhile
  // (preclude_last_level_data_seconds). RocksDB also reports the outputs of a compaction that failed, although its
  // inputs have not moved.
  void OnCompactionCompleted(rocksdb::DB* db, const rocksdb::CompactionJobInfo& info) override {
    if (!info.status.ok()) return;
    archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
    context.file_class = ARCHIPELAGO_CLASS_TABLE;
    context.reason = ARCHIPELAGO_FOR_COMPACTION;
    context.from_level = info.base_input_level;
    context.level = info.output_level;
    context.family = FamilyOf(db->GetName(), info.cf_name);
    const size_t outputs = std::min(info.output_files.size(), info.output_file_infos.size());
    for (size_t at = 0; at < outputs; at++) {
      const auto& moved = info.output_file_infos[at];
      const bool was_there = std::any_of(
          info.input_file_infos.begin(), info.input_file_infos.end(),
          [&moved](const rocksdb::CompactionFileInfo& input) { return input.file_number == moved.file_number; });
      if (fs_->Moved(db, info.output_files[at], moved.level, &context).ok()) fs_->told().moves += was_there;
    }
  }

  // The report does not contain the level, so the database is asked.
  void OnExternalFileIngested(rocksdb::DB* db, const rocksdb::ExternalFileIngestionInfo&) override {
    const int told = fs_->TellLevels(db);
    if (told > 0) fs_->told().ingested += told;
  }

 private:
  const std::shared_ptr<TierFileSystem> fs_;
};

}  // namespace

std::shared_ptr<rocksdb::EventListener> NewTierListener(const std::shared_ptr<TierFileSystem>& fs) {
  return std::make_shared<TierListener>(fs);
}

}  // namespace archipelago
