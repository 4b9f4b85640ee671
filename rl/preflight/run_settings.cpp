#include "rl/preflight/run_settings.h"

#include <charconv>
#include <exception>
#include <functional>

#include "rl/data/group_prompts.h"
#include "rl/rewards/python_reward.h"
#include "rl/rewards/reward.h"
#include "rl/rewards/weighted_rewards.h"
#include "rl/sampling/prompt_scorer.h"
#include "rl/setup/device_speeds.h"
#include "rl/setup/model_device.h"
#include "rl/worker/make_server.h"
#include "rollout_bridge/servers/http_json.h"
#include "rollout_bridge/transport/curve_keys.h"
#include "rollout_bridge/transport/zmq_io.h"

namespace ringside::rl {
namespace {

// Runs `open`; its exception becomes a mistake of `key`.
void try_open(const std::string& key, const std::function<void()>& open, PreflightReport& report) {
  try {
    open();
  } catch (const std::exception& error) {
    report.mistakes.push_back({key, error.what()});
  }
}

// "*" or 0 to 65535.
bool is_port(std::string_view text) {
  int port = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return text == "*" ||
         (error == std::errc{} && end == text.data() + text.size() && port >= 0 && port <= 65535);
}

void check_address(const std::string& key, const std::string& address, bool curve,
                   PreflightReport& report) {
  const bool tcp = address.starts_with("tcp://");
  const std::size_t colon = address.rfind(':');
  if (!tcp && !address.starts_with("ipc://")) {
    report.mistakes.push_back(
        {key, "is \"" + address + "\", expected tcp://HOST:PORT or ipc://PATH"});
  } else if (tcp && (colon < 6 || !is_port(std::string_view(address).substr(colon + 1)))) {
    report.mistakes.push_back(
        {key,
         "is \"" + address + "\", expected a port of 0 to 65535 at its end (0 = any free one)"});
  } else {
    try_open(
        key, [&] { bridge::check_bind_address(address, curve); }, report);
  }
}

}  // namespace

void check_device(const Config& config, PreflightReport& report) {
  // The first rank of a machine stands for the others; how many devices each machine has is known
  // there.
  if (const std::string problem = device_problem(config, /*local_rank=*/0); !problem.empty()) {
    report.mistakes.push_back({"model.device", problem});
  }
}

void check_device_speeds(const Config& config, PreflightReport& report) {
  try {
    (void)device_speeds(config);
  } catch (const std::exception& error) {
    report.mistakes.push_back({"sp.device_speeds", error.what()});
  }
}

void check_training_settings(const Config& config, const PreflightScope& scope,
                             PreflightReport& report) {
  const std::string why =
      ", which cannot be trained on: the trainer does not know which tokens the sampler had left "
      "out; expected ";
  const std::string otherwise = ", or algorithm.logprobs_over kept";
  const bool kept = config.algorithm.logprobs_over == "kept";
  if (config.rollout.top_p < 1.0 && !kept) {
    report.mistakes.push_back(
        {"rollout.top_p", "is " + text_of(config.rollout.top_p) + why + "1" + otherwise});
  }
  if (config.rollout.top_k > 0 && !kept) {
    report.mistakes.push_back(
        {"rollout.top_k", "is " + std::to_string(config.rollout.top_k) + why + "0" + otherwise});
  }
  if (scope.brings_rollouts && config.lora.publish == LoraPublish::kAdapter) {
    report.mistakes.push_back({"lora.publish",
                               "is adapter, but with --rollouts nothing is published, and with "
                               "--prime-rl whole models are; expected merged"});
  }
  if (scope.brings_rollouts && config.rollout.straggler_timeout_s > 0) {
    report.mistakes.push_back({"rollout.straggler_timeout_s",
                               "is " + text_of(config.rollout.straggler_timeout_s) +
                                   ", but the rollouts of --rollouts and --prime-rl come as whole "
                                   "groups; expected 0"});
  }
  if (scope.brings_rollouts && has_curriculum(config.data)) {
    report.mistakes.push_back(
        {"data.curriculum.mode",
         "is " + config.data.curriculum.mode +
             ", but with --rollouts and --prime-rl others choose the prompts; "
             "expected none"});
  }
  const bool given = config.algorithm.advantage.estimator == AdvantageEstimator::kGiven;
  if (given && scope.workers_here && !scope.brings_rollouts) {
    report.mistakes.push_back({"algorithm.advantage.estimator",
                               "is given, but the workers of `ringside run` bring no advantages; "
                               "expected another estimator, or "
                               "rollouts that bring them (`ringside train` with --rollouts FILE, "
                               "--prime-rl ADDRESS or a worker "
                               "of your own)"});
  }
}

void check_rewards(const Config& config, const ModelFiles& files, PreflightReport& report) {
  std::vector<WeightedReward> rewards;
  try {
    rewards = parse_rewards(config.rollout.reward);
  } catch (const std::invalid_argument&) {
    // check_combinations() reports it.
  }
  for (const WeightedReward& reward : rewards) {
    try_open(
        "rollout.reward",
        [&] {
          const RewardOptions options = reward_options(config.rollout, {});
          if (reward.is_python()) {
            PythonReward(reward, options).load();
          } else {
            make_reward(reward.name, options);
          }
        },
        report);
  }
  if (files.model && files.tokenizer) {
    try_open(
        "rollout.stop", [&] { stop_ids(config, *files.model, *files.tokenizer); }, report);
  }
}

void check_bridge(const Config& config, const PreflightScope& scope, PreflightReport& report) {
  const CurveConfig& curve = config.bridge.curve;
  const bool has_keys = !curve.trainer_secret.empty();
  check_address("bridge.rollout_address", config.bridge.rollout_address, has_keys, report);
  check_address("bridge.weights_address", config.bridge.weights_address, has_keys, report);
  if (has_keys) {
    try_open(
        "bridge.curve.trainer_secret", [&] { bridge::read_secret_key(curve.trainer_secret); },
        report);
    try_open(
        "bridge.curve.allowed_workers", [&] { bridge::read_allowed_keys(curve.allowed_workers); },
        report);
  }
  if (scope.workers_here && !curve.worker_secret.empty()) {
    try_open(
        "bridge.curve.worker_secret", [&] { bridge::read_secret_key(curve.worker_secret); },
        report);
    try_open(
        "bridge.curve.trainer_public", [&] { bridge::read_public_key(curve.trainer_public); },
        report);
  }
}

void check_server(const Config& config, PreflightReport& report) {
  if (config.rollout.server == RolloutServer::kEmbedded) {
    return;
  }
  const ServerConfig& server = config.rollout.server_options;
  try_open(
      "rollout.server_options.url", [&] { bridge::HttpJson(server.url, "", 1); }, report);
  try_open(
      "rollout.server_options.api_key_file", [&] { server_options(config, 1); }, report);
  if (server.weights == ServerWeights::kRestart && server.start_command.empty()) {
    report.mistakes.push_back({"rollout.server_options.start_command",
                               "is not set, but rollout.server_options.weights is restart; "
                               "expected the command line that serves {model} at {port}"});
  }
}

}  // namespace ringside::rl
