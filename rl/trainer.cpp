// The loop of reinforcement learning, top to bottom.
//
//   rank 0:  bridge thread --(journalled rollouts, bounded queue)--> rollout source --poll--> loop
//            consumes: ROLLOUT messages    produces: whole groups of the step   waits for: workers
//            unblocked by: publish() of the version that the next groups need
//   loop:    consumes: the step's groups   produces: new weights, metrics, checkpoints
//            waits for: rank 0's broadcast, then the collectives of its mesh axes
//   workers: consume: weights and grants   produce: rollouts       wait for: COMMIT of a version, then grants
//
// Every rank runs this same loop on the same rollouts, so that plans, advantages and loss weights agree without talking;
// what differs is only the shard that collate() cuts out.
#include "rl/trainer.h"

#include <optional>

#include "rl/data/training_batch.h"
#include "rl/evaluation.h"
#include "rl/log/log.h"
#include "rl/reward_alarms.h"
#include "rl/rollout_log.h"
#include "rl/step_metrics.h"
#include "rl/step_update.h"

namespace ringside::rl {
namespace {

void log_messages(RolloutSource& source, TrainingRun& run) {
  for (const std::string& message : source.drain_messages()) {
    run.clear_progress();
    log::info(message);
  }
}

void warn_of(const std::vector<std::string>& alarms, TrainingRun& run) {
  for (const std::string& alarm : alarms) {
    run.clear_progress();
    log::warn(alarm);
  }
}

}  // namespace

void train_grpo(TrainingRun& run, RolloutSource* source) {
  const Config& config = run.config();
  Learner learner(run);
  const auto evaluation = run.is_main_rank() ? Evaluation::make(config, run.decoder().config()) : nullptr;
  if (source != nullptr) {
    source->publish(run.decoder(), run.state().weight_version, run.state().step + 1);
  }
  RewardAlarms reward_alarms;
  std::optional<RolloutLog> rollout_log;
  if (run.is_main_rank() && config.log.rollouts) {
    rollout_log.emplace(open_rollout_log(run.run_dir()));
  }
  while (run.state().step < run.steps()) {
    const auto rollouts = broadcast_rollouts(source, run.state().step + 1, *run.comms().world,
                                             [&] { log_messages(*source, run); });
    StepBatch batch = make_step_batch(rollouts, config);
    StepShards shards = learner.collate(batch);
    learner.score(shards, batch);
    const StepAdvantages advantages = learner.attach_advantages(shards, batch);
    if (rollout_log) {
      rollout_log->write(run.state().step + 1, rollouts, batch.table.begin, advantages.advantage);
    }
    const StepUpdates updates = learner.update(shards, batch);
    learner.adapt(updates, advantages);

    Metrics metrics = grpo_step_metrics(rollouts, batch, advantages, updates, run.state(), config);
    warn_of(add_alarms(metrics), run);
    warn_of(reward_alarms.add(metrics, batch.rewards, advantages.sample_score, advantages.advantage,
                              config.rollout.group_size),
            run);
    if (source != nullptr) {
      append_source_metrics(metrics, source->counters());
    }
    if (evaluation && evaluation->is_due(run.state().step + 1)) {
      metrics.emplace_back("eval_reward", evaluation->mean_reward(run.decoder()));
    }
    const bool saved = run.finish_step(std::move(metrics), updates.policy);
    if (source != nullptr) {
      source->publish(run.decoder(), run.state().weight_version, run.state().step + 1);
      if (saved) {
        source->checkpointed(run.state().step);
      }
    }
  }
  run.finish();
  if (source != nullptr) {
    source->finish();
    log_messages(*source, run);
  }
}

}  // namespace ringside::rl
