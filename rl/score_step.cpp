#include "rl/score_step.h"

#include <ATen/ATen.h>

#include "rl/policy_update.h"

namespace ringside::rl {
namespace {

bool kl_before_updates(const AlgorithmConfig& config) {
  return config.kl_coef > 0.0 && config.kl_in != KlIn::kLoss;
}

// What is read of the table beside the rollout's log-probs.
bool reads_old(const AlgorithmConfig& config) {
  return config.correction.mode != CorrectionMode::kNone || kl_before_updates(config);
}

using Column = at::Tensor sp::Shard::*;

// One number a token of the step, in the table's order. Every entry lies on exactly one rank, so the sum over ranks is a
// merge, exact to the bit.
std::vector<double> gather_column(Column column, const StepBatch& batch, const StepShards& shards,
                                  sp::Communicator& world) {
  const auto num_tokens = static_cast<int64_t>(batch.table.rollout.size());
  at::Tensor values = at::zeros({num_tokens}, at::kDouble);
  for (std::size_t b = 0; b < shards.size(); ++b) {
    for (const sp::Shard& shard : shards[b]) {
      const at::Tensor where = at::tensor(shard.entry_index, at::kLong) + batch.mini_batches[b].first_token;
      values.index_copy_(0, where, (shard.*column).to(at::kDouble));
    }
  }
  world.all_reduce_sum(values, "scores");
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + num_tokens};
}

void set_column(sp::Shard& shard, Column column, const at::Tensor& of_step, int64_t first_token) {
  const at::Tensor where = at::tensor(shard.entry_index, at::kLong) + first_token;
  shard.*column = of_step.index_select(0, where).to((shard.*column).scalar_type());
}

}  // namespace

bool needs_old_pass(const Config& config) {
  return config.algorithm.old_logprobs == OldLogprobs::kRecompute &&
         (config.train.num_mini_batches * config.algorithm.num_iterations > 1 || reads_old(config.algorithm));
}

void score_step(StepShards& shards, const Policies& policies, const Config& config,
                const sp::MeshCommunicators& comms) {
  const at::NoGradGuard no_grad;
  for (auto& mini_batch : shards) {
    for (sp::Shard& shard : mini_batch) {
      const auto attention = shard_attention(shard, comms);
      if (needs_old_pass(config)) {
        shard.old_logprob_n = score_shard(policies.policy, shard, *attention).logprobs_n;
      }
      if (policies.reference != nullptr) {
        shard.reference_logprob_n = score_shard(*policies.reference, shard, *attention).logprobs_n;
      }
      if (policies.critic != nullptr) {
        shard.old_value_n = policies.critic->score(shard, comms);
      }
    }
  }
}

void gather_scores(TokenTable& table, const StepBatch& batch, const StepShards& shards, const Config& config,
                   const sp::MeshCommunicators& comms) {
  const AlgorithmConfig& algorithm = config.algorithm;
  if (reads_old(algorithm)) {
    table.old = algorithm.old_logprobs == OldLogprobs::kRollout
                    ? table.rollout
                    : gather_column(&sp::Shard::old_logprob_n, batch, shards, *comms.world);
  }
  if (kl_before_updates(algorithm)) {
    table.reference = algorithm.kl_to == KlTo::kRollout
                          ? table.rollout
                          : gather_column(&sp::Shard::reference_logprob_n, batch, shards, *comms.world);
  }
  if (algorithm.advantage.estimator == AdvantageEstimator::kGae) {
    table.value = gather_column(&sp::Shard::old_value_n, batch, shards, *comms.world);
  }
}

void attach_advantages(StepShards& shards, const StepBatch& batch, const StepAdvantages& advantages,
                       const CorrectionResult& correction) {
  const at::Tensor advantage = at::tensor(advantages.advantage, at::kDouble);
  const at::Tensor returns = at::tensor(advantages.returns, at::kDouble);
  const at::Tensor weight = at::tensor(correction.weight, at::kDouble);
  for (std::size_t b = 0; b < shards.size(); ++b) {
    const int64_t first = batch.mini_batches[b].first_token;
    for (sp::Shard& shard : shards[b]) {
      set_column(shard, &sp::Shard::advantage_n, advantage, first);
      if (!advantages.returns.empty()) {
        set_column(shard, &sp::Shard::return_n, returns, first);
      }
      if (!correction.weight.empty()) {
        set_column(shard, &sp::Shard::correction_n, weight, first);
      }
    }
  }
}

void apply_micro_batch_mean(std::vector<sp::Shard>& shards, LossAggregation aggregation,
                            const sp::MeshCommunicators& comms) {
  if (aggregation != LossAggregation::kMicroBatchTokenMean) {
    return;
  }
  std::vector<double> entries;
  for (const sp::Shard& shard : shards) {
    entries.push_back(static_cast<double>(shard.weight_n.size(0)));
  }
  at::Tensor tokens = at::tensor(entries, at::kDouble);  // of each micro-batch of this data-parallel rank
  comms.sp->all_reduce_sum(tokens, "micro_batch_tokens");
  at::Tensor micro_batches = tokens.gt(0).sum(at::kDouble).view({1});
  comms.dp->all_reduce_sum(micro_batches, "micro_batches");
  for (std::size_t m = 0; m < shards.size(); ++m) {
    const double divisor = tokens[static_cast<int64_t>(m)].item<double>() * micro_batches.item<double>();
    shards[m].weight_n = shards[m].weight_n / std::max(1.0, divisor);
  }
}

}  // namespace ringside::rl
