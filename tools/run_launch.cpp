#include "tools/run_launch.h"

#include <iostream>
#include <stdexcept>

#include "rl/report/log.h"
#include "rl/setup/model_device.h"
#include "rl/setup/sharding.h"

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
  const bool samples = run.with_workers && config.algorithm.task != rl::Task::kSft;
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

int trainer_processes(const rl::Config& config, int nproc) {
  rl::ParallelConfig parallel = config.parallel;
  rl::fix_replicas(parallel, config.sp.virtual_ranks > 0 ? 0 : nproc);
  const auto ranks = static_cast<int>(parallel.world_size());
  const int processes = nproc == 0 ? ranks : nproc;
  const bool virtual_ranks =
      config.sp.virtual_ranks > 0 && processes < ranks && ranks % processes == 0;
  if (processes != ranks && !virtual_ranks) {
    throw std::invalid_argument(
        std::to_string(processes) + " processes do not fit the mesh: parallel.* asks for " +
        std::to_string(ranks) + " ranks" +
        (config.sp.virtual_ranks > 0 ? ", of which each process must carry equally many" : ""));
  }
  const std::string problem =
      virtual_ranks
          ? rl::virtual_ranks_problem(rl::model_device(config, /*local_rank=*/0), ranks / processes)
          : "";
  if (!problem.empty()) {
    throw std::invalid_argument(problem);
  }
  return processes;
}

bool check_nproc(const rl::Config& config, int nproc) {
  try {
    trainer_processes(config, nproc);
    return true;
  } catch (const std::invalid_argument& error) {
    std::cerr << "--nproc: " << error.what() << "\n";
    return false;
  }
}

int report_launch(const LaunchResult& result) {
  if (!result.ok() && !result.error.empty()) {
    rl::log::error(result.error);
  }
  return result.exit_code;
}

}  // namespace ringside::tools
