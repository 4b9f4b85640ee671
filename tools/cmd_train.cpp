#include "tools/cmd_train.h"

#include <ATen/ATen.h>

#include <fstream>
#include <memory>
#include <stdexcept>

#include "rl/config/batch_arithmetic.h"
#include "rl/live_source.h"
#include "rl/log/log.h"
#include "rl/prime_rl_source.h"
#include "rl/sft.h"
#include "rl/trainer.h"
#include "tools/distributed.h"

namespace ringside::tools {
namespace {

struct TrainOptions {
  std::vector<std::string> words;
  std::filesystem::path run_dir;
  std::filesystem::path rollouts;
  std::string prime_rl;
  int64_t steps = 0;
  int nproc = 0;
};

// Log-probs under a cut distribution cannot be recomputed without the sampler's support mask, so such rollouts would be
// refused one by one: refuse before the first is sampled.
void check_sampling(const rl::Config& config) {
  const bool cut = config.rollout.top_p < 1.0 || config.rollout.top_k > 0;
  if (config.algorithm.name == rl::AlgorithmName::kGrpo && cut) {
    throw std::invalid_argument(
        "rollout.top_p below 1 and rollout.top_k above 0 cannot be trained on: the trainer does not know which tokens "
        "the sampler had left out; expected top_p 1 and top_k 0");
  }
}

void save_configuration(const rl::Config& config, const std::filesystem::path& path) {
  std::ofstream file(path, std::ios::trunc);
  file << rl::dump(config);
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

std::unique_ptr<rl::RolloutSource> make_source(const TrainOptions& options, const rl::Config& config,
                                               const rl::TrainingRun& run, int64_t steps) {
  if (!options.rollouts.empty()) {
    return rl::make_file_source(options.rollouts, config);
  }
  if (!options.prime_rl.empty()) {
    return rl::make_prime_rl_source(options.prime_rl, config, steps);
  }
  return rl::make_live_source(config, run.state().run_id, options.run_dir, run.state().weight_version, steps);
}

void train_rank(const TrainOptions& options, const rl::Config& config, const Ranks& ranks) {
  std::filesystem::create_directories(options.run_dir);
  if (ranks.mesh.rank() == 0) {
    save_configuration(config, options.run_dir / "config.yaml");
    for (const std::string& line : rl::describe_batch(config)) {
      rl::log::info(line);
    }
  }
  const int64_t steps = options.steps > 0 ? options.steps : config.train.steps;
  rl::TrainingRun run({config, options.run_dir, steps}, ranks.mesh, ranks.comms);
  if (config.algorithm.name == rl::AlgorithmName::kSft) {
    rl::train_sft(run);
    return;
  }
  const auto source = run.is_main_rank() ? make_source(options, config, run, steps) : nullptr;
  rl::train_grpo(run, source.get());
}

int train(const TrainOptions& options, const CommandContext& context) {
  auto loaded = load_or_print_errors(split_inputs(options.words));
  if (!loaded) return kExitUsage;
  if (options.steps > 0 && loaded->origins.at("train.steps") == "default") {
    loaded->config.train.steps = options.steps;  // nobody named another horizon for the schedule
  }
  check_sampling(loaded->config);
  return run_on_ranks(loaded->config, options.nproc, context.arguments,
                      [&](const Ranks& ranks) { train_rank(options, loaded->config, ranks); });
}

}  // namespace

void add_train_command(CommandContext& context) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = context.app.add_subcommand(
      "train", "Train on recorded or live rollouts, or on written examples; goes on where it stopped");
  command->add_option("inputs", options->words, "recipes (YAML), and key.sub=value overrides")->required();
  command->add_option("--run-dir", options->run_dir, "metrics, checkpoints and the bridge's journal go here")
      ->required();
  CLI::Option* recorded = command->add_option("--rollouts", options->rollouts,
                                              "recorded rollouts (JSONL); without it, workers are waited for");
  command->add_option("--prime-rl", options->prime_rl,
                      "tcp://HOST:PORT where prime-rl's orchestrator publishes batches, in place of workers")
      ->excludes(recorded);
  command->add_option("--steps", options->steps,
                      "stop after this many steps in all (default: train.steps). The learning-rate schedule ends at "
                      "train.steps where a recipe or the command line sets it, else at --steps");
  command->add_option("--nproc", options->nproc, "processes to start (default: one for each rank of parallel.*; fewer only with sp.reproducible)");
  command->callback([options, &context] { context.exit_code = train(*options, context); });
}

}  // namespace ringside::tools
