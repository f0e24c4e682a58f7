// Parts that the test programs share: checks that end the program, a temporary directory, files.
#pragma once

#include <rocksdb/status.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);   \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

#define OK(call)                                                                                       \
  do {                                                                                                 \
    const rocksdb::Status outcome = (call);                                                            \
    if (!outcome.ok()) {                                                                               \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, outcome.ToString().c_str());       \
      exit(1);                                                                                         \
    }                                                                                                  \
  } while (0)

// A directory that is removed when this is destroyed.
class TemporaryDir {
 public:
  explicit TemporaryDir(const std::string& below) {
    std::string name = below + "/archipelago-rocksdb-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  CHECK(out.good());
}
