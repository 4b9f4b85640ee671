#include "tools/run_launch.h"

#include "rl/report/log.h"

namespace ringside::tools {
namespace {

std::vector<std::string> arguments(const std::string& command, const RunProcesses& run,
                                   const std::vector<std::string>& options) {
  std::vector<std::string> words{command};
  words.insert(words.end(), run.words.begin(), run.words.end());
  words.insert(words.end(), {"--run-dir", run.run_dir.string()});
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

}  // namespace

LaunchOptions launch_options(const rl::Config& config, const RunProcesses& run) {
  LaunchOptions options;
  options.num_trainers = run.num_trainers;
  options.trainer_args = arguments("train", run, run.trainer_options);
  const bool samples = run.with_workers && config.algorithm.name != rl::AlgorithmName::kSft;
  for (int64_t worker = 0; samples && worker < config.rollout.num_workers; ++worker) {
    options.worker_args.push_back(
        arguments("rollout", run, {"--worker-id", "worker" + std::to_string(worker)}));
  }
  options.progress = [metrics = run.run_dir / "metrics.jsonl"] {
    std::error_code absent;
    const auto size = std::filesystem::file_size(metrics, absent);
    return absent ? std::int64_t{0} : static_cast<std::int64_t>(size);
  };
  options.report = [](const std::string& sentence) { rl::log::warn(sentence); };
  return options;
}

}  // namespace ringside::tools
