#include "engine/nn/head_logits.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ringside::engine {
namespace {

// Rows of the head whose products exist at once, so that they stay in a cache.
constexpr int64_t kHeadRows = 4096;

// A product is summed in fp32 and rounded to the dtype of its factors at its end. So a second one
// that starts from the negative of the first is what rounding took from the first. On a processor
// with bf16 units the two cost less than one in fp32.
at::Tensor unrounded_product(const at::Tensor& hidden_nE, const at::Tensor& head_VE) {
  const int64_t vocab = head_VE.size(0);
  const at::Tensor logits_nV =
      at::empty({hidden_nE.size(0), vocab}, hidden_nE.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < vocab; begin += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, vocab - begin);
    const at::Tensor head_Ev = head_VE.narrow(0, begin, rows).t();
    at::Tensor product = at::mm(hidden_nE, head_Ev);
    at::Tensor logits = logits_nV.narrow(1, begin, rows);
    logits.copy_(product);
    logits.add_(product.addmm_(hidden_nE, head_Ev, /*beta=*/-1));
  }
  return logits_nV;
}

}  // namespace

at::Tensor head_logits(const at::Tensor& hidden_nE, const at::Tensor& head_VE) {
  const at::ScalarType dtype = hidden_nE.scalar_type();
  if (hidden_nE.is_cuda() || dtype == at::kFloat || dtype == at::kDouble) {
    return at::mm(hidden_nE, head_VE.t());
  }
  return unrounded_product(hidden_nE, head_VE);
}

}  // namespace ringside::engine
