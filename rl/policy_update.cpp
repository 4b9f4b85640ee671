#include "rl/policy_update.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "engine/model/overlapped_ulysses.h"
#include "engine/model/sequence_parallel_attention.h"
#include "rl/optimizer_step.h"
#include "sp/grad_sync.h"

namespace ringside::rl {
namespace {

// Sums of this rank -> sums of the world. Sequence-parallel ranks hold disjoint entries, so nothing is counted twice.
LossSums reduce(const LossSums& local, sp::Communicator& world) {
  const auto additive = sp::sum_scalars(local.additive(), world);
  const auto highest = sp::max_scalars({local.sampling_difference_max}, world);
  return LossSums::from(additive, highest[0]);
}

double sent_bytes(const sp::MeshCommunicators& comms) {
  double bytes = 0.0;
  for (const auto* comm : {comms.ulysses.get(), comms.ring.get()}) {
    for (const auto& [tag, sent] : comm->sent_bytes()) {
      bytes += static_cast<double>(sent);
    }
  }
  return bytes;
}

double predicted_bytes(const engine::Decoder& decoder, const std::vector<sp::Shard>& shards) {
  const int64_t element = at::elementSize(decoder.compute_dtype());
  const int64_t forwards = decoder.recompute_activations() ? 2 : 1;
  int64_t bytes = 0;
  for (const sp::Shard& shard : shards) {
    bytes += decoder.config().num_hidden_layers *
             (forwards * sp::forward_bytes(*shard.plan, element) +
              sp::backward_bytes(*shard.plan, element, std::max<int64_t>(4, element)));
  }
  return static_cast<double>(bytes);
}

SequenceFigures sequence_figures(const std::vector<sp::Shard>& shards, double predicted, double sent,
                                 sp::Communicator& world) {
  std::vector<double> sums{0, 0, 0, 0, predicted, sent};
  std::vector<double> highest{1, 1};
  for (const sp::Shard& shard : shards) {
    sums[0] += static_cast<double>(shard.saving.raw_tokens);
    sums[1] += static_cast<double>(shard.saving.unique_tokens);
    sums[2] += static_cast<double>(shard.saving.raw_pairs);
    sums[3] += static_cast<double>(shard.saving.unique_pairs);
    highest = {std::max(highest[0], shard.balance.tokens), std::max(highest[1], shard.balance.pairs)};
  }
  sums = sp::sum_scalars(sums, world);
  highest = sp::max_scalars(highest, world);
  const auto ratio = [](double whole, double part) { return part > 0 ? whole / part : 1.0; };
  return {ratio(sums[0], sums[1]), ratio(sums[2], sums[3]), sums[4], sums[5], highest[0], highest[1]};
}

}  // namespace

double token_mean(const std::vector<UpdateResult>& updates, double LossSums::* sum) {
  double total = 0.0;
  double tokens = 0.0;
  for (const UpdateResult& update : updates) {
    total += update.sums.*sum;
    tokens += update.sums.tokens;
  }
  return tokens > 0.0 ? total / tokens : 0.0;
}

std::unique_ptr<engine::AttentionBackend> shard_attention(const sp::Shard& shard, const sp::MeshCommunicators& comms) {
  sp::AttentionContext context{shard.plan, comms.ulysses, comms.ring};
  if (shard.async_ulysses) {
    return std::make_unique<engine::OverlappedUlysses>(std::move(context), shard.share_positions_S);
  }
  return std::make_unique<engine::SequenceParallelAttention>(std::move(context));
}

engine::TokenScores score_shard(const engine::Decoder& decoder, const sp::Shard& shard,
                                engine::AttentionBackend& attention) {
  const at::Tensor hidden_sE = decoder.forward(shard.ids_s, shard.positions_s, attention);
  return decoder.score(hidden_sE.index_select(0, shard.source_n), shard.target_n, shard.temperature_n);
}

UpdateResult update_policy(engine::Decoder& decoder, engine::AdamW& optimizer,
                           const std::vector<sp::Shard>& shards, const LossFunction& loss,
                           double learning_rate, double max_grad_norm,
                           const sp::MeshCommunicators& comms) {
  const auto units = decoder.units();
  zero_gradients(units);
  LossSums sums;
  const double sent_before = sent_bytes(comms);
  for (const sp::Shard& shard : shards) {
    const auto attention = shard_attention(shard, comms);  // recomputed layers call it again in the backward
    const auto scores = score_shard(decoder, shard, *attention);
    const PolicyLoss result = loss(scores.logprobs_n, scores.entropy_n, shard);
    sums += result.sums;
    result.loss.backward();
  }
  const double grad_norm = apply_gradients(units, optimizer, learning_rate, max_grad_norm, *comms.world);
  const auto sequence =
      sequence_figures(shards, predicted_bytes(decoder, shards), sent_bytes(comms) - sent_before, *comms.world);
  return {reduce(sums, *comms.world), sequence, grad_norm};
}

}  // namespace ringside::rl
