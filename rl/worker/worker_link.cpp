#include "rl/worker/worker_link.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "rl/config/task.h"
#include "rl/report/log.h"
#include "rl/worker/trainer_address.h"
#include "rollout_bridge/transport/curve_keys.h"

namespace ringside::rl {
namespace {

bridge::FinishReason wire_reason(engine::StopReason reason) {
  switch (reason) {
    case engine::StopReason::kStop:
      return bridge::FinishReason::kStop;
    case engine::StopReason::kLength:
      return bridge::FinishReason::kLength;
    case engine::StopReason::kAborted:
      return bridge::FinishReason::kAborted;
  }
  throw std::invalid_argument("unknown finish reason");
}

// The beginning of a text as valid UTF-8: an exception's message may hold any bytes.
std::string wire_text(const std::string& text) {
  constexpr std::size_t kMostBytes = 1000;
  const std::string quoted = nlohmann::json(text.substr(0, kMostBytes))
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(quoted).get<std::string>();
}

}  // namespace

int64_t samples_per_batch(const Config& config) {
  const int64_t groups = config.rollout.prompts_per_step;
  return (groups + config.rollout.num_workers - 1) / config.rollout.num_workers *
         sampled_group_size(config);
}

int64_t wanted_samples(const Config& config) {
  const RolloutConfig& rollout = config.rollout;
  if (rollout.server == RolloutServer::kEmbedded) {
    return samples_per_batch(config) * (config.algorithm.max_staleness > 0 ? 2 : 1);
  }
  const int64_t at_once = rollout.server_options.concurrency;
  return at_once + at_once / 4 + sampled_group_size(config);
}

bridge::WorkerOptions worker_options(const Config& config, const WorkerSettings& settings,
                                     bridge::Settings shared) {
  bridge::WorkerOptions options;
  options.settings = std::move(shared);
  options.worker_id = settings.worker_id;
  options.capacity_samples = wanted_samples(config);
  const CurveConfig& curve = config.bridge.curve;
  if (!curve.worker_secret.empty()) {
    options.curve = bridge::CurveClient{bridge::read_secret_key(curve.worker_secret),
                                        bridge::read_public_key(curve.trainer_public)};
    if (options.curve->server_key == options.curve->own.secret_key) {
      throw std::runtime_error("bridge.curve.trainer_public: " + curve.trainer_public +
                               " holds this worker's secret key");
    }
  }
  if (settings.endpoint_file.empty()) {
    options.rollout_address = config.bridge.rollout_address;
    // Without a port it is the one that WELCOME names.
    if (names_port(config.bridge.weights_address)) {
      options.weights_address = config.bridge.weights_address;
    }
    return options;
  }
  options.rollout_address = wait_for_trainer(settings).rollout_address;
  // A restarted trainer may listen on another port. WELCOME names its weights address.
  options.resolve = [file = settings.endpoint_file]() -> std::optional<std::string> {
    const auto now = current_trainer(file);
    return now ? std::optional(now->rollout_address) : std::nullopt;
  };
  return options;
}

bridge::Rollout make_rollout(const std::string& worker_id, const SampleJob& job,
                             const ScoredCompletion& scored,
                             std::vector<bridge::VersionSpan> versions) {
  bridge::Rollout r =
      rollout_of_job(worker_id, job, versions.empty() ? -1 : versions.front().version);
  r.prompt_ids = scored.prompt_ids;
  r.completion_ids = scored.completion.ids;
  r.logprobs = scored.completion.logprobs;
  r.versions = std::move(versions);
  r.finish_reason = wire_reason(scored.completion.finish);
  r.rewards = scored.scores.raw;
  if (!scored.scores.failure.empty()) {
    r.failure = wire_text(scored.scores.failure);
    r.finish_reason = bridge::FinishReason::kError;
    r.loss_mask.assign(r.completion_ids.size(), 0);
  }
  return r;
}

void warn_of_failures(std::span<const bridge::Rollout> rollouts) {
  const auto failed = [](const bridge::Rollout& rollout) { return !rollout.failure.empty(); };
  const auto count = std::count_if(rollouts.begin(), rollouts.end(), failed);
  if (count > 0) {
    const auto first = std::find_if(rollouts.begin(), rollouts.end(), failed);
    log::warn(std::to_string(count) + " of " + std::to_string(rollouts.size()) +
              " samples have no score; " + first->rollout_id + ": " + first->failure);
  }
}

}  // namespace ringside::rl
