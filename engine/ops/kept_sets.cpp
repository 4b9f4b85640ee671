#include "engine/ops/kept_sets.h"

#include <ATen/ATen.h>

namespace ringside::engine {
namespace {

// e^(it / temperature) is 0 for every temperature in use, and its products with gradients are
// finite.
double lowest_logit(at::ScalarType dtype) { return dtype == at::kHalf ? -6e4 : -1e30; }

}  // namespace

KeptSets arranged(const KeptSets& kept, const at::Tensor& order_n) {
  std::vector<int32_t> entries, words;
  KeptSets result{{0}, {}, {}};
  const int64_t* order = order_n.const_data_ptr<int64_t>();
  const int32_t* word = kept.word_m.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < order_n.numel(); ++i) {
    const int64_t begin = kept.begin.at(order[i]), end = kept.begin.at(order[i] + 1);
    words.insert(words.end(), word + begin, word + end);
    entries.insert(entries.end(), end - begin, static_cast<int32_t>(i));
    result.begin.push_back(static_cast<int64_t>(words.size()));
  }
  result.entry_m = at::tensor(entries, at::kInt);
  result.word_m = at::tensor(words, at::kInt);
  return result;
}

void keep_only(const at::Tensor& logits_cV, int64_t first, const KeptSets& kept) {
  if (!kept.any() || logits_cV.numel() == 0) {
    return;
  }
  const int64_t begin = kept.begin.at(first), end = kept.begin.at(first + logits_cV.size(0));
  const auto of_rows = [&](const at::Tensor& x_m) {
    return x_m.narrow(0, begin, end - begin).to(at::kLong);
  };
  const at::Tensor word_m = of_rows(kept.word_m);
  const at::Tensor place_m =
      (of_rows(kept.entry_m) - first) * logits_cV.size(1) + word_m.clamp_min(0);
  const at::Tensor flat = logits_cV.view({-1});
  const double lowest = lowest_logit(logits_cV.scalar_type());
  const at::Tensor values_m = flat.index_select(0, place_m).masked_fill_(word_m.lt(0), lowest);
  flat.fill_(lowest);
  // Words of other ranks fall on word 0, which may be in the set: the largest value stays.
  flat.scatter_reduce_(0, place_m, values_m, "amax", /*include_self=*/true);
}

}  // namespace ringside::engine
