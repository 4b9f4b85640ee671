// From documents to what one rank computes on: documents are packed into micro-batches, each micro-batch is laid out over
// the sequence-parallel ranks, and this rank's share of token fields and loss entries is cut out through that layout.
// Everything up to the tensors is a pure function of the documents, so all ranks agree without talking. A prefix that
// documents share, a group's prompt above all, becomes one segment: stored, computed and sent once.
// Shapes: s = tokens of this rank, n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sp/collator/document.h"
#include "sp/comm/mesh.h"
#include "sp/layout/packing.h"
#include "sp/layout/placement.h"
#include "sp/layout/sequence_layout.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// What sharing prefixes saves in one micro-batch, over all ranks.
struct PrefixSaving {
  int64_t raw_tokens = 0;     // of the documents
  int64_t unique_tokens = 0;  // of the forest: what is computed
  int64_t raw_pairs = 0;      // query-key pairs the documents would attend to, per head and layer
  int64_t unique_pairs = 0;
};

// This rank's share of one micro-batch.
struct Shard {
  std::shared_ptr<const AttentionPlan> plan;
  Balance balance;                // over the ring ranks
  PrefixSaving saving;
  bool async_ulysses = false;     // as SequenceOptions
  at::Tensor share_positions_S;   // int64, of the whole ring share; with async_ulysses only
  at::Tensor ids_s;               // int64
  at::Tensor positions_s;         // int64, within each token's document
  at::Tensor source_n;            // int64, local index of the scoring token
  at::Tensor target_n;            // int64
  at::Tensor sample_n;            // int64
  // fp32, or fp64 when the model computes in it:
  at::Tensor rollout_logprob_n;
  at::Tensor old_logprob_n;
  at::Tensor reference_logprob_n;
  at::Tensor old_value_n;
  at::Tensor advantage_n;
  at::Tensor return_n;
  at::Tensor correction_n;
  at::Tensor weight_n;
  at::Tensor temperature_n;
  // For each entry its place in the order (document, entry): what puts per-entry results back together.
  std::vector<int64_t> entry_index;
};

// How micro-batches are laid out over the mesh.
struct SequenceOptions {
  PlanOptions plan;
  Placement placement = Placement::kDocumentAware;
  bool shared_prefix = true;
  bool async_ulysses = false;  // projections overlapped with the exchange of heads
};

struct CollatorOptions {
  HeadShape heads;
  int64_t tokens_per_micro_batch = 0;        // unique tokens
  at::ScalarType scalar_dtype = at::kFloat;  // of the entries' columns
  SequenceOptions sequence;
};

// This rank's shards, one per micro-batch; the same number on every rank, some possibly without a token. Throws
// std::invalid_argument on a document whose entries do not fit its ids.
std::vector<Shard> collate(std::span<const Document> documents, const Mesh& mesh,
                           const CollatorOptions& options);

// The packing that collate() uses, and whose hash ranks compare before a step. Documents that share a prefix stay
// together as far as the budget, and an equal part for each data-parallel rank, allow.
PackingPlan plan_micro_batches(std::span<const Document> documents, int64_t dp_size, int64_t tokens_per_micro_batch,
                               bool shared_prefix);

}  // namespace ringside::sp
