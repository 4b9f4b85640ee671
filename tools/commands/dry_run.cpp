#include "tools/commands/dry_run.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "rl/setup/sharding.h"
#include "tools/commands/installed_files.h"
#include "tools/commands/run_launch.h"
#include "tools/dry_run/dry_run.h"
#include "tools/dry_run/small_config.h"

namespace ringside::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes kLongest{5};
constexpr int64_t kFewestMaxRanks = 4;  // small ranks run on a machine with fewer cores too

fs::path make_temporary_folder() {
  std::string name = (fs::temp_directory_path() / "ringside-dry-run-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error(name + ": cannot be made; TMPDIR names the folder for it");
  }
  return name;
}

int64_t max_ranks() {
  return std::max<int64_t>(kFewestMaxRanks, std::thread::hardware_concurrency());
}

std::string layout_of(const rl::ParallelConfig& parallel) {
  const std::string sequence = parallel.context_parallel_size > 0
                                   ? "context " + std::to_string(parallel.context_parallel_size)
                                   : "ring " + std::to_string(parallel.ringattn_parallel_size) +
                                         " x ulysses " +
                                         std::to_string(parallel.ulysses_parallel_size);
  const std::string stages =
      parallel.pipeline_parallel_size > 1
          ? "pipeline " + std::to_string(parallel.pipeline_parallel_size) + " x "
          : "";
  return stages + "replicas " +
         std::to_string(std::max<int64_t>(1, parallel.data_parallel_replicate_size)) +
         " x shards " + std::to_string(parallel.data_parallel_shard_size) + " x " + sequence +
         (parallel.tensor_parallel_size > 1
              ? " x tensor " + std::to_string(parallel.tensor_parallel_size)
              : "");
}

// The metrics of the last step.
nlohmann::json last_metrics(const fs::path& run_dir) {
  std::ifstream in(run_dir / "metrics.jsonl");
  std::string line, last;
  while (std::getline(in, line)) {
    last = line;
  }
  return last.empty() ? nlohmann::json::object() : nlohmann::json::parse(last);
}

std::string summary(const PreparedDryRun& prepared, int ranks, Clock::duration spent) {
  const nlohmann::json metrics = last_metrics(prepared.run_dir);
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << "dry run passed: " << metrics.value("step", 0)
       << " steps in " << std::chrono::duration<double>(spent).count() << " s on " << ranks
       << (ranks == 1 ? " rank (" : " ranks (") << layout_of(prepared.config.parallel) << ")";
  text << std::defaultfloat << std::setprecision(4);
  for (const char* name : {"reward", "loss", "grad_norm"}) {
    if (metrics.contains(name)) {
      text << ", " << name << " " << metrics.at(name).get<double>();
    }
  }
  return text.str();
}

int launch_small_run(const PreparedDryRun& prepared, int ranks) {
  RunProcesses run;
  run.words = {prepared.recipe.string()};
  run.run_dir = prepared.run_dir;
  run.num_trainers = ranks;
  run.with_workers = prepared.rollouts.empty();
  if (!run.with_workers) {
    run.trainer_options = {"--rollouts", prepared.rollouts.string()};
  }
  LaunchOptions options = launch_options(prepared.config, run);
  options.longest = kLongest;
  return report_launch(launch(options));
}

int run_prepared(const PreparedDryRun& prepared, int nproc) {
  const bool live = prepared.rollouts.empty();
  std::vector<std::string> notes;
  const rl::LoadedConfig small = rl::load_config({prepared.recipe}, {});
  const rl::PreflightScope scope{
      .workers_here = live, .brings_rollouts = !live, .rollouts = prepared.rollouts};
  if (!small.ok() || !pass_preflight(small, scope, notes)) {
    for (const std::string& error : small.errors) {
      std::cerr << error << "\n";
    }
    return kExitUsage;
  }
  const int ranks = trainer_processes(small.config, nproc);
  const auto start = Clock::now();
  const int code = launch_small_run(prepared, ranks);
  if (code == kExitOk) {
    std::cout << summary(prepared, ranks, Clock::now() - start) << "\n";
  }
  return code;
}

}  // namespace

int dry_run(const rl::LoadedConfig& loaded, bool recorded_rollouts, int nproc) {
  DryRunRequest request;
  request.config = loaded.config;
  request.recorded_rollouts = recorded_rollouts;
  request.max_ranks = max_ranks();
  request.shapes = installed_files() / "configs" / "models";
  if (request.config.sp.virtual_ranks == 0) {
    rl::fix_replicas(request.config.parallel, nproc);
    nproc = 0;
  }
  request.dir = make_temporary_folder();
  const PreparedDryRun prepared = prepare_dry_run(request);
  std::cout << "dry run; what differs from the recipe:\n";
  for (const std::string& line : prepared.lines) {
    std::cout << "  " << line << "\n";
  }
  std::cout << std::flush;
  const int code = run_prepared(prepared, nproc);
  if (code == kExitOk) {
    fs::remove_all(request.dir);
  } else {
    std::cerr << "dry run failed; its recipe, model and data are in " << request.dir.string()
              << "\n";
  }
  return code;
}

}  // namespace ringside::tools
