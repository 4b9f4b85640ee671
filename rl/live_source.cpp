#include "rl/live_source.h"

#include <stdexcept>

#include "rl/data/rollout_rewards.h"
#include "rl/endpoint_file.h"
#include "rl/epoch_history.h"
#include "rl/rollout_intake.h"
#include "rl/training_run.h"
#include "rl/weight_sync.h"
#include "rollout_bridge/run_epoch.h"
#include "rollout_bridge/keys.h"
#include "rollout_bridge/weights.h"

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;

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
  const CurveConfig& curve = config.bridge.curve;
  if (!curve.trainer_secret.empty()) {
    options.curve = bridge::CurveServer{bridge::read_secret_key(curve.trainer_secret).secret_key,
                                        bridge::read_allowed_keys(curve.allowed_workers)};
  }
  return options;
}

DType published(const Config& config) {
  switch (config.weights.publish_dtype) {
    case PublishDType::kModel:
      return config.model.dtype;
    case PublishDType::kFloat32:
      return DType::kFloat32;
    case PublishDType::kBFloat16:
      return DType::kBFloat16;
    case PublishDType::kFloat64:
      return DType::kFloat64;
  }
  throw std::invalid_argument("unknown publish dtype");
}

QueueRules queue_rules(const Config& config, int64_t run_epoch, int64_t restored_version,
                       const std::filesystem::path& directory) {
  QueueRules rules;
  rules.prompts_per_step = config.rollout.prompts_per_step;
  rules.group_size = config.rollout.group_size;
  rules.max_staleness = config.algorithm.max_staleness;
  rules.run_epoch = run_epoch;
  rules.restored_version = restored_version;
  rules.newest_of_epoch = record_start(directory, run_epoch, restored_version);
  if (config.algorithm.dynamic_sampling == DynamicSampling::kRefill) {
    rules.refill_rounds = config.algorithm.dynamic_sampling_rounds;
    rules.total_reward = [recipe = parse_rewards(config.rollout.reward)](const bridge::Rollout& rollout) {
      return is_scored(rollout) ? std::optional(total_reward(rollout, recipe)) : std::nullopt;
    };
  }
  return rules;
}

class LiveSource final : public RolloutSource {
 public:
  LiveSource(const Config& config, const bridge::TrainerOptions& options, const QueueRules& rules,
             const std::filesystem::path& directory, int64_t last_step)
      : dtype_(scalar_type(published(config))),
        run_id_(options.run_id),
        run_epoch_(options.run_epoch),
        last_step_(last_step),
        chain_({config.weights.encoding == WeightEncoding::kAuto, config.weights.full_every}),
        intake_(options, rules, last_step) {
    write_endpoint_file(directory / "endpoint.json",
                        {intake_.rollout_address(), intake_.weights_address(), run_id_, run_epoch_});
  }

  void publish(const engine::Decoder& decoder, int64_t version, int64_t next_step) override {
    if (next_step > last_step_) {
      return;  // nothing will be sampled under these weights
    }
    auto snapshot = snapshot_weights(decoder, dtype_, run_id_, run_epoch_, version);
    // Here and not in the endpoint: comparing and compressing must not hold its lock.
    intake_.publish(chain_.extend(std::move(snapshot)), next_step);
  }

  std::optional<std::vector<bridge::Rollout>> poll(int64_t step, milliseconds timeout) override {
    return intake_.poll(step, timeout);
  }

  std::vector<std::string> drain_messages() override { return intake_.drain_messages(); }
  SourceCounters counters() const override { return intake_.counters(); }
  void checkpointed(int64_t step) override { intake_.checkpointed(step); }
  void finish() override { intake_.finish(); }

 private:
  at::ScalarType dtype_;
  std::string run_id_;
  int64_t run_epoch_;
  int64_t last_step_;
  bridge::DeltaChain chain_;  // holds the newest published version: one copy in host memory
  RolloutIntake intake_;
};

}  // namespace

std::unique_ptr<RolloutSource> make_live_source(const Config& config, const std::string& run_id,
                                                const std::filesystem::path& run_dir,
                                                int64_t restored_version, int64_t last_step) {
  const auto directory = run_dir / "bridge";
  std::filesystem::create_directories(directory);
  const bridge::TrainerOptions options = endpoint_options(config, run_id, directory);
  const QueueRules rules = queue_rules(config, options.run_epoch, restored_version, directory);
  return std::make_unique<LiveSource>(config, options, rules, directory, last_step);
}

}  // namespace ringside::rl
