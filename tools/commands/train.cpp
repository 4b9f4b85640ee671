// Command `ringside train RECIPE... --run-dir DIR [--rollouts FILE.jsonl | --prime-rl
// tcp://HOST:PORT] [--steps N] [--nproc N] [key=value ...]`: trains on recorded rollouts, on live
// ones from workers that connect, on those of prime-rl's orchestrator, or (algorithm.task=sft) on
// supervised examples. The same command on the same run directory resumes the run.
#include <ATen/ATen.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "rl/config/batch_arithmetic.h"
#include "rl/config/task.h"
#include "rl/report/log.h"
#include "rl/report/start_record.h"
#include "rl/rollouts/live_source.h"
#include "rl/rollouts/prime_rl_source.h"
#include "rl/setup/product_choice.h"
#include "rl/trainer/preferences.h"
#include "rl/trainer/rank_agreement.h"
#include "rl/trainer/run_directory.h"
#include "rl/trainer/sft.h"
#include "rl/trainer/trainer.h"
#include "rl/trainer/waiting_round.h"
#include "sp/mesh/rank_work.h"
#include "tools/commands/commands.h"
#include "tools/commands/distributed.h"
#include "tools/commands/dry_run.h"
#include "tools/commands/run_launch.h"
#include "tools/commands/start_plan.h"
#include "tools/commands/stop_signal.h"
#include "tools/commands/version.h"
#include "tools/launch/rank_environment.h"

namespace ringside::tools {
namespace {

struct TrainOptions {
  std::vector<std::string> words;
  std::filesystem::path run_dir;
  std::filesystem::path rollouts;
  std::string prime_rl;
  int64_t steps = 0;
  int nproc = 0;
  bool accept_changes = false;
  bool checked = false;
  bool dry_run = false;
  int64_t spare_cores = 0;
};

// What the run directory keeps for the next start to compare with.
struct Start {
  rl::Config config;  // before the mesh is resolved: as the next start's is
  rl::StartPlan plan;
  rl::SourceFingerprints sources;
};

// Of processes that torchrun started, those here; of other launchers' at least this one. 0: this
// process starts all ranks.
int64_t ranks_on_this_machine() {
  if (!rank_environment()) {
    return 0;
  }
  const char* local = std::getenv("LOCAL_WORLD_SIZE");
  return local != nullptr ? std::max<int64_t>(1, std::atoll(local)) : 1;
}

// Checks the options and everything that the run opens; prints the mistakes. Of processes that a
// launcher started, only rank 0 checks. Workers may run on other machines, so they check data.train
// and the rewards themselves. notes: as pass_preflight().
bool check_run(const TrainOptions& options, const rl::LoadedConfig& loaded,
               std::vector<std::string>& notes) {
  if (const auto rank = rank_environment(); rank && rank->rank > 0) {
    return true;
  }
  const bool recorded = !options.rollouts.empty();
  if (!rl::samples_completions(loaded.config) && (recorded || !options.prime_rl.empty())) {
    std::cerr << (recorded ? "--rollouts" : "--prime-rl") << ": algorithm.task "
              << to_string(loaded.config.algorithm.task) << " trains on "
              << rl::training_files(loaded.config).key << " and takes no rollouts\n";
    return false;
  }
  if (options.checked) {
    return true;
  }
  return pass_preflight(loaded,
                        {.workers_here = false,
                         .brings_rollouts = recorded || !options.prime_rl.empty(),
                         .rollouts = options.rollouts,
                         .ranks_here = ranks_on_this_machine()},
                        notes);
}

int64_t total_steps(const TrainOptions& options, const rl::Config& config) {
  return options.steps > 0 ? options.steps : config.train.steps;
}

std::unique_ptr<rl::RolloutSource> make_source(const TrainOptions& options,
                                               const rl::Config& config,
                                               const rl::TrainingRun& run) {
  const int64_t steps = run.steps();
  if (!options.rollouts.empty()) {
    return rl::make_file_source(options.rollouts, config);
  }
  if (!options.prime_rl.empty()) {
    return rl::make_prime_rl_source(options.prime_rl, config, steps);
  }
  return rl::make_live_source(config, run.state().run_id, options.run_dir,
                              run.state().weight_version, steps, run.state().curriculum);
}

// Logs the start plan and claims the directory for this run. On rank 0, which holds its lock.
void begin(const TrainOptions& options, const Start& start, const rl::Config& config) {
  for (const std::string& line : start.plan.lines) {
    rl::log::warn("the configuration has changed: " + line);
  }
  rl::begin_start(options.run_dir, start.config, start.plan, start.sources);
  for (const std::string& line : rl::describe_batch(config)) {
    rl::log::info(line);
  }
}

// Compares the lengths of the run and the files that it trains from. Collective over: the world.
// Throws: rl::RanksDiffer.
void check_sources(const TrainOptions& options, const rl::Config& config, const Ranks& ranks) {
  sp::Communicator& world = *ranks.comms.control(sp::axes::kWorld);
  if (world.size() == 1) {
    return;
  }
  rl::RankFacts facts{{"--steps", std::to_string(total_steps(options, config))}};
  sp::run_rank_work(world, rl::waiting_round(config), [&] {
    const rl::RankFacts sources = rl::source_facts(config);
    facts.insert(facts.end(), sources.begin(), sources.end());
  });
  rl::check_ranks_agree(facts, world);
}

// The configuration with the kernels of products that rank 0 chose, which it logs. Collective over:
// the world. Blocks: until rank 0 has measured, if it does.
rl::Config with_chosen_products(const TrainOptions& options, rl::Config config,
                                const Ranks& ranks) {
  sp::Communicator& world = *ranks.comms.control(sp::axes::kWorld);
  std::string text;
  sp::run_rank_work(world, rl::waiting_round(config), [&] {
    if (world.rank() == 0) {
      const rl::ProductChoice choice =
          rl::choose_products_of_run(config, ranks.comms.device().is_cpu(), options.run_dir);
      text = engine::text_of(choice.plan);
      rl::log::info("products: " + text + " (" + choice.reason + ")");
    }
  });
  config.model.products = rl::gather_texts(text, world)[0];
  return config;
}

// The loop of the run's task. source: of rank 0, if the task samples completions.
void train(rl::TrainingRun& run, rl::RolloutSource* source) {
  switch (run.config().algorithm.task) {
    case rl::Task::kRl:
      return rl::train_rl(run, source);
    case rl::Task::kSft:
      return rl::train_sft(run);
    case rl::Task::kDpo:
    case rl::Task::kRewardModel:
      return rl::train_preferences(run);
  }
}

// Returns the signal that stopped the run, or 0.
int train_rank(const TrainOptions& options, const Start& start, const rl::Config& loaded,
               const Ranks& ranks) {
  check_sources(options, loaded, ranks);
  const rl::Config config = with_chosen_products(options, loaded, ranks);
  std::optional<rl::TrainingRun> run;
  std::unique_ptr<rl::RolloutSource> source;
  rl::RunOptions run_options{config, options.run_dir, total_steps(options, config), stop_signal};
  run_options.facts = {{"versions", version_text()},
                       {"device", ranks.comms.device().str()},
                       {"products", config.model.products},
                       {"rollouts", options.rollouts.string()}};
  run.emplace(std::move(run_options), ranks.mesh, ranks.comms);
  run->ranks().on_main([&] {
    begin(options, start, config);
    if (rl::samples_completions(config)) {
      source = make_source(options, config, *run);
    }
  });
  finish_on_stop_signals();
  try {
    train(*run, source.get());
  } catch (const std::exception& error) {
    if (run->ranks().is_main()) {
      rl::append_end(options.run_dir, "failed", error_text(error));
    }
    throw;
  }
  const int signal = run->stop_signal();
  if (run->ranks().is_main()) {
    rl::append_end(options.run_dir, signal == 0 ? "finished" : "stopped",
                   signal == 0 ? "" : std::string("SIG") + sigabbrev_np(signal));
  }
  return signal;
}

int dry_run_of(const TrainOptions& options, const rl::LoadedConfig& loaded) {
  const bool given = loaded.config.algorithm.advantage.estimator == rl::AdvantageEstimator::kGiven;
  const bool recorded = given || !options.rollouts.empty() || !options.prime_rl.empty();
  return dry_run(loaded, recorded && rl::samples_completions(loaded.config), options.nproc);
}

// Sets train.threads of 0 if workers on this machine need cores too: the ranks share the others.
void leave_cores(const TrainOptions& options, rl::Config& config) {
  if (config.train.threads > 0 || options.spare_cores == 0) {
    return;
  }
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const auto rank = rank_environment();
  const int64_t ranks = rank ? rank->world_size : 1;
  config.train.threads = std::max<int64_t>(1, (cores - options.spare_cores) / ranks);
}

int train(const TrainOptions& options, const CommandContext& context) {
  auto loaded = load_or_print_errors(split_inputs(options.words));
  if (!loaded || !check_nproc(loaded->config, options.nproc)) {
    return kExitUsage;
  }
  if (options.dry_run) {
    return dry_run_of(options, *loaded);
  }
  if (options.steps > 0 && loaded->origins.at("train.steps") == "default") {
    // train.steps is not set otherwise: the schedule ends with --steps.
    loaded->config.train.steps = options.steps;
  }
  if (const std::string problem = run_directory_problem(options.run_dir); !problem.empty()) {
    throw UsageError(problem);
  }
  const auto rank = rank_environment();
  const bool first = !rank || rank->rank == 0;
  // One rank looks at the files; the others compare theirs with it later.
  const rl::SourceFingerprints sources =
      first ? rl::source_fingerprints(loaded->config) : rl::SourceFingerprints{};
  const rl::StartPlan plan =
      rl::plan_start(options.run_dir, loaded->config, total_steps(options, loaded->config),
                     options.accept_changes, sources);
  if (const auto code = exit_code_of(plan)) {
    return *code;
  }
  if (first && std::filesystem::exists(options.run_dir)) {
    // A probe only: rank 0 takes the lock for the time of the run.
    as_usage([&] { const rl::RunDirectoryLock nobody_is_at_work(options.run_dir); });
  }
  std::vector<std::string> notes;
  if (!check_run(options, *loaded, notes)) {
    return kExitUsage;
  }
  if (first) {
    as_usage([&] { log_to_run_directory(options.run_dir); });
  }
  for (const std::string& note : notes) {
    rl::log::info(note);
  }
  std::atomic<int> stopped_by{0};
  const Start start{loaded->config, plan, sources};
  leave_cores(options, loaded->config);
  try {
    const int code = run_on_ranks(
        loaded->config, options.nproc, context.arguments,
        [&](const Ranks& ranks) { stopped_by = train_rank(options, start, loaded->config, ranks); },
        [&](int signal) { return advice_after_kill(options.run_dir, signal); });
    return stopped_by != 0 ? 128 + stopped_by : code;
  } catch (const std::exception& error) {
    if (!is_relayed()) {  // else the parent reports it as the rank's last output
      rl::log::copy_error(error_text(error));
    }
    throw;
  }
}

}  // namespace

void add_train_command(CommandContext& context) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = context.app.add_subcommand(
      "train",
      "Train on recorded or live rollouts, or on supervised examples; resumes a stopped run");
  command->add_option("inputs", options->words, "recipes (YAML), and key.sub=value overrides")
      ->required();
  command->add_option("--run-dir", options->run_dir,
                      "metrics, checkpoints and the bridge's journal go here");
  CLI::Option* recorded =
      command->add_option("--rollouts", options->rollouts,
                          "recorded rollouts (JSONL); default: live rollouts from workers");
  command
      ->add_option(
          "--prime-rl", options->prime_rl,
          "tcp://HOST:PORT where prime-rl's orchestrator publishes batches, in place of workers")
      ->excludes(recorded);
  command
      ->add_option("--steps", options->steps,
                   "stop after this many steps in all (default: train.steps). The learning-rate "
                   "schedule ends at "
                   "train.steps where a recipe or the command line sets it, else at --steps")
      ->check(at_least_one());
  command
      ->add_option("--nproc", options->nproc,
                   "processes to start (default: one for each rank of parallel.*; fewer only with "
                   "sp.virtual_ranks)")
      ->check(at_least_one());
  command->add_flag("--accept-changes", options->accept_changes,
                    "resume although keys of the run directory's configuration have changed; "
                    "without it changed keys are refused");
  command->add_flag("--checked", options->checked,
                    "the files of the recipe were checked by the process that starts this one, as "
                    "`ringside run` does");
  command->add_option("--spare-cores", options->spare_cores,
                      "cores that train.threads=0 leaves to workers on this machine, as `ringside "
                      "run` asks for");
  command->add_flag("--dry-run", options->dry_run, kDryRunHelp);
  command->callback([options, command, &context] {
    require_run_dir(*command, options->dry_run);
    context.exit_code = train(*options, context);
  });
}

}  // namespace ringside::tools
