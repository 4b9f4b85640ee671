#include "rl/rollouts/trainer_options.h"

#include <chrono>
#include <cmath>

#include "rollout_bridge/transport/curve_keys.h"

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;

milliseconds from_seconds(double seconds) {
  return milliseconds(static_cast<int64_t>(seconds * 1000));
}
uint64_t from_mebibytes(int64_t count) { return static_cast<uint64_t>(count) << 20; }

}  // namespace

bridge::TrainerOptions trainer_options(const BridgeConfig& config, const std::string& run_id,
                                       int64_t trainer_term,
                                       const std::filesystem::path& journal_directory) {
  bridge::TrainerOptions options;
  options.rollout_address = config.rollout_address;
  options.weights_address = config.weights_address;
  options.run_id = run_id;
  options.trainer_term = trainer_term;
  options.journal.directory = journal_directory;
  options.journal.fsync = config.journal_fsync;
  options.journal.max_bytes = from_mebibytes(config.journal_max_mb);
  options.heartbeat_interval = from_seconds(config.heartbeat_s);
  options.worker_timeout = from_seconds(config.worker_timeout_s);
  options.pause_timeout = from_seconds(config.pause_timeout_s);
  options.assignment_timeout = from_seconds(config.assignment_timeout_s);
  options.max_queued_bytes = from_mebibytes(config.max_queued_mb);
  const CurveConfig& curve = config.curve;
  if (!curve.trainer_secret.empty()) {
    options.curve = bridge::CurveServer{bridge::read_secret_key(curve.trainer_secret).secret_key,
                                        bridge::read_allowed_keys(curve.allowed_workers)};
  }
  return options;
}

void set_stragglers(StepRules& rules, const RolloutConfig& config) {
  rules.straggler_timeout =
      milliseconds(static_cast<int64_t>(std::ceil(config.straggler_timeout_s * 1000)));
  rules.min_group_size = config.min_group_size;
}

}  // namespace ringside::rl
