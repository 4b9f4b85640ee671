// Bench of rollouts from WorkerEndpoint::send_rollout to TrainerEndpoint::take, journalled and
// acknowledged.
#include <stdexcept>
#include <thread>

#include "rl/rollouts/step_policy.h"
#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/weights/snapshot.h"
#include "rollout_bridge/worker/worker_queue.h"
#include "tools/bench/bridge/bench.h"

namespace ringside::bench {
namespace {

using namespace bridge;
constexpr std::chrono::seconds kPatience{60};
constexpr int32_t kGroupSize = 40;

Rollout make_rollout(int64_t group, int32_t sample, int64_t tokens) {
  Rollout r;
  r.rollout_id = std::to_string(group) + "-" + std::to_string(sample);
  r.group_id = group;
  r.group_size = kGroupSize;
  r.sample_index = sample;
  r.prompt_id = "prompt/" + std::to_string(group);
  const int64_t completion = tokens - tokens / 4;
  for (int64_t i = 0; i < tokens / 4; ++i) {
    r.prompt_ids.push_back((group + i * 7919) % 150000);
  }
  for (int64_t i = 0; i < completion; ++i) {
    r.completion_ids.push_back((sample + i * 104729) % 150000);
    r.logprobs.push_back(-static_cast<float>(i % 1000) / 64.0F);
  }
  r.versions = {{0, 0, completion}};
  r.trainer_term = 1;
  return r;
}

// A trainer and one worker that has installed version 0.
class Session {
 public:
  // groups: of each repetition, which is a step.
  Session(FsyncPolicy fsync, int64_t groups, const Keys* keys)
      : groups_(groups),
        trainer_([&] {
          const int64_t samples = groups * kGroupSize;
          TrainerOptions o = trainer_options(folder_.path(), keys);
          o.policy = rl::step_policy({.prompts_per_step = groups,
                                      .group_size = kGroupSize,
                                      .max_staleness = int64_t{1} << 30});
          o.journal.fsync = fsync;
          o.max_queued_rollouts = samples;
          return o;
        }()),
        worker_([&] {
          WorkerOptions o = worker_options(trainer_.rollout_address(), "worker", keys);
          o.capacity_samples = groups * kGroupSize;
          return o;
        }()) {
    trainer_.publish(make_snapshot(
        "bench", 1, 0, {{"weight", "F32", {1}, Buffer::own(std::vector<float>{1.0F})}}));
    while (true) {
      const auto event = worker_.poll(kPatience);
      if (!event) {
        throw std::runtime_error("ingress: the worker was not offered weights");
      }
      if (const auto* ready = std::get_if<WeightsReady>(&*event)) {
        (void)worker_.commit_weights(0, ready->snapshot->manifest.root_hash);
        break;
      }
    }
    if (!wait_for_commit(trainer_, 0, 1, kPatience)) {
      throw std::runtime_error("ingress: no commit");
    }
  }

  // Requests the samples, then sends and takes them. Returns the seconds of sending and taking.
  double repetition(int64_t tokens) {
    const int64_t step = ++step_;
    std::vector<Rollout> rollouts;
    for (int64_t g = (step - 1) * groups_; g < step * groups_; ++g) {
      for (int32_t s = 0; s < kGroupSize; ++s) {
        rollouts.push_back(make_rollout(g, s, tokens));
      }
    }
    trainer_.open_steps(step, step);
    const auto until = Clock::now() + kPatience;
    WorkerQueue granted;
    while (granted.queued() < rollouts.size() && Clock::now() < until) {
      const auto event = worker_.poll(std::chrono::milliseconds(10));
      const auto* work = event ? std::get_if<Granted>(&*event) : nullptr;
      if (work != nullptr) {
        granted.on_granted(*work);
      }
    }
    const auto start = Clock::now();
    std::jthread sender([&] {
      for (Rollout& r : rollouts) {
        (void)worker_.send_rollout(std::move(r), kPatience);
      }
    });
    if (!trainer_.take(step, kPatience)) {
      throw std::runtime_error("ingress: a rollout did not arrive");
    }
    const double seconds = seconds_since(start);
    sender.join();
    trainer_.checkpointed(step);
    return seconds;
  }

  // Duplicate or rejected samples would make the figures meaningless.
  void check(std::size_t expected) const {
    const BridgeCounters c = trainer_.counters();
    if (c.accepted != expected || c.duplicate != 0 || c.busy != 0) {
      throw std::runtime_error("ingress: accepted " + std::to_string(c.accepted) + " of " +
                               std::to_string(expected) + ", duplicate " +
                               std::to_string(c.duplicate) + ", busy " + std::to_string(c.busy));
    }
  }

 private:
  int64_t groups_;
  ScratchFolder folder_;
  TrainerEndpoint trainer_;
  WorkerEndpoint worker_;
  int64_t step_ = 0;
};

// The same rollouts as frames on the wire.
struct Wire {
  std::vector<Payload> payloads;
  std::vector<std::string> headers;
  std::vector<Frames> messages;
  double bytes = 0;

  Wire(int64_t groups, int64_t tokens) {
    for (int64_t i = 0; i < groups * kGroupSize; ++i) {
      payloads.push_back(encode_rollout(
          make_rollout(i / kGroupSize, static_cast<int32_t>(i % kGroupSize), tokens)));
      const auto seq = static_cast<uint64_t>(i);
      headers.push_back(
          pack_header({MessageType::kRollout, "bench", 1, "worker", 1, seq}, payloads.back()));
    }
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      Frames frames = {std::as_bytes(std::span(headers[i]))};
      for (const Buffer& b : payloads[i].buffers) {
        frames.push_back(b.bytes);
      }
      for (const auto frame : frames) {
        bytes += static_cast<double>(frame.size());
      }
      messages.push_back(std::move(frames));
    }
  }
};

void run_size(const Options& options, int64_t tokens, int64_t groups, const Keys* keys,
              nlohmann::json& rows) {
  const Wire wire(groups, tokens);
  const auto count = static_cast<std::size_t>(groups * kGroupSize);
  Session batch(FsyncPolicy::kInterval, groups, keys);
  Session never(FsyncPolicy::kOff, groups, keys);
  std::vector<double> batch_s, never_s, raw_s, copy_s;
  for (int i = 0; i <= options.repetitions;
       ++i) {  // interleaved, so that other load affects all equally
    copy_s.push_back(memcpy_seconds(wire.messages, 1));
    raw_s.push_back(raw_push_seconds(wire.messages, keys));
    batch_s.push_back(batch.repetition(tokens));
    never_s.push_back(never.repetition(tokens));
  }
  batch.check(count * batch_s.size());
  never.check(count * never_s.size());
  const double raw = median_after_warm_up(raw_s);
  const double copy = median_after_warm_up(copy_s);
  for (const auto& [fsync, all] : {std::pair{"batch", batch_s}, std::pair{"never", never_s}}) {
    const double seconds = median_after_warm_up(all);
    rows.push_back({{"what", "ingress " + std::to_string(tokens) + " tokens, fsync " + fsync},
                    {"curve", keys != nullptr},
                    {"samples", count},
                    {"bytes", wire.bytes},
                    {"seconds", seconds},
                    {"seconds_slowest", *std::max_element(all.begin() + 1, all.end())},
                    {"samples_per_s", static_cast<double>(count) / seconds},
                    {"MB_per_s", wire.bytes / seconds / 1e6},
                    {"raw_MB_per_s", wire.bytes / raw / 1e6},
                    {"memcpy_MB_per_s", wire.bytes / copy / 1e6},
                    {"of_raw", raw / seconds},
                    {"of_memcpy", copy / seconds}});
  }
}

}  // namespace

void run_ingress(const Options& options, const Keys* keys, nlohmann::json& rows) {
  const auto scaled = [&](int64_t groups) {
    return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(groups) * options.scale));
  };
  run_size(options, 32768, scaled(15), keys, rows);
  run_size(options, 256, scaled(200), keys, rows);
}

}  // namespace ringside::bench
