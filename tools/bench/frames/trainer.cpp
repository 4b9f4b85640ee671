// bench_frames trainer and bench_frames worker: a bridge with rollouts that are all known in
// advance.
#include <chrono>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>

#include "rollout_bridge/trainer/trainer_endpoint.h"
#include "rollout_bridge/weights/snapshot.h"
#include "rollout_bridge/worker/worker_endpoint.h"
#include "tools/bench/frames/bench.h"

namespace ringside::bench {
namespace {

using namespace bridge;
using namespace std::chrono_literals;

constexpr int32_t kGroupSize = 4;
constexpr std::size_t kAhead = 32;  // groups granted and not yet received
constexpr int64_t kGroupsAVersion = 200;
constexpr auto kSampling = 1ms;  // time per sample of the correct worker
constexpr std::size_t kFloats = 100'000;

// The correct worker's rollout: a function of its group, its sample index and its weights' version.
Rollout made(int64_t group, int32_t sample, int64_t version) {
  Rollout r;
  r.rollout_id = std::to_string(group) + "-" + std::to_string(sample);
  r.attempt = 0;
  r.group_id = group;
  r.group_size = kGroupSize;
  r.sample_index = sample;
  r.prompt_id = "p" + std::to_string(group);
  const int64_t length = 16 + (group * 7 + sample) % 50;
  for (int64_t i = 0; i < length; ++i) {
    r.prompt_ids.push_back((group + i) % 30000);
    r.completion_ids.push_back((group * 31 + sample * 17 + i) % 30000);
    r.logprobs.push_back(-static_cast<float>((group + i) % 100) / 16.0F);
  }
  r.temperature = r.top_p = 1.0F;
  r.top_k = 0;
  r.versions = {{version, 0, length}};
  r.trainer_term = 1;
  r.finish_reason = FinishReason::kStop;
  r.rewards = {{"reward", static_cast<double>(sample)}};
  return r;
}

bool is_right(Rollout r) {
  const Rollout expected = made(r.group_id, r.sample_index, r.versions.at(0).version);
  r.attempt = 0;  // a sample may have been given to another worker before
  return r == expected;
}

int64_t memory_kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1));
  }
  return -1;
}

nlohmann::json by_reason(const std::array<uint64_t, kReasonCount>& counts) {
  nlohmann::json out = nlohmann::json::object();
  for (std::size_t i = 0; i < kReasonCount; ++i) {
    if (counts[i] > 0) out[reason_name(static_cast<Reason>(i))] = counts[i];
  }
  return out;
}

class Owner {
 public:
  explicit Owner(std::filesystem::path folder) : folder_(std::move(folder)), endpoint_(options()) {
    publish();
    std::ofstream(folder_ / "endpoint.json.tmp")
        << nlohmann::json{{"rollout_address", endpoint_.rollout_address()},
                          {"weights_address", endpoint_.weights_address()},
                          {"run_id", "frames"},
                          {"trainer_term", 1}};
    std::filesystem::rename(folder_ / "endpoint.json.tmp", folder_ / "endpoint.json");
  }

  int run() {
    auto told = std::chrono::steady_clock::now();
    while (!(stopping() && open_.empty())) {
      grant();
      if (const auto rollout = endpoint_.pop(20ms)) take(*rollout);
      (void)endpoint_.drain_events();
      if (std::chrono::steady_clock::now() - told > 1s) {
        told = std::chrono::steady_clock::now();
        std::cout << line() << std::endl;
      }
    }
    endpoint_.end("the bench is over");
    std::this_thread::sleep_for(1s);  // for the last counters of the other processes
    std::cout << line() << std::endl;
    endpoint_.close(5s);
    return wrong_ == 0 ? 0 : 1;
  }

 private:
  TrainerOptions options() const {
    TrainerOptions o;
    o.run_id = "frames";
    o.trainer_term = 1;
    o.journal_directory = folder_ / "journal";
    return o;
  }
  bool stopping() const { return std::filesystem::exists(folder_ / "stop"); }

  void publish() {
    std::vector<float> values(kFloats, static_cast<float>(version_ + 1));
    endpoint_.publish(make_snapshot(
        "frames", 1, ++version_,
        {{"w", "F32", {static_cast<int64_t>(kFloats)}, Buffer::own(std::move(values))}}));
  }

  void grant() {
    if (stopping() || open_.size() >= kAhead) return;
    if (granted_ > 0 && granted_ % kGroupsAVersion == 0) publish();
    open_[granted_];
    endpoint_.grant({{granted_++, kGroupSize, 0}});
  }

  void take(const Rollout& rollout) {
    if (rollout.trainer_term !=
        1) {  // what an earlier start might have asked for: no group is missing it
      ++of_other_starts_;
      return;
    }
    const auto group = open_.find(rollout.group_id);
    if (group == open_.end() || !is_right(rollout) ||
        !group->second.insert(rollout.sample_index).second) {
      ++wrong_;
      std::cerr << "frames: wrong or repeated rollout " << rollout.rollout_id << "\n";
      return;
    }
    ++popped_;
    if (group->second.size() < kGroupSize) return;
    endpoint_.mark_consumed(std::span(&group->first, 1));
    open_.erase(group);
  }

  nlohmann::json line() const {
    const BridgeCounters c = endpoint_.counters();
    return {{"rss_kib", memory_kib("VmRSS")},
            {"peak_kib", memory_kib("VmHWM")},
            {"messages", c.messages},
            {"rejected", by_reason(c.rejected)},
            {"weight_requests", c.weight_requests},
            {"weight_rejected", by_reason(c.weight_rejected)},
            {"received", c.received},
            {"accepted", c.accepted},
            {"duplicate", c.duplicate},
            {"requeued", c.requeued},
            {"lost_workers", c.lost_workers},
            {"granted_samples", granted_ * kGroupSize},
            {"popped", popped_},
            {"of_other_starts", of_other_starts_},
            {"wrong", wrong_},
            {"version", version_},
            {"sessions", endpoint_.workers().size()}};
  }

  std::filesystem::path folder_;
  TrainerEndpoint endpoint_;
  int64_t version_ = -1;
  int64_t granted_ = 0;
  std::map<int64_t, std::set<int32_t>> open_;  // groups granted and not whole: what is in of them
  int64_t popped_ = 0;
  int64_t of_other_starts_ = 0;
  uint64_t wrong_ = 0;
};

class Worker {
 public:
  explicit Worker(const Target& target) : endpoint_(options(target)) {}

  int run() {
    while (!over_) {
      if (const auto event = endpoint_.poll(100ms)) {
        std::visit([this](const auto& e) { on(e); }, *event);
      }
    }
    return status_;
  }

 private:
  static WorkerOptions options(const Target& target) {
    WorkerOptions o;
    o.rollout_address = target.rollout_address;
    o.worker_id = "good";
    o.capacity_samples = 16;
    return o;
  }
  void on(const Connected&) {}
  void on(const Disconnected& e) { std::cerr << "worker: disconnected: " << e.why << "\n"; }
  void on(const WeightsReady& e) {
    version_ = e.snapshot->manifest.version;
    const TensorEntry& t = e.snapshot->manifest.tensors[0];
    check(endpoint_.commit_weights(
        version_, root_hash_of({{t.name, t.dtype, t.shape, e.snapshot->tensors[0]}})));
  }
  void on(const Granted& e) {
    for (const GrantedGroup& group : e.groups) {
      for (const int32_t sample : group.sample_indices) {
        std::this_thread::sleep_for(kSampling);
        Rollout r = made(group.group_id, sample, version_);
        r.attempt = group.attempt;
        check(endpoint_.send_rollout(std::move(r), 60s));
      }
    }
  }
  void on(const RolloutRejected& e) {
    std::cerr << "worker: rejected " << e.rollout_id << ": " << e.reason << ": " << e.detail
              << "\n";
    status_ = 1;
  }
  void on(const Ended&) { over_ = true; }
  void on(const Failed& e) {
    std::cerr << "worker: " << e.reason << ": " << e.detail << "\n";
    status_ = 1;
    over_ = true;
  }
  void check(const Status& status) {
    if (!status) throw std::runtime_error(status.error().detail);
  }

  WorkerEndpoint endpoint_;
  int64_t version_ = -1;
  bool over_ = false;
  int status_ = 0;
};

}  // namespace

int run_trainer(const std::filesystem::path& folder) { return Owner(folder).run(); }
int run_worker(const Target& target) { return Worker(target).run(); }

}  // namespace ringside::bench
