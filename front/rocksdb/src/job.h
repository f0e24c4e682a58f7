// The job that the calling thread runs for RocksDB, according to the listener, and the context of a new file.
//
// RocksDB creates every table in the thread that runs the job, directly after it has called its listeners. So a
// variable of the thread passes facts from the listener to the file system that the FileSystem interface leaves out.
#pragma once

#include <archipelago_rocksdb.h>

#include <string>

namespace archipelago {

// A job according to its last report.
struct Job {
  bool compacting = false;
  int from_level = -1;
  int to_level = -1;
  // The table that the job is about to create, and its reason; "" if there is none.
  std::string table;
  // Number for the column family, made from the name of the database and that of the family.
  uint32_t family = 0;
  rocksdb::TableFileCreationReason reason = rocksdb::TableFileCreationReason::kMisc;
};

Job& ThisJob();

// A number for a column family. It is never 0, which would mean an unknown family.
uint32_t FamilyOf(const std::string& db, const std::string& name);

// Facts that the name of a file tells.
enum class NameSays { kLog, kTable, kBlob, kManifest, kOther };

NameSays WhatIs(const std::string& path);

// Facts about a table before its first byte is written.
struct TableFacts {
  bool from_listener = false;
  bool is_compaction = false;
  int from_level = -1;
  int to_level = -1;
  uint32_t family = 0;
  rocksdb::Env::IOPriority priority = rocksdb::Env::IO_TOTAL;
  rocksdb::Env::WriteLifeTimeHint life_time = rocksdb::Env::WLTH_NOT_SET;
};

// The context of a new table, and the source of its level. Pure function.
LevelFrom Decide(const TableFacts& facts, archipelago_context* context);

}  // namespace archipelago
