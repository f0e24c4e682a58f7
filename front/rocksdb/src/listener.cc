// What RocksDB tells its listeners, kept for the file system: see job.h for what belongs to a thread, and
// TierFileSystem::Moved for files that change their level without being written.

#include <rocksdb/db.h>

#include <algorithm>

#include "job.h"

namespace archipelago {

namespace {

class TierListener : public rocksdb::EventListener {
 public:
  explicit TierListener(std::shared_ptr<TierFileSystem> fs) : fs_(std::move(fs)) {}

  const char* Name() const override { return "ArchipelagoTierListener"; }

  // In the thread that runs the part of the compaction. Its reads are not a user's.
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

  // Right before NewWritableFile, in the same thread.
  void OnTableFileCreationStarted(const rocksdb::TableFileCreationBriefInfo& info) override {
    Job& job = ThisJob();
    job.table = info.file_path;
    job.reason = info.reason;
    job.family = FamilyOf(info.db_name, info.cf_name);
  }

  void OnTableFileCreated(const rocksdb::TableFileCreationInfo&) override { ThisJob().table.clear(); }

  // A trivial move shows as a file that is input and output, on different levels. A table that was written is known to be
  // on the compaction's output level, which RocksDB may have decided otherwise by then (preclude_last_level_data_seconds).
  // Of a compaction that failed the outputs are reported, too, and the inputs have stayed where they were.
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

  // The report does not say the level; the database does.
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
