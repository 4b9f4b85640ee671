// Bench of weights from TrainerEndpoint::publish() until every worker's COMMITTED has arrived,
// dense and as a delta.
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>

#include "rollout_bridge/weights/shared_block.h"
#include "rollout_bridge/weights/snapshot.h"
#include "tools/bench/bridge/bench.h"
#include "tools/bench/bridge/words.h"

namespace ringside::bench {
namespace {

using namespace bridge;
using Snapshot = std::shared_ptr<const WeightSnapshot>;
constexpr std::chrono::seconds kPatience{120};
constexpr std::size_t kTensorElements = std::size_t{16} << 20;  // 32 MiB

// Single steps of the last bf16 digit at random places, a share `density` of all.
Words changed(Words words, double density, uint32_t seed) {
  std::mt19937 rng(seed);
  std::geometric_distribution<std::size_t> gap(density);
  for (std::size_t at = gap(rng); at < words.size(); at += 1 + gap(rng)) {
    words[at] = static_cast<uint16_t>(rng() % 2 == 0 ? words[at] + 1 : words[at] - 1);
  }
  return words;
}

// `mib` of tensors in memory that can be shared; density 0 is the base itself.
Snapshot make_weights(const Words& base, std::size_t mib, double density) {
  std::vector<NamedBuffer> tensors;
  const std::size_t count = std::max<std::size_t>(1, (mib << 20) / (2 * kTensorElements));
  const auto block = std::make_shared<SharedBlock>(count * 2 * kTensorElements);
  std::span<std::byte> rest = block->bytes();
  for (std::size_t i = 0; i < count; ++i) {
    const Words words = density > 0 ? changed(base, density, static_cast<uint32_t>(i)) : base;
    const auto bytes = rest.first(2 * kTensorElements);
    std::memcpy(bytes.data(), words.data(), bytes.size());
    rest = rest.subspan(bytes.size());
    tensors.push_back({"layer" + std::to_string(i) + ".weight",
                       "BF16",
                       {static_cast<int64_t>(kTensorElements / 4096), 4096},
                       {block, bytes}});
  }
  return make_snapshot("bench", 1, density > 0 ? 1 : 0, std::move(tensors), block);
}

// The same bytes as another version, with the changes to the previous version if any.
Snapshot renumbered(const Snapshot& weights, int64_t version, const WeightDelta* delta) {
  auto out = std::make_shared<WeightSnapshot>(*weights);
  out->manifest.version = version;
  if (delta != nullptr) {
    auto numbered = std::make_shared<WeightDelta>(*delta);
    numbered->manifest.version = version;
    numbered->manifest.base_version = version - 1;
    out->delta = std::move(numbered);
  }
  return out;
}

// A worker that installs nothing, but hashes the bytes and commits as an installation must.
class Worker {
 public:
  Worker(const std::string& address, int index, const Keys* keys, bool shared_memory)
      : endpoint_([&] {
          auto options = worker_options(address, "worker" + std::to_string(index), keys);
          options.shared_memory = shared_memory;
          return options;
        }()),
        thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            const auto event = endpoint_.poll(std::chrono::milliseconds(50));
            const auto* ready = event ? std::get_if<WeightsReady>(&*event) : nullptr;
            if (ready != nullptr) {
              install(*ready->snapshot);
            }
          }
        }) {}

 private:
  void install(const WeightSnapshot& snapshot) {
    std::vector<NamedBuffer> tensors;
    for (std::size_t i = 0; i < snapshot.tensors.size(); ++i) {
      const TensorEntry& t = snapshot.manifest.tensors[i];
      tensors.push_back({t.name, t.dtype, t.shape, snapshot.tensors[i]});
    }
    (void)endpoint_.commit_weights(snapshot.manifest.version, root_hash_of(tensors));
  }

  WorkerEndpoint endpoint_;
  std::jthread thread_;
};

class Session {
 public:
  // shared_memory: the workers read weights from the trainer's memory, otherwise over the network.
  Session(int workers, const Keys* keys, bool shared_memory = false)
      : trainer_(trainer_options(folder_.path(), keys)), count_(workers) {
    for (int i = 0; i < workers; ++i) {
      workers_.push_back(
          std::make_unique<Worker>(trainer_.rollout_address(), i, keys, shared_memory));
    }
  }

  // Seconds until every worker has committed.
  double publish(const Snapshot& weights, const WeightDelta* delta) {
    const Snapshot next = renumbered(weights, ++version_, delta);
    const auto start = Clock::now();
    trainer_.publish(next);
    if (!wait_for_commit(trainer_, version_, count_, kPatience)) {
      throw std::runtime_error("publish: version " + std::to_string(version_) + " not committed");
    }
    return seconds_since(start);
  }
  BridgeCounters counters() const { return trainer_.counters(); }

 private:
  ScratchFolder folder_;
  TrainerEndpoint trainer_;
  int count_;
  int64_t version_ = -1;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Base and changed weights, and the deltas between them in both directions.
struct Pair {
  double density;
  Snapshot next;
  std::shared_ptr<const WeightDelta> there, back;
  double encode_seconds, payload_bytes = 0, changes = 0;

  Pair(const Snapshot& base, const Words& words, std::size_t mib, double share) : density(share) {
    next = make_weights(words, mib, share);
    const auto start = Clock::now();
    there = make_delta(*base, *next);
    encode_seconds = seconds_since(start);
    back = make_delta(*renumbered(next, 0, nullptr), *renumbered(base, 1, nullptr));
    if (!there || !back) {
      throw std::runtime_error("publish: the delta is no shorter than dense");
    }
    for (const TensorEntry& t : there->manifest.tensors) {
      payload_bytes += static_cast<double>(t.payload_bytes);
      changes += static_cast<double>(t.changed);
    }
  }
};

void run_dense(Session& session, const Snapshot& base, int repetitions, int workers,
               const Keys* keys, nlohmann::json& rows) {
  const WorkerOptions defaults;
  Frames chunks;
  for (const Buffer& tensor : base->tensors) {
    for (std::size_t at = 0; at < tensor.bytes.size(); at += defaults.chunk_bytes) {
      chunks.push_back(tensor.bytes.subspan(
          at, std::min<std::size_t>(defaults.chunk_bytes, tensor.bytes.size() - at)));
    }
  }
  double bytes = 0;
  for (const auto chunk : chunks) {
    bytes += static_cast<double>(chunk.size()) * workers;
  }
  Session beside(workers, keys, /*shared_memory=*/true);
  std::vector<double> copy_s, stream_s, pull_s, kept_s, dense_s, shared_s, touch_s, raw_cpu_s,
      cpu_s;
  for (int i = 0; i <= repetitions; ++i) {  // interleaved, so that other load affects all equally
    copy_s.push_back(memcpy_seconds({chunks}, workers));
    stream_s.push_back(raw_pull_seconds(chunks, workers, chunks.size(), keys));
    touch_s.push_back(
        first_touch_seconds(static_cast<std::size_t>(bytes), base->tensors[0].bytes.size()));
    kept_s.push_back(raw_pull_seconds(chunks, workers, defaults.chunk_window, keys, true));
    const double before = cpu_seconds();
    pull_s.push_back(raw_pull_seconds(chunks, workers, defaults.chunk_window, keys));
    const double between = cpu_seconds();
    dense_s.push_back(session.publish(base, nullptr));
    raw_cpu_s.push_back(between - before);
    cpu_s.push_back(cpu_seconds() - between);
    shared_s.push_back(beside.publish(base, nullptr));
  }
  if (beside.counters().shared_staged != shared_s.size() * static_cast<std::size_t>(workers)) {
    throw std::runtime_error("publish: weights in shared memory went over the wire");
  }
  const double shared = median_after_warm_up(shared_s);
  const double seconds = median_after_warm_up(dense_s);
  const double stream = median_after_warm_up(stream_s);
  const double pull = median_after_warm_up(pull_s);
  const double kept = median_after_warm_up(kept_s);
  const double copy = median_after_warm_up(copy_s);
  const double touch = median_after_warm_up(touch_s);
  rows.push_back({{"what", "publish dense"},
                  {"curve", keys != nullptr},
                  {"workers", workers},
                  {"bytes", bytes},
                  {"seconds", seconds},
                  {"seconds_slowest", *std::max_element(dense_s.begin() + 1, dense_s.end())},
                  {"MB_per_s", bytes / seconds / 1e6},
                  {"raw_MB_per_s", bytes / stream / 1e6},
                  {"raw_windowed_MB_per_s", bytes / pull / 1e6},
                  {"raw_kept_MB_per_s", bytes / kept / 1e6},
                  {"memcpy_MB_per_s", bytes / copy / 1e6},
                  {"first_touch_MB_per_s", bytes / touch / 1e6},
                  {"cpu_seconds", median_after_warm_up(cpu_s)},
                  {"raw_windowed_cpu_seconds", median_after_warm_up(raw_cpu_s)},
                  {"of_raw", stream / seconds},
                  {"of_raw_windowed", pull / seconds},
                  {"of_raw_kept", kept / seconds},
                  {"of_memcpy", copy / seconds}});
  rows.push_back({{"what", "publish shared"},
                  {"curve", keys != nullptr},
                  {"workers", workers},
                  {"bytes", bytes},
                  {"seconds", shared},
                  {"seconds_slowest", *std::max_element(shared_s.begin() + 1, shared_s.end())},
                  {"MB_per_s", bytes / shared / 1e6},
                  {"raw_MB_per_s", bytes / stream / 1e6},
                  {"of_raw", stream / shared},
                  {"of_memcpy", copy / shared}});
}

void run_delta(Session& session, const Snapshot& base, const Pair& pair, int repetitions,
               int workers, const Keys* keys, nlohmann::json& rows) {
  std::vector<double> dense_s, delta_s;
  const uint64_t staged = session.counters().delta_staged;
  for (int i = 0; i <= repetitions; ++i) {
    dense_s.push_back(session.publish(i % 2 == 0 ? base : pair.next, nullptr));
    delta_s.push_back(i % 2 == 0 ? session.publish(pair.next, pair.there.get())
                                 : session.publish(base, pair.back.get()));
  }
  const BridgeCounters c = session.counters();
  const auto expected = static_cast<uint64_t>(repetitions + 1) * static_cast<uint64_t>(workers);
  if (c.delta_staged - staged != expected || c.delta_refetched != 0) {
    throw std::runtime_error("delta: staged " + std::to_string(c.delta_staged - staged) + " of " +
                             std::to_string(expected) + ", refetched " +
                             std::to_string(c.delta_refetched));
  }
  const double seconds = median_after_warm_up(delta_s);
  const double dense = median_after_warm_up(dense_s);
  double total = 0;
  for (const Buffer& b : base->tensors) {
    total += static_cast<double>(b.bytes.size());
  }
  rows.push_back({{"what", "publish delta"},
                  {"curve", keys != nullptr},
                  {"workers", workers},
                  {"density", pair.density},
                  {"seconds", seconds},
                  {"seconds_slowest", *std::max_element(delta_s.begin() + 1, delta_s.end())},
                  {"dense_seconds", dense},
                  {"encode_seconds", pair.encode_seconds},
                  {"of_dense_time", seconds / dense},
                  {"of_dense_time_with_encode", (seconds + pair.encode_seconds) / dense},
                  {"of_dense_bytes", pair.payload_bytes / total},
                  {"bytes_per_change", pair.payload_bytes / pair.changes}});
}

}  // namespace

void run_publish(const Options& options, const Keys* keys, nlohmann::json& rows) {
  const Words words = normal_words(kTensorElements);
  const Snapshot base = make_weights(words, options.snapshot_mib, 0);
  std::vector<Pair> pairs;
  for (const double density : {0.01, 0.03}) {
    pairs.emplace_back(base, words, options.snapshot_mib, density);
  }
  for (const int workers : options.workers) {
    Session session(workers, keys);
    run_dense(session, base, options.repetitions, workers, keys, rows);
    for (const Pair& pair : pairs) {
      run_delta(session, base, pair, options.repetitions, workers, keys, rows);
    }
  }
}

}  // namespace ringside::bench
