// Training loop of reinforcement learning; the code reads top to bottom as one step.
//
//   rank 0:   bridge thread --(journalled rollouts, bounded queue)--> rollout source --poll--> loop
//             consumes: ROLLOUT messages          produces: whole groups of the step
//             waits for: workers
//             unblocked by: publish() of the version that the next groups need
//   loop:     consumes: the step's groups         produces: new weights, metrics, checkpoints
//             waits for: rank 0's broadcast, then the collectives of its mesh axes
//   workers:  consume: weights and grants         produce: rollouts
//             wait for: COMMIT of a version, then grants
//
// Every rank runs this loop on the same rollouts, so all ranks compute the same plans, advantages
// and loss weights without communication. Ranks differ only in the shard that collate() returns.
#include "rl/trainer/trainer.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rl/config/adapter_names.h"
#include "rl/config/teacher.h"
#include "rl/data/greedy_rollouts.h"
#include "rl/data/rollout_rewards.h"
#include "rl/data/training_batch.h"
#include "rl/report/log.h"
#include "rl/report/metrics_reader.h"
#include "rl/report/no_score_alarm.h"
#include "rl/report/reward_alarms.h"
#include "rl/report/stage_times.h"
#include "rl/rollouts/granted_images.h"
#include "rl/rollouts/rollout_log.h"
#include "rl/trainer/evaluation.h"
#include "rl/trainer/learner.h"
#include "rl/trainer/mismatch_alarms.h"
#include "rl/trainer/policy_step.h"
#include "rl/trainer/rank_agreement.h"
#include "rl/trainer/step_metrics.h"
#include "rl/trainer/step_samples.h"
#include "rl/trainer/waiting_round.h"
#include "sp/mesh/rank_work.h"

namespace ringside::rl {
namespace {

// Loads them too, in a run that has resumed.
void add_models(TrainingRun& run, Learner& learner) {
  for (const LearnerModel& model : learner.checkpointed_models()) {
    run.add_checkpointed_model(model.name, *model.runner);
    if (model.final_model != nullptr) {
      run.add_final_model(model.name, *model.final_model);
    }
  }
}

// Parts of one rank's training. All ranks construct them at the same time, however long that takes.
struct Parts {
  std::vector<std::unique_ptr<Learner>> learners;  // of run.policies()
  std::optional<GrantedImages> images;             // with data.image_key
  std::optional<Evaluation> evaluation;
  std::optional<RolloutLog> rollout_log;  // rank 0's
  std::optional<StepSamples> samples;     // with log.samples

  Parts(TrainingRun& run, RolloutSource* source) {
    const Config& config = run.config();
    const RunRanks& ranks = run.ranks();
    ranks.on_every([&] {
      if (!config.data.image_key.empty()) {
        images.emplace(config);
      }
      for (RunPolicy& policy : run.policies()) {
        learners.push_back(std::make_unique<Learner>(config, ranks, policy.training, policy.state));
        add_models(run, *learners.back());
        if (images) {
          learners.back()->take_images(images->pixels(), images->rules());
        }
      }
      evaluation.emplace(config, ranks, run.policy().stages(), source,
                         [&run] { return run.signal_here(); });
      if (ranks.is_main() && config.log.rollouts) {
        rollout_log.emplace(open_rollout_log(run.run_dir(), config.model.path));
      }
      if (config.log.samples > 0) {
        samples.emplace(config, ranks, run.run_dir(), images ? &*images : nullptr);
      }
    });
  }

  // Holds the pixels of the conversations of the step's rollouts.
  void hold_images(NextRollouts& next) {
    if (images) {
      images->hold(std::move(next.images));
    }
  }
  // Where the images of some of the step's rollouts are.
  StepImages images_of(std::span<const bridge::Rollout> rollouts) {
    return images ? images->of(rollouts) : StepImages();
  }
  // Weights that the ranks must agree on, beside those of the first policy.
  RankFacts loaded_facts(TrainingRun& run) const {
    RankFacts facts = learners.front()->loaded_facts();
    for (RunPolicy& policy : std::span(run.policies()).subspan(1)) {
      facts.push_back(weights_fact("adapter " + policy.name, policy.training.runner()));
    }
    return facts;
  }
};

// Every rank computes the same alarms; only rank 0 logs them.
void warn_of(const std::vector<std::string>& alarms, const TrainingRun& run) {
  for (const std::string& alarm : alarms) {
    if (run.ranks().is_main()) {
      log::warn(alarm);
    }
  }
}

// Collective.
void evaluate_before_training(TrainingRun& run, const Evaluation& evaluation, StageTimes& times) {
  if (run.state().step == 0 && evaluation.is_due(0)) {
    const Metrics found = times.time("evaluate", [&] { return evaluation.metrics(); });
    if (run.ranks().is_main() && !found.empty()) {
      run.report().write_first_evaluation(found);
    }
  }
}

// Greedy rollouts stand behind the others of their group, as they were sampled.
void write_rollouts(RolloutLog& log, int64_t step, std::span<const bridge::Rollout> trained,
                    std::span<const bridge::Rollout> greedy, std::span<const int64_t> begin,
                    std::span<const double> advantage) {
  if (greedy.empty()) {
    log.write(step, trained, begin, advantage);
    return;
  }
  const std::size_t size = trained.size() / greedy.size();
  std::vector<int64_t> places{0};
  for (std::size_t i = 0; i < trained.size(); ++i) {
    places.push_back(begin[i + 1]);
    if ((i + 1) % size == 0) {
      places.push_back(begin[i + 1]);
    }
  }
  log.write(step, with_greedy(trained, greedy), places, advantage);
}

void log_rollouts(Parts& parts, int64_t number, const PolicyStep& step,
                  std::span<const bridge::Rollout> greedy, RolloutSource* source) {
  if (parts.rollout_log) {
    write_rollouts(*parts.rollout_log, number, step.rollouts, greedy, step.batch.columns.begin,
                   step.advantages.advantage);
  }
  if (parts.samples) {
    parts.samples->pick(step.rollouts, step.batch, step.advantages, source);
  }
}

// Whether any sample of the step has a score. Without one there is nothing to learn from.
bool has_score(std::span<const bridge::Rollout> rollouts) {
  return std::any_of(rollouts.begin(), rollouts.end(), is_scored);
}

// Why a sample of the step has failed; "" if no worker says so.
std::string failure_of(std::span<const bridge::Rollout> rollouts) {
  const auto found = std::find_if(rollouts.begin(), rollouts.end(),
                                  [](const auto& rollout) { return !rollout.failure.empty(); });
  return found == rollouts.end() ? "" : found->failure;
}

// Nothing for a step without a score: an optimizer step would only decay the weights. Ends the run
// when a model has diverged.
StepUpdates update(TrainingRun& run, Learner& learner, const std::vector<LocalBatch>& mini_batches,
                   const PolicyStep& step) {
  if (!has_score(step.rollouts)) {
    return {};
  }
  try {
    StepUpdates updates = learner.update(mini_batches, step.batch, step.advantages.sample_score);
    learner.adapt(updates, step.advantages, std::ssize(step.rollouts));
    return updates;
  } catch (const engine::Diverged& error) {
    run.diverged(
        step.name.empty() ? error : engine::Diverged("adapter " + step.name + ": " + error.what()));
  }
}

// Trains one of the run's policies on its rollouts of the step.
PolicyStep train_policy(TrainingRun& run, Parts& parts, std::size_t index,
                        TrainedAndGreedy rollouts, RolloutSource* source, StageTimes& times) {
  Learner& learner = *parts.learners[index];
  RunPolicy& policy = run.policies()[index];
  PolicyStep step{policy.name, std::move(rollouts.trained), {}, {}, {}};
  StepBatch& batch = step.batch;
  batch = make_step_batch(step.rollouts, run.config(), parts.images_of(step.rollouts),
                          rollouts.greedy, rollouts.kinds);
  std::vector<LocalBatch> mini_batches;
  step.advantages = times.time("score", [&] {
    mini_batches = learner.collate(batch);
    learner.score(mini_batches, batch);
    return learner.compute_advantages(batch);
  });
  const int64_t number = run.state().step + 1;
  times.time("samples", [&] { log_rollouts(parts, number, step, rollouts.greedy, source); });
  step.updates = times.time("train", [&] { return update(run, learner, mini_batches, step); });
  if (parts.samples) {
    times.time("samples", [&] {
      parts.samples->write(number, policy.training.runner(), mini_batches, batch,
                           step.updates.policy);
    });
  }
  return step;
}

// The same of every policy that has rollouts in the step, one after another on all ranks; one
// without any stays as it is.
std::vector<PolicyStep> train_policies(TrainingRun& run, Parts& parts, RolloutSource* source,
                                       TrainedAndGreedy rollouts, StageTimes& times) {
  std::vector<TrainedAndGreedy> of_policies = parts_by_policy(std::move(rollouts), run.config());
  std::vector<PolicyStep> steps;
  for (std::size_t i = 0; i < run.policies().size(); ++i) {
    if (!of_policies[i].trained.empty()) {
      steps.push_back(train_policy(run, parts, i, std::move(of_policies[i]), source, times));
    }
  }
  return steps;
}

Metrics metrics_of(const PolicyStep& step, const TrainingState& state, const Config& config) {
  return rl_step_metrics(step.rollouts, step.batch, step.advantages, step.updates, state, config);
}

// The metrics of the whole step, and behind them those of each adapter with a name.
Metrics step_metrics(std::span<const PolicyStep> steps, const PolicyStep& whole, TrainingRun& run) {
  Metrics metrics = metrics_of(whole, run.state(), run.config());
  for (const PolicyStep& step : steps) {
    const auto policy =
        std::ranges::find(run.policies(), step.name, [](const RunPolicy& one) { return one.name; });
    if (!step.name.empty()) {
      std::ranges::move(adapter_metrics(step.name, metrics_of(step, policy->state, run.config())),
                        std::back_inserter(metrics));
    }
  }
  return metrics;
}

struct Alarms {
  MismatchAlarms mismatch;
  RewardAlarms rewards;
  NoScoreAlarm no_score;
  const Config& config;

  // Warns of what the step's metrics show, and adds figures of the alarms to them.
  void watch(Metrics& metrics, const PolicyStep& step, const TrainingRun& run) {
    warn_of(mismatch.add(metrics), run);
    if (!learns_from_teacher_alone(config)) {
      warn_of(rewards.add(metrics, step.batch.rewards, step.advantages.sample_score,
                          step.advantages.advantage, config.rollout.group_size),
              run);
    }
    warn_of(no_score.add(metrics, has_score(step.rollouts), failure_of(step.rollouts)), run);
  }

  // Collective: ends the run when too many steps in a row had no score.
  void end_if_due(TrainingRun& run) const {
    if (const auto reason = no_score.end()) {
      run.fail(*reason);
    }
  }
};

// A run that has made all its steps may have been too short for end_if_due(). Collective.
// Throws: TrainingFailed on rank 0, RankFailed on the others, unless the key allows such a run.
void check_that_a_step_had_a_score(const TrainingRun& run, const NoScoreAlarm& alarm) {
  if (run.stop_signal() != 0) {
    return;
  }
  run.ranks().on_main([&] {
    const auto reason = alarm.nothing_learned(read_metrics(run.run_dir() / "metrics.jsonl"));
    if (reason && alarm.may_end_run()) {
      throw TrainingFailed(*reason);
    }
    if (reason) {
      log::warn(*reason);
    }
  });
}

void append(Metrics& metrics, Metrics more) {
  std::move(more.begin(), more.end(), std::back_inserter(metrics));
}

// What workers receive of the policies.
engine::WeightView published_weights(TrainingRun& run) {
  const std::vector<const engine::Decoder*> policy = run.policy().stages();
  if (run.config().lora.publish != LoraPublish::kAdapter) {
    return engine::WeightView::of_changing(policy);
  }
  if (run.policies().front().name.empty()) {
    return engine::WeightView::adapters_of(policy);
  }
  std::vector<engine::PrefixedStages> all;
  for (const RunPolicy& one : run.policies()) {
    all.push_back({adapter_prefix(one.name), one.training.stages()});
  }
  return engine::WeightView::adapters_of(all);
}

// Publishes the weights that `next_step` starts from. Collective.
void publish(TrainingRun& run, RolloutSource* source, int64_t version, int64_t next_step) {
  run.ranks().export_weights(published_weights(run), source != nullptr
                                                         ? source->weight_sink(version, next_step)
                                                         : engine::WeightSink());
}

// A curriculum sees the rewards of the step's prompts, and chooses those of a later step.
void observe(const TrainingRun& run, RolloutSource* source,
             std::span<const bridge::Rollout> rollouts) {
  if (source != nullptr) {
    source->observe(run.state().step + 1, rollouts);
  }
}

// For a checkpoint of the step that ends.
void keep_curriculum(TrainingRun& run, const RolloutSource* source) {
  if (source != nullptr) {
    run.state().curriculum = source->curriculum_state(run.state().step + 1);
  }
}

}  // namespace

void train_rl(TrainingRun& run, RolloutSource* source) {
  StageTimes times;  // what follows take() counts in the next step
  const Config& config = run.config();
  Parts parts(run, source);
  check_loaded(run.ranks(), run.run_dir(), run.policy().runner(),
               [&] { return parts.loaded_facts(run); });
  const Evaluation& evaluation = *parts.evaluation;
  times.time("publish",
             [&] { publish(run, source, run.state().weight_version, run.state().step + 1); });
  evaluate_before_training(run, evaluation, times);
  Alarms alarms{MismatchAlarms(config.model.dtype), RewardAlarms(),
                NoScoreAlarm(config.rollout.max_steps_without_score), config};
  while (!run.is_over()) {
    auto next = times.time("wait_rollouts", [&] {
      return broadcast_rollouts(source, run.state().step + 1,
                                *run.ranks().comms().control(sp::axes::kWorld),
                                waiting_round(config), [&] { return run.signal_here(); });
    });
    if (next.stop_signal != 0) {
      run.agree_to_stop(next.stop_signal);
      break;
    }
    TrainedAndGreedy rollouts = without_greedy(std::move(next.rollouts), config, next.kinds);
    observe(run, source, rollouts.trained);
    parts.hold_images(next);
    const std::vector<PolicyStep> steps =
        train_policies(run, parts, source, std::move(rollouts), times);
    const PolicyStep joined = steps.size() > 1 ? joined_step(steps) : PolicyStep();
    const PolicyStep& step = steps.size() > 1 ? joined : steps.front();
    Metrics metrics = step_metrics(steps, step, run);
    alarms.watch(metrics, step, run);
    if (source != nullptr) {
      append_source_metrics(metrics, source->counters());
    }
    // Before the evaluation: workers may do it, and the others go on with the next step meanwhile.
    times.time("publish",
               [&] { publish(run, source, run.state().weight_version + 1, run.state().step + 2); });
    if (evaluation.is_due(run.state().step + 1)) {
      append(metrics, times.time("evaluate", [&] { return evaluation.metrics(); }));
    }
    append(metrics, times.take());
    keep_curriculum(run, source);
    const auto saved_step = times.time(
        "save", [&] { return run.finish_step(std::move(metrics), step.updates.policy); });
    if (saved_step) {
      times.time("save", [&] { run.ranks().on_main([&] { source->checkpointed(*saved_step); }); });
    }
    alarms.end_if_due(run);
  }
  check_that_a_step_had_a_score(run, alarms.no_score);
  run.finish();
  if (source != nullptr && run.stop_signal() == 0) {
    source->finish();
  }
}

}  // namespace ringside::rl
