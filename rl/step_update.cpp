#include "rl/step_update.h"

#include <ATen/ATen.h>

#include "rl/algorithm/adaptive.h"

namespace ringside::rl {
namespace {

constexpr const char* kReferencePart = "reference";
constexpr const char* kCriticPart = "critic";

}  // namespace

Learner::Learner(TrainingRun& run) : run_(run), config_(run.config()), reference_(make_reference(config_)) {
  const auto& resumed = run.resumed_parts();
  if (reference_ && reference_->moves()) {
    if (resumed) {
      reference_->load(*resumed / kReferencePart);
    }
    run.add_checkpoint_part([this](const auto& dir) { reference_->save(dir / kReferencePart); });
  }
  if (config_.algorithm.advantage.estimator == AdvantageEstimator::kGae) {
    critic_ = std::make_unique<Critic>(config_);
    if (resumed) {
      critic_->load(*resumed / kCriticPart);
    }
    run.add_checkpoint_part([this](const auto& dir) { critic_->save(dir / kCriticPart); });
  }
}

StepShards Learner::collate(const StepBatch& batch) const {
  StepShards shards;
  for (const MiniBatch& mini_batch : batch.mini_batches) {
    shards.push_back(run_.collate(mini_batch.documents));
    apply_micro_batch_mean(shards.back(), config_.algorithm.loss_aggregation, run_.comms());
  }
  return shards;
}

void Learner::score(StepShards& shards, StepBatch& batch) const {
  const Policies policies{run_.decoder(), reference_ ? &reference_->decoder() : nullptr, critic_.get()};
  score_step(shards, policies, config_, run_.comms());
  gather_scores(batch.table, batch, shards, config_, run_.comms());
}

StepAdvantages Learner::attach_advantages(StepShards& shards, const StepBatch& batch) {
  const StepAdvantages advantages = step_advantages(batch.table, batch.rewards, config_.rollout.group_size,
                                                    config_.algorithm, run_.state().kl_coef);
  const bool corrected = config_.algorithm.correction.mode != CorrectionMode::kNone;
  correction_ = corrected ? correction_weights(batch.table, config_.algorithm.correction) : CorrectionResult{};
  rl::attach_advantages(shards, batch, advantages, correction_);
  return advantages;
}

void Learner::observe_entropy(const UpdateResult& update) {
  TrainingState& state = run_.adaptive_state();
  state.entropy = token_mean({update}, &LossSums::entropy);
  state.entropy_coef = next_entropy_coef(state.entropy_coef, state.entropy, config_.algorithm);
}

LossFunction Learner::policy_loss(const MiniBatch& mini_batch) const {
  const TrainingState& state = run_.state();
  const LossContext context{state.kl_coef, acting_entropy_coef(state.entropy_coef, state.entropy, config_.algorithm),
                            mini_batch.loss_tokens, static_cast<int64_t>(mini_batch.documents.size()), run_.comms().sp.get()};
  const bool old_is_current =
      config_.algorithm.old_logprobs == OldLogprobs::kRecompute && !needs_old_pass(config_);
  return [this, context, old_is_current](const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                         const sp::Shard& shard) {
    if (!old_is_current) {
      return grpo_loss(logprob_n, entropy_n, shard, config_.algorithm, context);
    }
    sp::Shard on_policy = shard;
    on_policy.old_logprob_n = logprob_n.detach();
    return grpo_loss(logprob_n, entropy_n, on_policy, config_.algorithm, context);
  };
}

StepUpdates Learner::update(const StepShards& shards, const StepBatch& batch) {
  StepUpdates updates;
  updates.correction = correction_;
  const AlgorithmConfig& algorithm = config_.algorithm;
  const bool policy_learns = !critic_ || run_.state().step >= algorithm.critic.warmup_steps;
  for (int64_t iteration = 0; iteration < algorithm.num_iterations; ++iteration) {
    for (std::size_t b = 0; b < shards.size(); ++b) {
      const MiniBatch& mini_batch = batch.mini_batches[b];
      if (critic_) {
        const double rate = algorithm.critic.learning_rate * run_.learning_rate_factor();
        try {
          updates.critic.push_back(critic_->update(
              shards[b], static_cast<double>(mini_batch.loss_tokens), rate, run_.comms()));
        } catch (const Diverged& error) {
          run_.diverged(Diverged(std::string("critic: ") + error.what()));
        }
      }
      if (policy_learns) {
        updates.policy.push_back(run_.update(shards[b], policy_loss(mini_batch)));
        observe_entropy(updates.policy.back());
      }
    }
  }
  return updates;
}

void Learner::adapt(const StepUpdates& updates, const StepAdvantages& advantages) {
  TrainingState& state = run_.adaptive_state();
  const AlgorithmConfig& algorithm = config_.algorithm;
  const double kl = algorithm.kl_in == KlIn::kLoss ? token_mean(updates.policy, &LossSums::kl) : advantages.kl;
  state.kl_coef =
      next_kl_coef(state.kl_coef, kl, config_.rollout.prompts_per_step * config_.rollout.group_size, algorithm);
  if (reference_) {
    reference_->follow(run_.decoder(), state.step + 1);
  }
}

}  // namespace ringside::rl
