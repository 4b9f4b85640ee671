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
#include <optional>
#include <span>
#include <utility>
#include <vector>

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
  std::optional<Learner> learner;
  std::optional<GrantedImages> images;  // with data.image_key
  std::optional<Evaluation> evaluation;
  std::optional<RolloutLog> rollout_log;  // rank 0's
  std::optional<StepSamples> samples;     // with log.samples

  Parts(TrainingRun& run, RolloutSource* source) {
    const Config& config = run.config();
    const RunRanks& ranks = run.ranks();
    PolicyTraining& policy = run.policy();
    ranks.on_every([&] {
      learner.emplace(config, ranks, policy, run.state());
      add_models(run, *learner);
      if (!config.data.image_key.empty()) {
        images.emplace(config);
        learner->take_images(images->pixels(), images->rules());
      }
      evaluation.emplace(config, ranks, policy.stages(), source,
                         [&run] { return run.signal_here(); });
      if (ranks.is_main() && config.log.rollouts) {
        rollout_log.emplace(open_rollout_log(run.run_dir(), config.model.path));
      }
      if (config.log.samples > 0) {
        samples.emplace(config, ranks, policy.runner(), run.run_dir(), images ? &*images : nullptr);
      }
    });
  }

  // Where the images of these rollouts of the step are. Holds the pixels of their conversations.
  StepImages images_of(NextRollouts& next, std::span<const bridge::Rollout> rollouts) {
    if (!images) {
      return {};
    }
    images->hold(std::move(next.images));
    return images->of(rollouts);
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
void write_rollouts(RolloutLog& log, int64_t step, const TrainedAndGreedy& rollouts,
                    std::span<const int64_t> begin, std::span<const double> advantage) {
  if (rollouts.greedy.empty()) {
    log.write(step, rollouts.trained, begin, advantage);
    return;
  }
  const std::size_t size = rollouts.trained.size() / rollouts.greedy.size();
  std::vector<int64_t> places{0};
  for (std::size_t i = 0; i < rollouts.trained.size(); ++i) {
    places.push_back(begin[i + 1]);
    if ((i + 1) % size == 0) {
      places.push_back(begin[i + 1]);
    }
  }
  log.write(step, with_greedy(rollouts.trained, rollouts.greedy), places, advantage);
}

void log_rollouts(Parts& parts, int64_t step, const TrainedAndGreedy& rollouts,
                  const StepBatch& batch, const StepAdvantages& advantages, RolloutSource* source) {
  if (parts.rollout_log) {
    write_rollouts(*parts.rollout_log, step, rollouts, batch.columns.begin, advantages.advantage);
  }
  if (parts.samples) {
    parts.samples->pick(rollouts.trained, batch, advantages, source);
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
                   const StepBatch& batch, const StepAdvantages& advantages, bool scored) {
  if (!scored) {
    return {};
  }
  try {
    StepUpdates updates = learner.update(mini_batches, batch, advantages.sample_score);
    learner.adapt(updates, advantages);
    return updates;
  } catch (const engine::Diverged& error) {
    run.diverged(error);
  }
}

struct Alarms {
  MismatchAlarms mismatch;
  RewardAlarms rewards;
  NoScoreAlarm no_score;
  const Config& config;

  // Warns of what the step's metrics show, and adds figures of the alarms to them.
  void watch(Metrics& metrics, std::span<const bridge::Rollout> rollouts, const StepBatch& batch,
             const StepAdvantages& advantages, const TrainingRun& run) {
    warn_of(mismatch.add(metrics), run);
    if (!learns_from_teacher_alone(config)) {
      warn_of(rewards.add(metrics, batch.rewards, advantages.sample_score, advantages.advantage,
                          config.rollout.group_size),
              run);
    }
    warn_of(no_score.add(metrics, has_score(rollouts), failure_of(rollouts)), run);
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

// Publishes the weights that `next_step` starts from. Collective.
void publish(TrainingRun& run, RolloutSource* source, int64_t version, int64_t next_step) {
  const std::vector<const engine::Decoder*> policy = run.policy().stages();
  run.ranks().export_weights(
      run.config().lora.publish == LoraPublish::kAdapter ? engine::WeightView::adapters_of(policy)
                                                         : engine::WeightView::of_changing(policy),
      source != nullptr ? source->weight_sink(version, next_step) : engine::WeightSink());
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
  Learner& learner = *parts.learner;
  check_loaded(run.ranks(), run.run_dir(), run.policy().runner(),
               [&] { return learner.loaded_facts(); });
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
    const TrainedAndGreedy step = without_greedy(std::move(next.rollouts), config);
    const auto& rollouts = step.trained;
    observe(run, source, rollouts);
    StepBatch batch =
        make_step_batch(rollouts, config, parts.images_of(next, rollouts), step.greedy);
    std::vector<LocalBatch> mini_batches;
    const StepAdvantages advantages = times.time("score", [&] {
      mini_batches = learner.collate(batch);
      learner.score(mini_batches, batch);
      return learner.compute_advantages(batch);
    });
    times.time("samples",
               [&] { log_rollouts(parts, run.state().step + 1, step, batch, advantages, source); });
    const StepUpdates updates = times.time("train", [&] {
      return update(run, learner, mini_batches, batch, advantages, has_score(rollouts));
    });
    if (parts.samples) {
      times.time("samples", [&] {
        parts.samples->write(run.state().step + 1, mini_batches, batch, updates.policy);
      });
    }

    Metrics metrics = rl_step_metrics(rollouts, batch, advantages, updates, run.state(), config);
    alarms.watch(metrics, rollouts, batch, advantages, run);
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
    const auto saved_step =
        times.time("save", [&] { return run.finish_step(std::move(metrics), updates.policy); });
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
