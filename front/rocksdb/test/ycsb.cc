// Measures YCSB A and C with unmodified RocksDB over tiers, and over a plain directory on the slow
// medium. The two sides take turns.
//
//   ycsb real DIR FAST_DIR      tiers of FAST_DIR (tmpfs, mapped) and DIR (direct) against RocksDB's own file system in DIR,
//                               with direct I/O
//   ycsb emulated DIR SPECS     tiers of an emulated NVMe and an emulated SATA drive (docs/devices, in SPECS) against the
//                               SATA drive alone through the same plugin; DIR should be tmpfs
//
// Other flags, with their defaults: --records N (1 KiB each; 262144), --seconds N of each phase
// (15), --rounds N (2), --threads N (16), --scale X of emulated devices (0.0625, as in decision
// 0016). The fast device holds a quarter of the records. Both sides have the same RocksDB settings.

#include <archipelago_rocksdb.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string mode, dir, other;
  uint64_t records = 262144;
  int seconds = 15, rounds = 2, threads = 16;
  double scale = 0.0625;
};

constexpr size_t kValueBytes = 1024;

// Draws Zipfian ranks by the approximation of Gray et al., as YCSB does, and scatters them over the
// keys.
class Zipfian {
 public:
  Zipfian(uint64_t items, double theta) : items_(items), theta_(theta) {
    for (uint64_t i = 1; i <= items; i++) zeta_ += 1 / std::pow(static_cast<double>(i), theta);
    const double zeta_two = 1 + std::pow(0.5, theta);
    alpha_ = 1 / (1 - theta);
    eta_ = (1 - std::pow(2.0 / static_cast<double>(items), 1 - theta)) / (1 - zeta_two / zeta_);
  }

  uint64_t Key(std::mt19937_64& random) const {
    const double u = std::uniform_real_distribution<double>(0, 1)(random);
    const double uz = u * zeta_;
    uint64_t rank;
    if (uz < 1) {
      rank = 0;
    } else if (uz < 1 + std::pow(0.5, theta_)) {
      rank = 1;
    } else {
      rank = static_cast<uint64_t>(static_cast<double>(items_) * std::pow(eta_ * u - eta_ + 1, alpha_));
    }
    return (std::min(rank, items_ - 1) * 0x9E3779B97F4A7C15ull >> 11) % items_;
  }

 private:
  const uint64_t items_;
  const double theta_;
  double zeta_ = 0, alpha_ = 0, eta_ = 0;
};

std::string Key(uint64_t number) {
  char text[24];
  snprintf(text, sizeof text, "user%012llu", static_cast<unsigned long long>(number));
  return text;
}

void Fill(std::string* value, std::mt19937_64& random) {
  value->resize(kValueBytes);
  for (size_t at = 0; at < kValueBytes; at += 8) {
    const uint64_t bits = random();
    memcpy(&(*value)[at], &bits, 8);
  }
}

rocksdb::Options Settings() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = 8 << 20;
  options.target_file_size_base = 4 << 20;
  options.max_bytes_for_level_base = 16 << 20;
  options.max_bytes_for_level_multiplier = 4;
  options.max_background_jobs = 4;
  options.use_direct_reads = true;
  options.use_direct_io_for_flush_and_compaction = true;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(8 << 20);
  table.cache_index_and_filter_blocks = false;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// A side of the comparison: its name, its settings file and the path of its database.
struct Side {
  std::string name, settings, db_path;
};

void Load(rocksdb::DB* db, const Flags& flags) {
  std::vector<uint64_t> keys(flags.records);
  for (uint64_t at = 0; at < flags.records; at++) keys[at] = at;
  std::mt19937_64 random(7);
  std::shuffle(keys.begin(), keys.end(), random);
  std::string value;
  for (const uint64_t key : keys) {
    Fill(&value, random);
    OK(db->Put({}, Key(key), value));
  }
  OK(db->Flush({}));
  uint64_t pending = 1, running = 1;
  while (pending + running > 0) {
    CHECK(db->GetIntProperty("rocksdb.compaction-pending", &pending));
    CHECK(db->GetIntProperty("rocksdb.num-running-compactions", &running));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Runs a phase and returns its operations per second.
double Run(rocksdb::DB* db, const Flags& flags, const Zipfian& keys, int update_percent, int seed) {
  std::atomic<uint64_t> done{0};
  std::atomic<bool> over{false};
  const auto work = [&](int thread) {
    std::mt19937_64 random(static_cast<uint64_t>(seed) * 1000 + thread);
    std::string value;
    uint64_t count = 0;
    while (!over) {
      const std::string key = Key(keys.Key(random));
      if (static_cast<int>(random() % 100) < update_percent) {
        Fill(&value, random);
        OK(db->Put({}, key, value));
      } else {
        OK(db->Get({}, key, &value));
        CHECK(value.size() == kValueBytes);
      }
      count++;
    }
    done += count;
  };
  const auto begun = Clock::now();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < flags.threads; thread++) threads.emplace_back(work, thread);
  std::this_thread::sleep_for(std::chrono::seconds(flags.seconds));
  over = true;
  for (auto& thread : threads) thread.join();
  return static_cast<double>(done) / std::chrono::duration<double>(Clock::now() - begun).count();
}

struct Rates {
  double a = 0, c = 0;
};

Rates Measure(const Side& side, const Flags& flags, const Zipfian& keys, int round) {
  rocksdb::Options options = Settings();
  std::shared_ptr<archipelago::TierFileSystem> fs;
  std::unique_ptr<rocksdb::Env> env;
  if (!side.settings.empty()) {
    OK(archipelago::TierFileSystem::Open(side.settings, ARCHIPELAGO_OPTIONS_INIT, nullptr, &fs));
    env = rocksdb::NewCompositeEnv(fs);
    options.env = env.get();
    options.listeners.push_back(archipelago::NewTierListener(fs));
  }
  rocksdb::DB* raw = nullptr;
  OK(rocksdb::DB::Open(options, side.db_path, &raw));
  std::unique_ptr<rocksdb::DB> db(raw);
  Load(raw, flags);
  Rates rates;
  rates.a = Run(raw, flags, keys, 50, round * 4);
  (void)Run(raw, flags, keys, 0, round * 4 + 1);
  rates.c = Run(raw, flags, keys, 0, round * 4 + 2);
  printf("  round %d, %-8s A %8.0f ops/s   C %8.0f ops/s\n", round + 1, side.name.c_str(), rates.a, rates.c);
  if (fs && round + 1 == flags.rounds) {
    std::istringstream report(fs->Report());
    for (std::string line; std::getline(report, line);) {
      if (line.find("  at ") != 0) printf("    %s\n", line.c_str());
    }
  }
  fflush(stdout);
  return rates;
}

std::string Device(const std::string& name, const std::string& path, const std::string& more, uint64_t bytes) {
  return "[[tiers]]\nname = \"" + name + "\"\npath = \"" + path + "\"\ncreate = true\n" + more +
         "capacity_bytes = " + std::to_string(bytes) + "\n";
}

// Writes a description of docs/devices with the scale `scale` to the file `to`. Returns the lines
// of the settings for such a device.
std::string Emulated(const std::string& specs, const std::string& name, const std::string& to, double scale) {
  std::ifstream in(specs + "/" + name + ".toml");
  CHECK(in.good());
  std::stringstream text;
  text << "scale = " << scale << "\n" << in.rdbuf();
  WriteText(to, text.str());
  return "kind = \"emulated\"\nspec = \"" + to + "\"\n";
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Flags Parse(int count, char** arguments) {
  Flags flags;
  if (count < 4) {
    fprintf(stderr, "usage: ycsb real DIR FAST_DIR | emulated DIR SPECS [--records N] [--seconds N] [--rounds N] "
                    "[--threads N] [--scale X]\n");
    exit(2);
  }
  flags.mode = arguments[1];
  flags.dir = arguments[2];
  flags.other = arguments[3];
  CHECK(flags.mode == "real" || flags.mode == "emulated");
  for (int at = 4; at + 1 < count; at += 2) {
    const std::string name = arguments[at];
    const double value = std::stod(arguments[at + 1]);
    if (name == "--records") flags.records = static_cast<uint64_t>(value);
    else if (name == "--seconds") flags.seconds = static_cast<int>(value);
    else if (name == "--rounds") flags.rounds = static_cast<int>(value);
    else if (name == "--threads") flags.threads = static_cast<int>(value);
    else if (name == "--scale") flags.scale = value;
    else CHECK(name == "a flag of the usage");
  }
  CHECK(flags.records > 0 && flags.seconds > 0 && flags.rounds > 0 && flags.threads > 0);
  return flags;
}

}  // namespace

int main(int count, char** arguments) {
  const Flags flags = Parse(count, arguments);
  const Zipfian keys(flags.records, 0.99);
  const uint64_t quarter = flags.records * (kValueBytes + 16) / 4, plenty = 64ull << 30;
  printf("YCSB A and C, zipfian 0.99, %llu records of 1 KiB, %d threads, %d s a phase; %s; the fast device holds %llu MiB\n",
         static_cast<unsigned long long>(flags.records), flags.threads, flags.seconds,
         flags.mode == "real" ? "real media, direct I/O" : "emulated devices", static_cast<unsigned long long>(quarter >> 20));
  if (flags.mode == "emulated") printf("NVMe over SATA (docs/devices) at scale %g against SATA alone\n", flags.scale);
  std::vector<double> plain_a, plain_c, tiers_a, tiers_c;
  for (int round = 0; round < flags.rounds; round++) {
    for (const bool tiered : {false, true}) {
      TemporaryDir dir(flags.dir), fast(flags.mode == "real" ? flags.other : flags.dir);
      Side side{tiered ? "tiers" : "plain", "", "tiers:/db"};
      std::string text;
      if (flags.mode == "real") {
        if (tiered) text += Device("fast", fast / "fast", "kind = \"mapped\"\n", quarter);
        text += Device("slow", dir / "slow", "kind = \"direct\"\n", plenty);
      } else {
        if (tiered) text += Device("nvme", dir / "nvme", Emulated(flags.other, "nvme", dir / "nvme.toml", flags.scale), quarter);
        text += Device("sata", dir / "sata", Emulated(flags.other, "sata", dir / "sata.toml", flags.scale), plenty);
      }
      if (flags.mode == "real" && !tiered) {
        side.db_path = dir / "plain";
      } else {
        side.settings = dir / "settings.toml";
        WriteText(side.settings, text);
      }
      const Rates rates = Measure(side, flags, keys, round);
      (tiered ? tiers_a : plain_a).push_back(rates.a);
      (tiered ? tiers_c : plain_c).push_back(rates.c);
    }
  }
  printf("tiers against plain, medians of %d: A %.2f, C %.2f\n", flags.rounds, Median(tiers_a) / Median(plain_a),
         Median(tiers_c) / Median(plain_c));
  return 0;
}
