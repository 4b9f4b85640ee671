#include "sp/batch/collator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "sp/batch/next_ids.h"
#include "sp/batch/packed_images.h"
#include "sp/batch/prefix_tree.h"

namespace ringside::sp {
namespace {

void check_document(const Document& document, std::size_t index, int64_t max_tokens) {
  document.entries.check();
  const auto length = static_cast<int64_t>(document.ids.size());
  if (max_tokens > 0 && length > max_tokens) {
    throw std::invalid_argument(
        "collator: document " + std::to_string(index) + " has " + std::to_string(length) +
        " tokens, but the model's positions are exact only up to " + std::to_string(max_tokens) +
        " (model.max_document_tokens, or in config.json max_position_embeddings with rope_type "
        "dynamic, or dual_chunk_attention_config)");
  }
  for (const int64_t source : document.entries.source) {
    if (source < 0 || source >= length) {
      throw std::invalid_argument("collator: document " + std::to_string(index) +
                                  " has a loss entry at token " + std::to_string(source) + " of " +
                                  std::to_string(length));
    }
  }
}

std::string described(std::span<const TokenField> fields) {
  std::string text;
  for (const TokenField& field : fields) {
    text += (text.empty() ? "" : ", ") + field.name + " of " + std::to_string(field.row_bytes()) +
            " bytes a token";
  }
  return text.empty() ? "no fields" : text;
}

bool same_form(const TokenField& a, const TokenField& b) {
  return a.name == b.name && a.dtype == b.dtype && a.width == b.width;
}

// The fields that all documents with tokens have in common, of the first of them.
// Throws: std::invalid_argument when another has other fields, or values for another number of
// tokens than it has.
std::span<const TokenField> common_fields(std::span<const Document> documents) {
  std::span<const TokenField> common;
  bool is_first = true;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const Document& document = documents[d];
    if (document.ids.empty() && document.fields.empty()) {
      continue;
    }
    common = is_first ? std::span<const TokenField>(document.fields) : common;
    is_first = false;
    if (!std::equal(document.fields.begin(), document.fields.end(), common.begin(), common.end(),
                    same_form)) {
      throw std::invalid_argument("collator: document " + std::to_string(d) + " has " +
                                  described(document.fields) + ", the documents before it have " +
                                  described(common));
    }
    for (const TokenField& field : document.fields) {
      const auto bytes = static_cast<int64_t>(document.ids.size()) * field.row_bytes();
      if (std::ssize(field.bytes) != bytes) {
        throw std::invalid_argument("collator: document " + std::to_string(d) + " has " +
                                    std::to_string(field.bytes.size()) + " bytes in field " +
                                    field.name + " of its " + std::to_string(document.ids.size()) +
                                    " tokens, expected " + std::to_string(bytes));
      }
    }
  }
  return common;
}

// A document's fields token by token.
std::vector<uint8_t> joined_rows(const Document& document) {
  std::vector<uint8_t> rows;
  for (std::size_t token = 0; token < document.ids.size(); ++token) {
    for (const TokenField& field : document.fields) {
      const auto bytes = field.row_bytes();
      const auto begin = field.bytes.begin() + static_cast<int64_t>(token) * bytes;
      rows.insert(rows.end(), begin, begin + bytes);
    }
  }
  return rows;
}

PrefixTree tree_of(std::span<const Document> documents, const std::vector<int64_t>& chosen,
                   bool shared_prefix) {
  std::vector<const std::vector<int64_t>*> ids;
  std::vector<std::vector<uint8_t>> joined;  // of documents with several fields
  joined.reserve(chosen.size());
  std::vector<const std::vector<uint8_t>*> rows;
  for (const int64_t d : chosen) {
    const Document& document = documents[d];
    ids.push_back(&document.ids);
    rows.push_back(document.fields.size() == 1 ? &document.fields[0].bytes
                                               : &joined.emplace_back(joined_rows(document)));
  }
  return shared_prefix ? build_prefix_tree(ids, rows) : unshared_tree(ids);
}

// One micro-batch before sharding.
struct Packed {
  PrefixTree tree;
  std::vector<int64_t> ids;
  std::vector<int64_t> copies;       // documents that have each token
  std::vector<TokenSource> sources;  // of each token's fields
  LossEntries entries;               // source = packed index
  std::vector<int64_t> entry_index;  // index in the order (document, entry)
  PrefixSaving saving;
  LossEntries further = {};  // of the token before each entry's, with the entry's target
};

PrefixSaving saving_of(const Packed& packed) {
  PrefixSaving saving;
  const SegmentForest& forest = packed.tree.forest;
  saving.unique_tokens = forest.num_tokens();
  for (const auto& path : packed.tree.paths) {
    for (const int64_t segment : path) {
      saving.raw_tokens += forest.length(segment);
    }
  }
  return saving;
}

WindowPlan plan_of(int64_t window, const Packed& packed, const SequenceLayout& layout, int64_t rank,
                   const CollatorOptions& options) {
  PlanOptions plan_options = options.sequence.plan;
  plan_options.window = window;
  WindowPlan plan{window, std::make_shared<const AttentionPlan>(
                              plan_attention(layout, options.heads, rank, plan_options))};
  const SegmentForest& forest = packed.tree.forest;
  const auto pairs_of = [&](int64_t segment) {
    return forest.attended_pairs(segment, {0, forest.length(segment)}, window);
  };
  for (int64_t s = 0; s < forest.num_segments(); ++s) {
    plan.unique_pairs += pairs_of(s);
  }
  for (const auto& path : packed.tree.paths) {
    for (const int64_t segment : path) {
      plan.raw_pairs += pairs_of(segment);
    }
  }
  return plan;
}

Packed pack(std::span<const Document> documents, const std::vector<int64_t>& chosen,
            const std::vector<int64_t>& first_entry_of, bool shared_prefix) {
  Packed packed{tree_of(documents, chosen, shared_prefix), {}, {}, {}, {}, {}, {}};
  packed.ids.resize(packed.tree.forest.num_tokens());
  packed.copies.resize(packed.ids.size());
  packed.sources.resize(packed.ids.size());
  for (std::size_t c = 0; c < chosen.size(); ++c) {
    const Document& document = documents[chosen[c]];
    const auto places = packed_indices_of(packed.tree, static_cast<int64_t>(c));
    for (std::size_t i = 0; i < places.size(); ++i) {
      packed.ids[places[i]] = document.ids[i];
      ++packed.copies[places[i]];
      packed.sources[places[i]] = {&document, static_cast<int64_t>(i)};
    }
    for (std::size_t i = 0; i < document.entries.source.size(); ++i) {
      const int64_t source = document.entries.source[i];
      packed.entries.add(places[source], document.entries.target[i], document.entries.sample[i]);
      packed.entry_index.push_back(first_entry_of[chosen[c]] + static_cast<int64_t>(i));
      if (source > 0) {
        packed.further.add(places[source - 1], document.entries.target[i],
                           document.entries.sample[i]);
      }
    }
  }
  packed.saving = saving_of(packed);
  return packed;
}

// The entries whose source token is on this rank, with local source indices, in their order.
// indices: gets the index of each among all.
LossEntries local_entries(const LossEntries& all, const std::vector<int64_t>& local_of_packed,
                          std::vector<std::size_t>& indices) {
  for (std::size_t i = 0; i < all.source.size(); ++i) {
    if (local_of_packed[all.source[i]] >= 0) {
      indices.push_back(i);
    }
  }
  std::stable_sort(indices.begin(), indices.end(), [&](std::size_t a, std::size_t b) {
    return local_of_packed[all.source[a]] < local_of_packed[all.source[b]];
  });
  LossEntries entries;
  for (const std::size_t i : indices) {
    entries.add(local_of_packed[all.source[i]], all.target[i], all.sample[i]);
  }
  return entries;
}

struct FamilyPacking {
  PackingPlan plan;          // of documents
  int64_t fullest_rank = 0;  // tokens of the fullest data-parallel rank
};

FamilyPacking pack_families(const PrefixTree& tree, int64_t max_tokens, int64_t dp_size,
                            int64_t budget) {
  const auto families = cut_into_families(tree, max_tokens);
  std::vector<int64_t> lengths;
  for (const Family& family : families) {
    lengths.push_back(family.tokens);
  }
  FamilyPacking packing{pack_documents(lengths, dp_size, budget)};
  for (auto& rank : packing.plan.micro_batches) {
    int64_t tokens = 0;
    for (auto& micro_batch : rank) {
      std::vector<int64_t> members;
      for (const int64_t family : micro_batch) {
        tokens += lengths[family];
        members.insert(members.end(), families[family].documents.begin(),
                       families[family].documents.end());
      }
      micro_batch = std::move(members);
    }
    packing.fullest_rank = std::max(packing.fullest_rank, tokens);
  }
  return packing;
}

double work_of(const SegmentForest& forest, const WorkRates& rates) {
  double work = rates.token * static_cast<double>(forest.num_tokens());
  for (const auto& [window, rate] : rates.pair) {
    int64_t pairs = 0;
    for (int64_t s = 0; s < forest.num_segments(); ++s) {
      pairs += forest.attended_pairs(s, {0, forest.length(s)}, window);
    }
    work += rate * static_cast<double>(pairs);
  }
  return work;
}

// Puts the micro-batches of each data-parallel rank in the order of their work, the most first.
void sort_by_work(PackingPlan& plan, std::span<const Document> documents, bool shared_prefix,
                  const WorkRates& rates) {
  for (auto& rank : plan.micro_batches) {
    std::vector<std::pair<double, std::vector<int64_t>>> weighed;
    for (auto& chosen : rank) {
      const double work = work_of(tree_of(documents, chosen, shared_prefix).forest, rates);
      weighed.emplace_back(work, std::move(chosen));
    }
    std::ranges::stable_sort(weighed, std::greater<>(), [](const auto& one) { return one.first; });
    for (std::size_t m = 0; m < rank.size(); ++m) {
      rank[m] = std::move(weighed[m].second);
    }
  }
}

at::Tensor integers(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

at::ScalarType scalar_type(FieldType type) {
  return type == FieldType::kUInt8   ? at::kByte
         : type == FieldType::kInt16 ? at::kShort
         : type == FieldType::kInt32 ? at::kInt
         : type == FieldType::kInt64 ? at::kLong
                                     : at::kFloat;
}

// One field of these tokens. index: of the field in each document.
at::Tensor field_of(const Packed& packed, const std::vector<int64_t>& packed_indices,
                    const TokenField& form, std::size_t index) {
  const int64_t bytes = form.row_bytes();
  at::Tensor rows = at::empty({static_cast<int64_t>(packed_indices.size()), bytes}, at::kByte);
  auto* out = rows.data_ptr<uint8_t>();
  for (const int64_t i : packed_indices) {
    const auto& [document, token] = packed.sources[i];
    const auto begin = document->fields[index].bytes.begin() + token * bytes;
    out = std::copy(begin, begin + bytes, out);
  }
  return rows.view(scalar_type(form.dtype));
}

// Positions of three components of these tokens: int64 [3, tokens].
at::Tensor positions_of(const Packed& packed, const std::vector<int64_t>& packed_indices,
                        std::span<const TokenField> fields) {
  const auto found = std::ranges::find(fields, kPositionsField, &TokenField::name);
  const auto index = static_cast<std::size_t>(found - fields.begin());
  return field_of(packed, packed_indices, *found, index).t().to(at::kLong).contiguous();
}

std::vector<int64_t> packed_indices_of_share(const SequenceLayout& layout, int64_t ring_rank) {
  std::vector<int64_t> indices;
  for (const TokenRun& run : layout.ring_share(ring_rank)) {
    const Range packed = layout.packed(run);
    for (int64_t i = packed.begin; i < packed.end; ++i) {
      indices.push_back(i);
    }
  }
  return indices;
}

// Positions, images and their plan. Documents without fields of images have none of them.
void add_images(MicroBatch& batch, const Packed& packed, std::span<const TokenField> fields,
                const SequenceLayout& layout, const Mesh& mesh, const ImageWork& work) {
  if (!have_image_fields(fields)) {
    return;
  }
  PackedImages images = packed_images(packed.sources, fields);
  batch.positions_3s = positions_of(packed, layout.packed_indices(mesh.sp_rank()), fields);
  if (batch.async_ulysses) {
    batch.share_positions_3S =
        positions_of(packed, packed_indices_of_share(layout, mesh.ring_rank()), fields);
  }
  if (images.images.empty()) {
    return;
  }
  std::vector<ImageShape> shapes;
  for (const DocumentImage& image : images.images) {
    shapes.push_back({image.tokens, image_cost(image.grid, work)});
  }
  batch.image_plan = std::make_shared<const ImagePlan>(
      plan_images(shapes, rows_on_ranks(images, layout), layout.sp_size(), mesh.sp_rank()));
  batch.images = std::move(images.images);
}

// Loss entries and, where tokens know the next one, those of further tokens.
void add_entries(MicroBatch& batch, const Packed& packed,
                 const std::vector<int64_t>& local_of_packed) {
  std::vector<std::size_t> indices, indices_of_further;
  const LossEntries entries = local_entries(packed.entries, local_of_packed, indices);
  for (const std::size_t i : indices) {
    batch.entry_index.push_back(packed.entry_index[i]);
  }
  batch.source_n = integers(entries.source);
  batch.target_n = integers(entries.target);
  batch.sample_n = integers(entries.sample);
  if (batch.fields.contains(kNextIdField)) {
    const LossEntries further = local_entries(packed.further, local_of_packed, indices_of_further);
    batch.further_source_m = integers(further.source);
    batch.further_target_m = integers(further.target);
  }
}

MicroBatch cut(const Packed& packed, std::span<const TokenField> fields, const Mesh& mesh,
               const CollatorOptions& options) {
  const SequenceLayout layout(packed.tree.forest, mesh.shape().ring, mesh.shape().ulysses,
                              options.sequence.placement);
  const int64_t rank = mesh.sp_rank();
  MicroBatch batch;
  for (const int64_t window : options.windows) {
    batch.plans.push_back(plan_of(window, packed, layout, rank, options));
  }
  if (options.state) {
    batch.state_plan = std::make_shared<const StatePlan>(plan_state(layout, *options.state, rank));
  }
  batch.balance = layout.balance();
  batch.saving = packed.saving;
  batch.async_ulysses = options.sequence.async_ulysses;
  if (batch.async_ulysses) {
    batch.share_positions_S = integers(layout.share_positions(mesh.ring_rank()));
  }
  batch.ids_s = integers(layout.shard<int64_t>(packed.ids, rank));
  batch.positions_s = integers(layout.positions(rank));
  batch.copies_s = integers(layout.shard<int64_t>(packed.copies, rank));
  for (std::size_t f = 0; f < fields.size(); ++f) {
    if (!is_image_field(fields[f])) {
      batch.fields[fields[f].name] = field_of(packed, layout.packed_indices(rank), fields[f], f);
    }
  }
  add_images(batch, packed, fields, layout, mesh, options.image_work);
  add_entries(batch, packed, layout.local_index_of_packed(rank));
  return batch;
}

}  // namespace

const WindowPlan& MicroBatch::plan(int64_t window) const {
  const auto found = std::find_if(plans.begin(), plans.end(),
                                  [&](const WindowPlan& one) { return one.window == window; });
  if (found == plans.end()) {
    throw std::out_of_range("micro-batch: it has no attention plan for a window of " +
                            std::to_string(window));
  }
  return *found;
}

namespace {

// The plan of these documents alone, which are of one kind.
PackingPlan plan_of_kind(std::span<const Document> documents, const std::vector<int64_t>& chosen,
                         int64_t dp_size, int64_t tokens_per_micro_batch, bool shared_prefix,
                         const WorkRates& work) {
  const PrefixTree tree = tree_of(documents, chosen, shared_prefix);
  FamilyPacking best = pack_families(tree, tokens_per_micro_batch, dp_size, tokens_per_micro_batch);
  // A large family on one data-parallel rank leaves the others idle, so this searches a family size
  // at which all ranks get about as much.
  const int64_t part = (tree.forest.num_tokens() + dp_size - 1) / dp_size;
  for (int64_t eighths = 8; eighths <= 16 && dp_size > 1; ++eighths) {
    const int64_t max_tokens = std::clamp<int64_t>(part * eighths / 8, 1, tokens_per_micro_batch);
    FamilyPacking packing = pack_families(tree, max_tokens, dp_size, tokens_per_micro_batch);
    if (packing.fullest_rank < best.fullest_rank) {
      best = std::move(packing);
    }
  }
  for (auto& rank : best.plan.micro_batches) {
    for (auto& members : rank) {
      std::ranges::transform(members, members.begin(), [&](int64_t place) {
        return chosen[static_cast<std::size_t>(place)];
      });
    }
  }
  if (best.plan.num_micro_batches() > 1) {
    sort_by_work(best.plan, documents, shared_prefix, work);
  }
  return std::move(best.plan);
}

}  // namespace

PackingPlan plan_micro_batches(std::span<const Document> documents, int64_t dp_size,
                               int64_t tokens_per_micro_batch, bool shared_prefix,
                               const WorkRates& work) {
  common_fields(documents);  // throws if they differ
  std::map<int64_t, std::vector<int64_t>> of_kinds;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    of_kinds[documents[d].kind].push_back(static_cast<int64_t>(d));
  }
  if (of_kinds.empty()) {
    of_kinds[0];
  }
  PackingPlan all;
  for (const auto& [kind, chosen] : of_kinds) {
    PackingPlan own =
        plan_of_kind(documents, chosen, dp_size, tokens_per_micro_batch, shared_prefix, work);
    if (of_kinds.size() > 1 || kind != 0) {
      all.kinds.insert(all.kinds.end(), static_cast<std::size_t>(own.num_micro_batches()), kind);
    }
    all.micro_batches.resize(own.micro_batches.size());
    for (std::size_t rank = 0; rank < own.micro_batches.size(); ++rank) {
      std::ranges::move(own.micro_batches[rank], std::back_inserter(all.micro_batches[rank]));
    }
  }
  return all;
}

std::vector<MicroBatch> collate(std::span<const Document> documents, const PackingPlan& packing,
                                const Mesh& mesh, const CollatorOptions& options) {
  const std::span<const TokenField> fields = common_fields(documents);
  if (options.windows.empty()) {
    throw std::invalid_argument("collator: no window; a model without windows has window 0");
  }
  std::vector<int64_t> first_entry_of;
  int64_t num_entries = 0;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    check_document(documents[d], d, options.max_document_tokens);
    first_entry_of.push_back(num_entries);
    num_entries += documents[d].entries.size();
  }
  if (packing.micro_batches.size() != static_cast<std::size_t>(mesh.shape().dp_size())) {
    throw std::invalid_argument(
        "collator: a plan for " + std::to_string(packing.micro_batches.size()) +
        " data-parallel ranks, the mesh has " + std::to_string(mesh.shape().dp_size()));
  }
  std::vector<MicroBatch> batches;
  for (const auto& chosen : packing.micro_batches[mesh.dp_rank()]) {
    batches.push_back(cut(pack(documents, chosen, first_entry_of, options.sequence.shared_prefix),
                          fields, mesh, options));
    batches.back().kind = packing.kind(batches.size() - 1);
  }
  return batches;
}

std::vector<MicroBatch> collate(std::span<const Document> documents, const Mesh& mesh,
                                const CollatorOptions& options) {
  const auto packing =
      plan_micro_batches(documents, mesh.shape().dp_size(), options.tokens_per_micro_batch,
                         options.sequence.shared_prefix, options.work);
  return collate(documents, packing, mesh, options);
}

}  // namespace ringside::sp
