// Collator: packs documents into micro-batches, places the tokens of each on the sequence-parallel
// ranks and cuts out this rank's part. Everything before the tensors is a pure function of the
// documents, so all ranks agree without communication. A prefix that documents share, for example a
// group's prompt, is one segment: it is stored, computed and sent once.
//
// Shapes: s = tokens of this rank, n = loss entries of this rank, m = entries of further tokens, w
// = width of a field.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sp/batch/document.h"
#include "sp/layout/packing.h"
#include "sp/layout/placement.h"
#include "sp/layout/sequence_layout.h"
#include "sp/mesh/mesh.h"
#include "sp/plan/attention_plan.h"
#include "sp/plan/image_plan.h"
#include "sp/plan/state_plan.h"

namespace ringside::sp {

// Tokens with and without shared prefixes in one micro-batch, over all ranks.
struct PrefixSaving {
  int64_t raw_tokens = 0;     // of the documents
  int64_t unique_tokens = 0;  // of the forest: those that are computed
};

// Attention of the layers with one window.
struct WindowPlan {
  int64_t window = 0;  // as PlanOptions::window
  std::shared_ptr<const AttentionPlan> plan;
  // Query-key pairs per head and layer, over all ranks: of the documents, and those computed.
  int64_t raw_pairs = 0;
  int64_t unique_pairs = 0;
};

// This rank's part of one micro-batch: its tokens and their loss entries. Other columns of an entry
// belong to the caller, who finds them by entry_index.
struct MicroBatch {
  // One for each of CollatorOptions::windows. Their layout and heads are the same.
  std::vector<WindowPlan> plans;
  std::shared_ptr<const StatePlan> state_plan;  // null without CollatorOptions::state
  Balance balance;                              // over the ring ranks
  PrefixSaving saving;
  bool async_ulysses = false;    // as in SequenceOptions
  at::Tensor share_positions_S;  // int64, of the whole ring share; only with async_ulysses
  at::Tensor ids_s;              // int64
  at::Tensor positions_s;        // int64, within each token's document
  at::Tensor copies_s;           // int64, documents of the micro-batch that have the token
  at::Tensor source_n;           // int64, local index of the scoring token
  at::Tensor target_n;           // int64
  at::Tensor sample_n;           // int64
  // Document::fields by name but those of images, [s, w] each in its dtype. A rank without tokens
  // has them too: what follows may be collective.
  std::map<std::string, at::Tensor, std::less<>> fields;
  // Index of each entry in the order (document, entry) over all collated documents.
  std::vector<int64_t> entry_index;
  // With kPositionsField, instead of the positions above for what rotates by position. int64, time,
  // height and width; share_positions_3S only with async_ulysses.
  at::Tensor positions_3s = {};
  at::Tensor share_positions_3S = {};
  // The distinct images of the micro-batch over all sp ranks, in the order of their first tokens,
  // and the plan of them. Without images the plan is null, on every sp rank.
  std::vector<DocumentImage> images = {};
  std::shared_ptr<const ImagePlan> image_plan = {};
  // With kNextIdField, for each loss entry whose source has a token before it: that token, from
  // which the target is two ahead. int64, as source_n and target_n; undefined without the field.
  at::Tensor further_source_m = {};
  at::Tensor further_target_m = {};
  int64_t kind = 0;  // Document::kind of its documents, the same on every rank

  // Throws: std::out_of_range when no plan has this window.
  const WindowPlan& plan(int64_t window) const;
  // For what all plans have in common: rows, heads, ranks.
  const AttentionPlan& any_plan() const { return *plans.front().plan; }
  int64_t num_entries() const { return static_cast<int64_t>(entry_index.size()); }
};

// Placement of micro-batches on the mesh.
struct SequenceOptions {
  PlanOptions plan;  // its window does not count: windows belong to the model
  Placement placement = Placement::kDocumentAware;
  bool shared_prefix = true;
  bool async_ulysses = false;  // overlap projections with the exchange of heads
};

// Work of a micro-batch in a model, in any unit: only ratios count. By default a token's alone.
struct WorkRates {
  double token = 1.0;              // of a token, without attention
  std::map<int64_t, double> pair;  // of a query-key pair in all layers with this window
};

// What the collator needs to know of the model and of the layout.
struct CollatorOptions {
  HeadShape heads;
  int64_t tokens_per_micro_batch = 0;  // unique tokens
  SequenceOptions sequence;
  int64_t max_document_tokens = 0;  // longer documents are refused; 0 = none
  // Distinct windows of the model's layers, as PlanOptions::window.
  std::vector<int64_t> windows = {0};
  std::optional<StateShape> state = {};  // of layers that pass a state; none: no layer does
  WorkRates work = {};                   // orders the micro-batches
  ImageWork image_work = {};             // divides images over ranks
};

// Assignment of documents to micro-batches and data-parallel ranks. Documents that share a prefix
// stay together as far as the token budget and an equal part for each data-parallel rank allow.
// Ranks compare the plan's hash before a step. Kinds of documents come one after another; of each
// kind the micro-batches of a data-parallel rank come
// in the order of their work, the most first: the ranks then have much work at the same time, the
// stages of a pipeline wait less for each other, and the first micro-batch shows the memory's peak.
// Throws: std::invalid_argument, the same on every rank, when documents have other fields, or
// dp_size or tokens_per_micro_batch is below 1. Thread safety: pure.
PackingPlan plan_micro_batches(std::span<const Document> documents, int64_t dp_size,
                               int64_t tokens_per_micro_batch, bool shared_prefix,
                               const WorkRates& work = {});

// This rank's micro-batches of a packing of these documents. Every sequence-parallel rank gets the
// same number of micro-batches; some may have no token.
// Throws: std::invalid_argument, the same on every rank, on a document whose entries or fields do
// not match its ids, which has other fields than another, or that is longer than
// options.max_document_tokens; on tokens of images as packed_images(); on options without a window;
// on a packing for another number of data-parallel ranks; as plan_attention() and plan_state().
// Thread safety: pure.
std::vector<MicroBatch> collate(std::span<const Document> documents, const PackingPlan& packing,
                                const Mesh& mesh, const CollatorOptions& options);

// collate() with the packing of plan_micro_batches().
// Throws: as both.
std::vector<MicroBatch> collate(std::span<const Document> documents, const Mesh& mesh,
                                const CollatorOptions& options);

}  // namespace ringside::sp
