// Shared parts of bench_bridge: options, timing, baselines ("controls"), rows of figures.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "rollout_bridge/trainer/trainer_endpoint.h"
#include "rollout_bridge/transport/curve_keys.h"
#include "rollout_bridge/worker/worker_endpoint.h"

namespace ringside::bench {

struct Options {
  int repetitions = 5;  // after one of warm-up
  std::size_t snapshot_mib = 512;
  std::vector<int> workers = {1, 4};
  double scale = 1;  // of the number of rollouts in a repetition
};

struct Keys {
  bridge::KeyPair trainer = bridge::make_key_pair();
  bridge::KeyPair worker = bridge::make_key_pair();
};

// A folder for a journal, removed with its content.
class ScratchFolder {
 public:
  // An empty folder in the system's temporary folder.
  // Throws: std::filesystem::filesystem_error.
  ScratchFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("ringside-bench-" + std::to_string(::getpid()) + "-" + std::to_string(count()++))) {
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  static int& count() {
    static int made = 0;
    return made;
  }
  std::filesystem::path path_;
};

using Clock = std::chrono::steady_clock;
// Seconds from `start` to now.
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// CPU seconds of this process so far: all threads, user and system.
inline double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// The median of all but the first, which is the warm-up. At least two values.
inline double median_after_warm_up(std::vector<double> values) {
  values.erase(values.begin());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Endpoints on loopback with the library's own defaults; keys null: plain. The trainer has steps of
// one group of one sample.
bridge::TrainerOptions trainer_options(const std::filesystem::path& folder, const Keys* keys);
bridge::WorkerOptions worker_options(const std::string& address, const std::string& id,
                                     const Keys* keys);

// Waits until `workers` workers have installed `version`. Returns false after `patience`.
inline bool wait_for_commit(const bridge::TrainerEndpoint& trainer, int64_t version,
                            int64_t workers, std::chrono::seconds patience) {
  const auto until = Clock::now() + patience;
  while (Clock::now() < until) {
    const auto all = trainer.workers();
    const auto has_it = [&](const bridge::WorkerStatus& w) { return w.version >= version; };
    if (std::count_if(all.begin(), all.end(), has_it) >= workers) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return false;
}

using Frames = std::vector<std::span<const std::byte>>;

// Baselines, in seconds. All of them block.
// Copies the frames `times` times into memory that has been touched before.
double memcpy_seconds(const std::vector<Frames>& messages, int times);
// Allocates, zeroes and frees blocks of `block` bytes, `bytes` in total and all live at once: the
// cost of new memory for a receiver that keeps the data.
double first_touch_seconds(std::size_t bytes, std::size_t block);
// `clients` DEALER sockets pull every chunk from one ROUTER socket that sends without copying, each
// with `window` requests in flight. Received data is discarded; with `keep` it is copied into
// memory that was touched before and hashed once. Timed from the first request to the last chunk.
double raw_pull_seconds(const Frames& chunks, int clients, std::size_t window, const Keys* keys,
                        bool keep = false);
// One DEALER socket sends the messages to a ROUTER socket at full speed, without copying.
double raw_push_seconds(const std::vector<Frames>& messages, const Keys* keys);

// Each appends rows to a JSON array; README.md describes the fields.
// Throws: std::runtime_error when an endpoint did not do what is measured.
void run_ingress(const Options& options, const Keys* keys, nlohmann::json& rows);
void run_publish(const Options& options, const Keys* keys, nlohmann::json& rows);

}  // namespace ringside::bench
