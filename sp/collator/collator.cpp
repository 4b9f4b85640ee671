#include "sp/collator/collator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace ringside::sp {
namespace {

void check_document(const Document& document, std::size_t index) {
  document.entries.check();
  const auto length = static_cast<int64_t>(document.ids.size());
  for (const int64_t source : document.entries.source) {
    if (source < 0 || source >= length) {
      throw std::invalid_argument("collator: document " + std::to_string(index) +
                                  " has a loss entry at token " + std::to_string(source) + " of " +
                                  std::to_string(length));
    }
  }
}

// One micro-batch before it is cut.
struct Packed {
  std::vector<int64_t> lengths;
  std::vector<int64_t> ids;
  LossEntries entries;               // source = packed index
  std::vector<int64_t> entry_index;  // place in the order (document, entry)
};

Packed pack(std::span<const Document> documents, const std::vector<int64_t>& chosen,
            const std::vector<int64_t>& first_entry_of) {
  Packed packed;
  for (const int64_t d : chosen) {
    const Document& document = documents[d];
    const auto offset = static_cast<int64_t>(packed.ids.size());
    packed.lengths.push_back(static_cast<int64_t>(document.ids.size()));
    packed.ids.insert(packed.ids.end(), document.ids.begin(), document.ids.end());
    for (std::size_t i = 0; i < document.entries.source.size(); ++i) {
      packed.entries.append(document.entries, i, offset);
      packed.entry_index.push_back(first_entry_of[d] + static_cast<int64_t>(i));
    }
  }
  return packed;
}

// The entries whose source token is on this rank, source as local index, ordered by it.
LossEntries local_entries(const Packed& packed, const std::vector<int64_t>& local_of_packed,
                          std::vector<int64_t>& entry_index) {
  std::vector<std::size_t> mine;
  for (std::size_t i = 0; i < packed.entries.source.size(); ++i) {
    if (local_of_packed[packed.entries.source[i]] >= 0) {
      mine.push_back(i);
    }
  }
  std::stable_sort(mine.begin(), mine.end(), [&](std::size_t a, std::size_t b) {
    return local_of_packed[packed.entries.source[a]] < local_of_packed[packed.entries.source[b]];
  });
  LossEntries entries;
  for (const std::size_t i : mine) {
    const int64_t source = packed.entries.source[i];
    entries.append(packed.entries, i, local_of_packed[source] - source);
    entry_index.push_back(packed.entry_index[i]);
  }
  return entries;
}

at::Tensor integers(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

Shard cut(const Packed& packed, const Mesh& mesh, const CollatorOptions& options) {
  const SequenceLayout layout(packed.lengths, mesh.shape().ring, mesh.shape().ulysses);
  const int64_t rank = mesh.sp_rank();
  Shard shard;
  shard.plan = std::make_shared<const AttentionPlan>(plan_attention(layout, options.heads, rank));
  shard.num_packed_tokens = layout.num_tokens();
  shard.ids_s = integers(layout.shard<int64_t>(packed.ids, rank));
  shard.positions_s = integers(layout.positions(rank));
  const LossEntries entries =
      local_entries(packed, layout.local_index_of_packed(rank), shard.entry_index);
  const auto scalars = [&](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble).to(options.scalar_dtype);
  };
  shard.source_n = integers(entries.source);
  shard.target_n = integers(entries.target);
  shard.sample_n = integers(entries.sample);
  shard.rollout_logprob_n = scalars(entries.rollout_logprob);
  shard.old_logprob_n = scalars(entries.old_logprob);
  shard.reference_logprob_n = scalars(entries.reference_logprob);
  shard.advantage_n = scalars(entries.advantage);
  shard.weight_n = scalars(entries.weight);
  shard.temperature_n = scalars(entries.temperature);
  return shard;
}

}  // namespace

PackingPlan plan_micro_batches(std::span<const Document> documents, int64_t dp_size,
                               int64_t tokens_per_micro_batch) {
  std::vector<int64_t> lengths;
  for (const Document& document : documents) {
    lengths.push_back(static_cast<int64_t>(document.ids.size()));
  }
  return pack_documents(lengths, dp_size, tokens_per_micro_batch);
}

std::vector<Shard> collate(std::span<const Document> documents, const Mesh& mesh,
                           const CollatorOptions& options) {
  std::vector<int64_t> first_entry_of;
  int64_t num_entries = 0;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    check_document(documents[d], d);
    first_entry_of.push_back(num_entries);
    num_entries += documents[d].entries.size();
  }
  const auto plan = plan_micro_batches(documents, mesh.shape().dp_replicate, options.tokens_per_micro_batch);
  std::vector<Shard> shards;
  for (const auto& chosen : plan.micro_batches[mesh.dp_rank()]) {
    shards.push_back(cut(pack(documents, chosen, first_entry_of), mesh, options));
  }
  return shards;
}

}  // namespace ringside::sp
