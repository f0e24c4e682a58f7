// What the calling thread is doing for RocksDB, as far as its listener was told, and what follows for a new file.
//
// RocksDB creates every table in the thread that runs the job, right after it has told its listeners; so a variable of
// the thread carries what the FileSystem interface leaves out from one to the other.
#pragma once

#include <archipelago_rocksdb.h>

#include <string>

namespace archipelago {

// A job, by its last report.
struct Job {
  bool compacting = false;
  int from_level = -1;
  int to_level = -1;
  // The table that is about to be created, and why; "" if none.
  std::string table;
  // Whose it is: a number of the database's name and the column family's.
  uint32_t family = 0;
  rocksdb::TableFileCreationReason reason = rocksdb::TableFileCreationReason::kMisc;
};

Job& ThisJob();

// A number for a column family, never 0, which would mean that it is not known.
uint32_t FamilyOf(const std::string& db, const std::string& name);

// What a file's name says.
enum class NameSays { kLog, kTable, kBlob, kManifest, kOther };

NameSays WhatIs(const std::string& path);

// What is known of a table before its first byte.
struct TableFacts {
  bool from_listener = false;
  bool is_compaction = false;
  int from_level = -1;
  int to_level = -1;
  uint32_t family = 0;
  rocksdb::Env::IOPriority priority = rocksdb::Env::IO_TOTAL;
  rocksdb::Env::WriteLifeTimeHint life_time = rocksdb::Env::WLTH_NOT_SET;
};

// The context of a new table, and from what its level is known. Pure.
LevelFrom Decide(const TableFacts& facts, archipelago_context* context);

}  // namespace archipelago
