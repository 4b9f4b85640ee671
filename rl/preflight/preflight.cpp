#include "rl/preflight/preflight.h"

#include <algorithm>
#include <thread>

#include "rl/config/environment_choice.h"
#include "rl/config/task.h"
#include "rl/preflight/data_files.h"
#include "rl/preflight/harness_file.h"
#include "rl/preflight/machine_limits.h"
#include "rl/preflight/model_files.h"
#include "rl/preflight/run_memory.h"
#include "rl/preflight/run_settings.h"
#include "rl/preflight/server_reachable.h"
#include "rl/preflight/unusual_values.h"
#include "rl/rewards/weighted_rewards.h"
#include "rl/setup/layout_advice.h"
#include "rl/setup/memory_of_rank.h"
#include "rl/setup/model_device.h"
#include "rl/setup/pipeline_figures.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"

namespace ringside::rl {

namespace {

// What a rank will need, once the model is known, and whether the machine has what all of them
// need.
void note_memory(const Config& config, const PreflightScope& scope, const ModelFiles& files,
                 PreflightReport& report) {
  if (!files.model || !report.ok()) {
    return;
  }
  Config factored = config;
  factor_context_parallel(factored);
  fix_replicas(factored.parallel, /*world=*/0);
  const c10::Device device =
      scope.elsewhere ? planned_device(config).device : model_device(config, /*local_rank=*/0);
  report.notes.push_back(describe(memory_of_rank(factored, *files.model, device)));
  report.notes.push_back(describe(step_traffic(factored, *files.model)));
  if (factored.parallel.pipeline_parallel_size > 1) {
    report.notes.push_back(describe(pipeline_figures(factored, *files.model), factored.parallel));
  }
  if (scope.elsewhere) {
    return;
  }
  RunPlace place;
  place.ranks = scope.ranks_here;
  place.workers = scope.workers_here && !scope.brings_rollouts;
  place.publishes = !scope.brings_rollouts;
  const MemoryFit fit = compare_with_this_machine(config, *files.model, place);
  if (!fit.error.empty()) {
    report.mistakes.push_back({"model.path", "is " + config.model.path + ": " + fit.error});
  } else if (!fit.warning.empty()) {
    report.notes.push_back("warning: " + fit.warning);
  }
}

}  // namespace

bool uses_own_workers(const Config& config) {
  try {
    return samples_completions(config) && !has_sessions(config.rollout) &&
           parse_rewards(config.rollout.reward).empty();
  } catch (const std::invalid_argument&) {
    return false;  // check_combinations() reports it
  }
}

PreflightReport preflight(const Config& config, const PreflightScope& scope) {
  PreflightReport report;
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  report.notes = unusual_values(config, cores);
  check_device(config, report);
  check_device_speeds(config, report);
  check_ports(config, scope, report);
  note_threads(config, scope, report);
  if (!samples_completions(config)) {
    const ModelFiles files = check_model_files(config, /*needs_tokenizer=*/true, report);
    check_document_files(config, files, report);
    note_memory(config, scope, files, report);
    return report;
  }
  PreflightScope live = scope;  // with rollouts from elsewhere no worker samples
  live.workers_here = scope.workers_here && !scope.brings_rollouts;
  const bool samples = live.workers_here || config.eval.every > 0;
  const ModelFiles files = check_model_files(config, samples, report);
  check_training_settings(config, scope, report);
  if (live.workers_here && uses_own_workers(config) && !config.data.train.empty()) {
    report.mistakes.push_back(
        {"rollout.reward",
         "is worker, which leaves rewards to workers of your own, but `ringside run` starts its "
         "own; expected rewards by name, or `ringside train` with your workers"});
  }
  if (has_sessions(config.rollout)) {
    check_harness(config, live, report);
  } else if (samples) {
    check_rewards(config, files, report);
  }
  if (!live.workers_here && !scope.brings_rollouts) {
    check_train_lengths(config, files, report);
  }
  check_prompt_files(config, live, files, report);
  if (!scope.brings_rollouts) {
    check_bridge(config, live, report);
  }
  if (live.workers_here) {
    check_server(config, report);
    note_server(config, report);
  } else if (!scope.brings_rollouts && uses_own_workers(config)) {
    report.notes.push_back(
        std::string("rollout.reward is worker") +
        (config.data.train.empty() ? " and data.train is not set" : "") +
        ": `ringside train` waits for workers of your own, which send the rewards");
  }
  check_rollout_file(config, scope, files, report);
  note_memory(config, scope, files, report);
  return report;
}

}  // namespace ringside::rl
