// Command `ringside run RECIPE... --run-dir DIR [key=value ...]`: starts the trainer ranks and the
// rollout workers on this machine, monitors them, and stops them.
#include <memory>

#include "rl/config/task.h"
#include "rl/report/log.h"
#include "rl/trainer/run_directory.h"
#include "tools/commands/commands.h"
#include "tools/commands/dry_run.h"
#include "tools/commands/run_launch.h"
#include "tools/commands/start_plan.h"

namespace ringside::tools {
namespace {

struct RunOptions {
  std::vector<std::string> words;
  std::filesystem::path run_dir;
  int64_t steps = 0;
  int nproc = 0;
  bool accept_changes = false;
  bool dry_run = false;
};

std::vector<std::string> trainer_options(const RunOptions& options, const rl::Config& config) {
  const bool samples = rl::samples_completions(config);
  const int64_t workers = samples ? config.rollout.num_workers * config.rollout.worker_threads : 0;
  std::vector<std::string> words{"--checked", "--spare-cores", std::to_string(workers)};
  if (options.steps > 0) {
    words.insert(words.end(), {"--steps", std::to_string(options.steps)});
  }
  if (options.accept_changes) {
    words.emplace_back("--accept-changes");
  }
  return words;
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
                        options.accept_changes, rl::source_fingerprints(loaded.config));
}

int run(const RunOptions& options) {
  const auto loaded = load_or_print_errors(split_inputs(options.words));
  if (!loaded || !check_nproc(loaded->config, options.nproc)) {
    return kExitUsage;
  }
  if (options.dry_run) {
    return dry_run(*loaded, /*recorded_rollouts=*/false, options.nproc);
  }
  if (const std::string problem = run_directory_problem(options.run_dir); !problem.empty()) {
    throw UsageError(problem);
  }
  if (const auto code = exit_code_of(plan_start(options, *loaded))) {
    return *code;
  }
  as_usage([&] { remove_old_addresses(options.run_dir); });
  std::vector<std::string> notes;
  if (!pass_preflight(*loaded, {}, notes)) {
    return kExitUsage;
  }
  as_usage([&] { log_to_run_directory(options.run_dir); });
  for (const std::string& note : notes) {
    rl::log::info(note);
  }
  const RunProcesses processes{.words = options.words,
                               .run_dir = options.run_dir,
                               .trainer_options = trainer_options(options, loaded->config),
                               .num_trainers = trainer_processes(loaded->config, options.nproc)};
  return report_launch(launch(launch_options(loaded->config, processes)));
}

}  // namespace

void add_run_command(CommandContext& context) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = context.app.add_subcommand(
      "run", "Start trainer ranks and rollout workers on this machine and monitor them");
  command->add_option("inputs", options->words, "recipes (YAML), and key.sub=value overrides")
      ->required();
  command->add_option("--run-dir", options->run_dir,
                      "metrics, checkpoints and the bridge's journal go here");
  command
      ->add_option("--steps", options->steps,
                   "stop after this many steps in all (default: train.steps)")
      ->check(at_least_one());
  command
      ->add_option("--nproc", options->nproc,
                   "trainer processes (default: one for each rank of parallel.*; fewer only with "
                   "sp.virtual_ranks)")
      ->check(at_least_one());
  command->add_flag("--accept-changes", options->accept_changes,
                    "resume although keys of the run directory's configuration have changed; "
                    "without it changed keys are refused");
  command->add_flag("--dry-run", options->dry_run, kDryRunHelp);
  command->callback([options, command, &context] {
    require_run_dir(*command, options->dry_run);
    context.exit_code = run(*options);
  });
}

}  // namespace ringside::tools
