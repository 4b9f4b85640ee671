#include "tools/commands/run_launch.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "rl/config/task.h"
#include "rl/report/log.h"
#include "rl/setup/model_device.h"
#include "rl/setup/sharding.h"
#include "rl/trainer/checkpoint.h"

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
  const bool samples = run.with_workers && rl::samples_completions(config);
  for (int64_t worker = 0; samples && worker < config.rollout.num_workers; ++worker) {
    options.worker_args.push_back(
        arguments("rollout", run, {"--worker-id", "worker" + std::to_string(worker)}));
  }
  options.progress = [metrics = run.run_dir / "metrics.jsonl"] {
    std::error_code absent;
    const auto size = std::filesystem::file_size(metrics, absent);
    return absent ? int64_t{0} : static_cast<int64_t>(size);
  };
  options.report = [](const std::string& sentence) { rl::log::warn(sentence); };
  options.copy_line = rl::log::copy_line;
  options.advice = [run_dir = run.run_dir](int signal) {
    return advice_after_kill(run_dir, signal);
  };
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

std::string run_directory_problem(const std::filesystem::path& run_dir) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path existing = fs::absolute(run_dir);
  while (!fs::exists(existing, ignored) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  if (!fs::is_directory(existing, ignored)) {
    return "--run-dir " + run_dir.string() + ": " + existing.string() + " is a file";
  }
  if (access(existing.c_str(), W_OK | X_OK) != 0) {
    return "--run-dir " + run_dir.string() + ": " + existing.string() +
           " cannot be written to: " + std::generic_category().message(errno);
  }
  return "";
}

bool is_relayed() {
  const char* launched = std::getenv(kLaunchedVariable);
  return launched != nullptr && std::string_view(launched) == "relayed";
}

void log_to_run_directory(const std::filesystem::path& run_dir) {
  std::error_code failed;
  std::filesystem::create_directories(run_dir, failed);
  const auto file = run_dir / "run.log";
  if (failed || !std::ofstream(file, std::ios::app)) {
    throw std::runtime_error(
        "--run-dir " + run_dir.string() + ": cannot be written to: " +
        (failed ? failed : std::error_code(errno, std::generic_category())).message());
  }
  rl::log::copy_warnings_to((run_dir / "warnings.log").string());
  if (!is_relayed()) {
    rl::log::copy_lines_to(file.string());
  }
}

std::string advice_after_kill(const std::filesystem::path& run_dir, int signal) {
  std::optional<std::filesystem::path> newest;
  try {
    newest = rl::latest_checkpoint(run_dir);
  } catch (const std::exception&) {
    // The next start reports a damaged checkpoint.
  }
  const std::string less = signal == SIGKILL
                               ? "; for less memory: model.recompute=full, fewer "
                                 "train.tokens_per_micro_batch, fewer rollout.num_workers"
                               : "";
  return less + (newest ? "; run the same command to resume from " + newest->string()
                        : "; there is no checkpoint yet: the same command starts from step 1");
}

int report_launch(const LaunchResult& result) {
  if (!result.ok() && !result.error.empty()) {
    rl::log::error(result.error);
  }
  return result.exit_code;
}

}  // namespace ringside::tools
