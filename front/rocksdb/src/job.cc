#include "job.h"

#include <functional>

namespace archipelago {

Job& ThisJob() {
  thread_local Job job;
  return job;
}

uint32_t FamilyOf(const std::string& db, const std::string& name) {
  return static_cast<uint32_t>(std::hash<std::string>()(db + '\n' + name)) | 1;
}

NameSays WhatIs(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  const auto ends = [&name](const std::string& with) {
    return name.size() > with.size() && name.compare(name.size() - with.size(), with.size(), with) == 0;
  };
  // A backup writes ".NAME.tmp" and renames it to NAME. The file keeps the class with which it was created.
  if (ends(".tmp")) {
    name.resize(name.size() - 4);
    if (name.front() == '.') name.erase(0, 1);
  }
  // A table for ingestion may have any name before its suffix.
  if (ends(".sst") || ends(".ldb")) return NameSays::kTable;
  if (ends(".blob")) return NameSays::kBlob;
  if (ends(".log")) return NameSays::kLog;
  if (ends(".dbtmp")) return NameSays::kManifest;
  const auto begins = [&name](const char* with) { return name.rfind(with, 0) == 0; };
  if (begins("MANIFEST-") || begins("OPTIONS-") || name == "CURRENT" || name == "IDENTITY") return NameSays::kManifest;
  return NameSays::kOther;
}

LevelFrom Decide(const TableFacts& facts, archipelago_context* context) {
  context->file_class = ARCHIPELAGO_CLASS_TABLE;
  if (facts.from_listener) {
    context->reason = facts.is_compaction ? ARCHIPELAGO_FOR_COMPACTION : ARCHIPELAGO_FOR_FLUSH;
    context->from_level = facts.from_level;
    context->level = facts.to_level;
    context->family = facts.family;
    if (facts.to_level >= 0) return LevelFrom::kListener;
  }
  // Flushes write at high priority, and compactions at low priority or at that of the user. The lifetime hint counts
  // levels from the base level on, which is 1 unless level sizes are dynamic.
  if (facts.priority == rocksdb::Env::IO_HIGH) {
    context->reason = ARCHIPELAGO_FOR_FLUSH;
    context->level = 0;
    return LevelFrom::kHints;
  }
  context->reason = ARCHIPELAGO_FOR_COMPACTION;
  switch (facts.life_time) {
    case rocksdb::Env::WLTH_SHORT:
    case rocksdb::Env::WLTH_MEDIUM:
      context->level = 1;
      return LevelFrom::kHints;
    case rocksdb::Env::WLTH_LONG:
      context->level = 2;
      return LevelFrom::kHints;
    case rocksdb::Env::WLTH_EXTREME:
      context->level = 3;
      return LevelFrom::kHints;
    default:
      // A table that is written outside of any job, for ingestion, or by a compaction without levels.
      if (!facts.is_compaction) context->reason = ARCHIPELAGO_FOR_INGEST;
      context->level = -1;
      return LevelFrom::kNothing;
  }
}

}  // namespace archipelago
