#include "sp/layout/packing.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "sp/layout/fnv_hash.h"

namespace ringside::sp {
namespace {

struct Bin {
  int64_t tokens = 0;
  std::vector<int64_t> documents;
};

std::vector<Bin> fill_bins(std::span<const int64_t> lengths, std::span<const int64_t> longest_first,
                           int64_t num_bins) {
  std::vector<Bin> bins(num_bins);
  for (const int64_t document : longest_first) {
    auto least = std::min_element(bins.begin(), bins.end(),
                                  [](const Bin& a, const Bin& b) { return a.tokens < b.tokens; });
    least->tokens += lengths[document];
    least->documents.push_back(document);
  }
  return bins;
}

bool fits(const std::vector<Bin>& bins, int64_t budget) {
  return std::all_of(bins.begin(), bins.end(), [&](const Bin& bin) {
    return bin.tokens <= budget || bin.documents.size() == 1;
  });
}

}  // namespace

uint64_t PackingPlan::hash() const {
  FnvHash hash;
  hash.add(static_cast<int64_t>(micro_batches.size()));
  for (const auto& rank : micro_batches) {
    hash.add(static_cast<int64_t>(rank.size()));
    for (const auto& documents : rank) {
      hash.add(static_cast<int64_t>(documents.size()));
      std::for_each(documents.begin(), documents.end(),
                    [&](int64_t document) { hash.add(document); });
    }
  }
  for (const int64_t kind : kinds) {
    hash.add(kind);
  }
  return hash.value();
}

PackingPlan pack_documents(std::span<const int64_t> lengths, int64_t dp_size,
                           int64_t tokens_per_micro_batch) {
  if (dp_size < 1 || tokens_per_micro_batch < 1) {
    throw std::invalid_argument(
        "pack_documents: dp_size and tokens_per_micro_batch must be positive, got " +
        std::to_string(dp_size) + " and " + std::to_string(tokens_per_micro_batch));
  }
  if (std::any_of(lengths.begin(), lengths.end(), [](int64_t n) { return n < 0; })) {
    throw std::invalid_argument("pack_documents: negative document length");
  }
  std::vector<int64_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });

  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t round = dp_size * tokens_per_micro_batch;
  int64_t per_rank = std::max<int64_t>(1, (total + round - 1) / round);
  auto bins = fill_bins(lengths, longest_first, per_rank * dp_size);
  while (!fits(bins, tokens_per_micro_batch)) {
    ++per_rank;
    bins = fill_bins(lengths, longest_first, per_rank * dp_size);
  }
  PackingPlan plan;
  plan.micro_batches.resize(dp_size);
  for (std::size_t b = 0; b < bins.size(); ++b) {
    plan.micro_batches[b % dp_size].push_back(std::move(bins[b].documents));
  }
  return plan;
}

}  // namespace ringside::sp
