#include "rl/score_documents.h"

#include <ATen/ATen.h>

#include "rl/policy_update.h"

namespace ringside::rl {

std::vector<std::vector<double>> score_documents(const engine::Decoder& decoder,
                                                 std::span<const sp::Document> documents,
                                                 const sp::Mesh& mesh, const sp::MeshCommunicators& comms,
                                                 const ScoreOptions& options) {
  const at::NoGradGuard no_grad;
  const auto& model = decoder.config();
  int64_t num_entries = 0;
  for (const sp::Document& document : documents) {
    num_entries += document.entries.size();
  }
  // Every entry is scored by exactly one rank, so a sum over ranks is a merge, exact to the bit.
  at::Tensor logprobs = at::zeros({num_entries}, at::kDouble);
  const sp::CollatorOptions collator{{model.num_attention_heads, model.num_key_value_heads, model.head_dim},
                                     options.tokens_per_micro_batch,
                                     decoder.compute_dtype() == at::kDouble ? at::kDouble : at::kFloat,
                                     options.sequence};
  for (const sp::Shard& shard : sp::collate(documents, mesh, collator)) {
    const auto attention = shard_attention(shard, comms);
    const at::Tensor scores = score_shard(decoder, shard, *attention).logprobs_n.to(at::kDouble);
    logprobs.index_copy_(0, at::tensor(shard.entry_index, at::kLong), scores);
  }
  comms.world->all_reduce_sum(logprobs, "scores");
  std::vector<std::vector<double>> result;
  const double* next = logprobs.const_data_ptr<double>();
  for (const sp::Document& document : documents) {
    result.emplace_back(next, next + document.entries.size());
    next += document.entries.size();
  }
  return result;
}

}  // namespace ringside::rl
