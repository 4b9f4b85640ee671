// The loop of GRPO, top to bottom.
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

#include <ATen/ATen.h>

#include "rl/data/training_batch.h"
#include "rl/evaluation.h"
#include "rl/log/log.h"
#include "rl/step_metrics.h"

namespace ringside::rl {
namespace {

// The policy of the KL term, absent when there is no such term.
std::unique_ptr<engine::Decoder> load_reference(const Config& config) {
  if (config.algorithm.kl_coef == 0.0) {
    return nullptr;
  }
  const std::string& path =
      config.model.reference_path.empty() ? config.model.path : config.model.reference_path;
  return load_starting_model(config, path);
}

// Old log-probs are those of the weights at the start of the step. With a single optimizer step a step they are the ones
// of the forward pass itself, and need no pass of their own.
bool needs_old_pass(const Config& config) {
  return config.algorithm.old_logprobs == OldLogprobs::kRecompute &&
         config.train.num_mini_batches * config.algorithm.num_iterations > 1;
}

void score(std::vector<sp::Shard>& shards, const engine::Decoder& policy, const engine::Decoder* reference,
           const Config& config, const sp::MeshCommunicators& comms) {
  const at::NoGradGuard no_grad;
  for (sp::Shard& shard : shards) {
    const auto attention = shard_attention(shard, comms);
    if (needs_old_pass(config)) {
      shard.old_logprob_n = score_shard(policy, shard, *attention).logprobs_n;
    }
    if (reference != nullptr) {
      shard.reference_logprob_n = score_shard(*reference, shard, *attention).logprobs_n;
    }
  }
}

LossFunction grpo_loss_function(const Config& config) {
  const bool old_is_current =
      config.algorithm.old_logprobs == OldLogprobs::kRecompute && !needs_old_pass(config);
  return [&config, old_is_current](const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                   const sp::Shard& shard) {
    if (!old_is_current) {
      return grpo_loss(logprob_n, entropy_n, shard, config.algorithm);
    }
    sp::Shard on_policy = shard;
    on_policy.old_logprob_n = logprob_n.detach();
    return grpo_loss(logprob_n, entropy_n, on_policy, config.algorithm);
  };
}

void log_messages(RolloutSource& source, TrainingRun& run) {
  for (const std::string& message : source.drain_messages()) {
    run.clear_progress();
    log::info(message);
  }
}

}  // namespace

void train_grpo(TrainingRun& run, RolloutSource* source) {
  const Config& config = run.config();
  const auto reference = load_reference(config);
  const LossFunction loss = grpo_loss_function(config);
  const auto evaluation = run.is_main_rank() ? Evaluation::make(config, run.decoder().config()) : nullptr;
  if (source != nullptr) {
    source->publish(run.decoder(), run.state().weight_version, run.state().step + 1);
  }
  while (run.state().step < run.steps()) {
    const auto rollouts = broadcast_rollouts(source, run.state().step + 1, *run.comms().world,
                                             [&] { log_messages(*source, run); });
    std::vector<std::vector<sp::Shard>> mini_batches;
    for (const auto& documents : make_mini_batches(rollouts, config)) {
      mini_batches.push_back(run.collate(documents));
      score(mini_batches.back(), run.decoder(), reference.get(), config, run.comms());
    }
    std::vector<UpdateResult> updates;
    for (int64_t iteration = 0; iteration < config.algorithm.num_iterations; ++iteration) {
      for (const auto& shards : mini_batches) {
        updates.push_back(run.update(shards, loss));
      }
    }
    Metrics metrics = grpo_step_metrics(rollouts, updates, run.state().weight_version, config);
    if (evaluation && evaluation->is_due(run.state().step + 1)) {
      metrics.emplace_back("eval_reward", evaluation->mean_reward(run.decoder()));
    }
    const bool saved = run.finish_step(std::move(metrics), updates);
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
