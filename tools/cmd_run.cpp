#include "tools/cmd_run.h"

#include <memory>

#include "rl/report/log.h"
#include "rl/trainer/run_directory.h"
#include "tools/distributed.h"
#include "tools/launch/launcher.h"
#include "tools/start_plan.h"

namespace ringside::tools {
namespace {

struct RunOptions {
  std::vector<std::string> words;
  std::filesystem::path run_dir;
  int64_t steps = 0;
  int nproc = 0;
  bool accept_changes = false;
};

std::vector<std::string> trainer_arguments(const RunOptions& options) {
  std::vector<std::string> arguments{"train"};
  arguments.insert(arguments.end(), options.words.begin(), options.words.end());
  arguments.insert(arguments.end(), {"--run-dir", options.run_dir.string()});
  if (options.steps > 0) {
    arguments.insert(arguments.end(), {"--steps", std::to_string(options.steps)});
  }
  if (options.accept_changes) {
    arguments.emplace_back("--accept-changes");
  }
  return arguments;
}

std::vector<std::string> worker_arguments(const RunOptions& options, int64_t worker) {
  std::vector<std::string> arguments{"rollout"};
  arguments.insert(arguments.end(), options.words.begin(), options.words.end());
  arguments.insert(arguments.end(), {"--run-dir", options.run_dir.string(), "--worker-id",
                                     "worker" + std::to_string(worker)});
  return arguments;
}

// Removes the addresses of an earlier run: workers wait for the trainer's addresses, and old ones
// would send them to closed ports.
void remove_old_addresses(const std::filesystem::path& run_dir) {
  if (!std::filesystem::exists(run_dir)) {
    return;
  }
  const rl::RunDirectoryLock nobody_is_at_work(run_dir);
  std::filesystem::remove(run_dir / "bridge" / "endpoint.json");
}

// Applies --steps as `train` does.
rl::StartPlan plan_start(const RunOptions& options, rl::LoadedConfig loaded) {
  if (options.steps > 0 && loaded.origins.at("train.steps") == "default") {
    loaded.config.train.steps = options.steps;
  }
  return rl::plan_start(options.run_dir, loaded.config,
                        options.steps > 0 ? options.steps : loaded.config.train.steps,
                        options.accept_changes);
}

int run(const RunOptions& options) {
  const auto loaded = load_or_print_errors(split_inputs(options.words));
  if (!loaded) return kExitUsage;
  if (const auto code = exit_code_of(plan_start(options, *loaded))) return *code;
  remove_old_addresses(options.run_dir);
  std::vector<std::string> notes;
  if (!pass_preflight(*loaded, {}, notes)) return kExitUsage;
  for (const std::string& note : notes) {
    rl::log::info(note);
  }
  const int num_processes = trainer_processes(loaded->config, options.nproc);
  LaunchOptions launch_options;
  launch_options.num_trainers = num_processes;
  launch_options.trainer_args = trainer_arguments(options);
  const bool samples = loaded->config.algorithm.name != rl::AlgorithmName::kSft;
  const int64_t num_workers = samples ? loaded->config.rollout.num_workers : 0;
  for (int64_t worker = 0; worker < num_workers; ++worker) {
    launch_options.worker_args.push_back(worker_arguments(options, worker));
  }
  launch_options.progress = [metrics = options.run_dir / "metrics.jsonl"] {
    std::error_code absent;
    const auto size = std::filesystem::file_size(metrics, absent);
    return absent ? std::int64_t{0} : static_cast<std::int64_t>(size);
  };
  launch_options.report = [](const std::string& sentence) { rl::log::warn(sentence); };
  return report_launch(launch(launch_options));
}

}  // namespace

void add_run_command(CommandContext& context) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = context.app.add_subcommand(
      "run", "Start trainer ranks and rollout workers on this machine and monitor them");
  command->add_option("inputs", options->words, "recipes (YAML), and key.sub=value overrides")
      ->required();
  command
      ->add_option("--run-dir", options->run_dir,
                   "metrics, checkpoints and the bridge's journal go here")
      ->required();
  command
      ->add_option("--steps", options->steps,
                   "stop after this many steps in all (default: train.steps)")
      ->check(at_least_one());
  command
      ->add_option("--nproc", options->nproc,
                   "trainer processes (default: one for each rank of parallel.*; fewer only with "
                   "sp.reproducible)")
      ->check(at_least_one());
  command->add_flag("--accept-changes", options->accept_changes,
                    "resume although keys of the run directory's configuration have changed; "
                    "without it changed keys are refused");
  command->callback([options, &context] { context.exit_code = run(*options); });
}

}  // namespace ringside::tools
