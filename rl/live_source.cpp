#include "rl/live_source.h"

#include <algorithm>

#include "rl/endpoint_file.h"
#include "rl/rollout_queue.h"
#include "rl/training_run.h"
#include "rl/weight_sync.h"
#include "rollout_bridge/run_epoch.h"
#include "rollout_bridge/trainer_endpoint.h"

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCloseDeadline{5000};

bridge::FsyncPolicy fsync_policy(JournalFsync policy) {
  switch (policy) {
    case JournalFsync::kAlways:
      return bridge::FsyncPolicy::kEvery;
    case JournalFsync::kBatch:
      return bridge::FsyncPolicy::kInterval;
    case JournalFsync::kNever:
      return bridge::FsyncPolicy::kOff;
  }
  throw std::invalid_argument("unknown journal fsync policy");
}

milliseconds from_seconds(double seconds) { return milliseconds(static_cast<int64_t>(seconds * 1000)); }

bridge::TrainerOptions endpoint_options(const Config& config, const std::string& run_id,
                                        const std::filesystem::path& directory) {
  bridge::TrainerOptions options;
  options.rollout_address = config.bridge.rollout_address;
  options.weights_address = config.bridge.weights_address;
  options.run_id = run_id;
  options.run_epoch = bridge::next_run_epoch(directory);
  options.journal_directory = directory / "journal";
  options.fsync = fsync_policy(config.bridge.journal_fsync);
  options.heartbeat_interval = from_seconds(config.bridge.heartbeat_s);
  options.worker_timeout = from_seconds(config.bridge.worker_timeout_s);
  // Room for everything that may be under way, and for a replayed journal beside it.
  options.max_queued_rollouts = std::max<int64_t>(
      options.max_queued_rollouts,
      2 * (1 + config.algorithm.max_staleness) * config.rollout.prompts_per_step * config.rollout.group_size);
  return options;
}

class LiveSource final : public RolloutSource {
 public:
  LiveSource(const Config& config, bridge::TrainerOptions options,
             const std::filesystem::path& directory, int64_t restored_version, int64_t last_step)
      : config_(config),
        run_id_(options.run_id),
        run_epoch_(options.run_epoch),
        last_step_(last_step),
        granted_to_step_(restored_version),
        consumed_to_step_(restored_version),
        queue_({config.rollout.prompts_per_step, config.rollout.group_size,
                config.algorithm.max_staleness, options.run_epoch, restored_version},
               restored_version + 1),
        endpoint_(std::move(options)) {
    write_endpoint_file(directory / "endpoint.json",
                        {endpoint_.rollout_address(), endpoint_.weights_address(), run_id_, run_epoch_});
  }

  void publish(const engine::Decoder& decoder, int64_t version, int64_t next_step) override {
    if (next_step > last_step_) {
      return;  // nothing will be sampled under these weights
    }
    const PublishDType dtype = config_.weights.publish_dtype;
    endpoint_.publish(snapshot_weights(decoder, scalar_type(published(dtype)), run_id_, run_epoch_, version));
    grant_to_step(std::min(last_step_, next_step + config_.algorithm.max_staleness));
  }

  std::optional<std::vector<bridge::Rollout>> poll(int64_t step, milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      if (auto rollouts = queue_.take(step)) {
        return rollouts;
      }
      const auto left =
          std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left <= milliseconds::zero()) {
        return std::nullopt;
      }
      if (auto rollout = endpoint_.pop(left)) {
        admit(std::move(*rollout));
      }
    }
  }

  std::vector<std::string> drain_messages() override {
    std::vector<std::string> messages = std::exchange(messages_, {});
    for (const bridge::BridgeEvent& event : endpoint_.drain_events()) {
      if (!event.routine) {
        messages.push_back(event.text);
      }
    }
    const bool alone = !finished_ && endpoint_.workers().empty();
    if (alone && !said_alone_) {
      messages.push_back("no rollout worker is connected; waiting at " + endpoint_.rollout_address());
    }
    said_alone_ = alone;
    return messages;
  }

  void checkpointed(int64_t step) override {
    std::vector<int64_t> groups;
    for (int64_t g = consumed_to_step_ * config_.rollout.prompts_per_step;
         g < step * config_.rollout.prompts_per_step; ++g) {
      groups.push_back(g);
    }
    endpoint_.mark_consumed(groups);
    consumed_to_step_ = step;
  }

  void finish() override {
    finished_ = true;
    endpoint_.end("the run is finished");
    endpoint_.close(kCloseDeadline);
  }

 private:
  DType published(PublishDType dtype) const {
    switch (dtype) {
      case PublishDType::kModel:
        return config_.model.dtype;
      case PublishDType::kFloat32:
        return DType::kFloat32;
      case PublishDType::kBFloat16:
        return DType::kBFloat16;
      case PublishDType::kFloat64:
        return DType::kFloat64;
    }
    throw std::invalid_argument("unknown publish dtype");
  }

  bridge::GroupGrant grant_of(int64_t group_id) const {
    const int64_t oldest = queue_.step_of(group_id) - 1 - config_.algorithm.max_staleness;
    return {group_id, static_cast<int32_t>(config_.rollout.group_size), std::max<int64_t>(0, oldest)};
  }

  void grant_to_step(int64_t step) {
    std::vector<bridge::GroupGrant> grants;
    for (int64_t g = granted_to_step_ * config_.rollout.prompts_per_step;
         g < step * config_.rollout.prompts_per_step; ++g) {
      grants.push_back(grant_of(g));
    }
    endpoint_.grant(grants);
    granted_to_step_ = std::max(granted_to_step_, step);
  }

  void admit(bridge::Rollout rollout) {
    const int64_t group = rollout.group_id;
    const std::string id = rollout.rollout_id;
    switch (queue_.add(std::move(rollout))) {
      case Admission::kAccepted:
      case Admission::kDuplicate:
        return;
      case Admission::kFinished:
        endpoint_.mark_consumed(std::vector<int64_t>{group});
        return;
      case Admission::kStale:
      case Admission::kTooEarly:
        // Only a replayed journal brings these: the whole group is sampled again under present weights.
        messages_.push_back("dropped rollout " + id + " of group " + std::to_string(group) +
                            " from before the restart: too stale; its group is sampled again");
        endpoint_.mark_consumed(std::vector<int64_t>{group});
        if (queue_.step_of(group) <= granted_to_step_) {
          endpoint_.grant({grant_of(group)});
        }
        return;
    }
  }

  Config config_;
  std::string run_id_;
  int64_t run_epoch_;
  int64_t last_step_;
  int64_t granted_to_step_;   // groups of the steps up to here are granted
  int64_t consumed_to_step_;  // and of the steps up to here are part of a checkpoint
  RolloutQueue queue_;
  std::vector<std::string> messages_;
  bool said_alone_ = false;
  bool finished_ = false;
  bridge::TrainerEndpoint endpoint_;
};

}  // namespace

std::unique_ptr<RolloutSource> make_live_source(const Config& config, const std::string& run_id,
                                                const std::filesystem::path& run_dir,
                                                int64_t restored_version, int64_t last_step) {
  const auto directory = run_dir / "bridge";
  std::filesystem::create_directories(directory);
  return std::make_unique<LiveSource>(config, endpoint_options(config, run_id, directory), directory,
                                      restored_version, last_step);
}

}  // namespace ringside::rl
