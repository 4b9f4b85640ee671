#include "engine/ops/head_logits.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "engine/ops/dispatch.h"
#include "engine/ops/products.h"

namespace ringside::engine {
namespace {

// Rows of the head whose products exist at once, so that they stay in a cache.
constexpr int64_t kHeadRows = 4096;

// For what panels cannot hold. A product is summed in fp32 and rounded to the dtype of its factors
// at its end. So a second one that starts from the negative of the first is what rounding took from
// the first. On a processor with bf16 units the two cost less than one in fp32.
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

at::Tensor wide_logits_on_cpu(const at::Tensor& hidden_nE, const at::Tensor& head_VE) {
  return hidden_nE.numel() > 0 && Panels::can_hold(hidden_nE.scalar_type(), hidden_nE.size(1))
             ? wide_product_with_rows(hidden_nE, head_VE)
             : unrounded_product(hidden_nE, head_VE);
}

TORCH_LIBRARY_FRAGMENT(ringside, m) {
  define_operator(m, "wide_logits(Tensor hidden, Tensor head) -> Tensor",
                  TORCH_FN(wide_logits_on_cpu));
}

// Whether the weight's kernel widens the factors, which only the CPU's does.
bool widens(const at::Tensor& hidden_nE, ProductKernels kernel) {
  return kernel.forward == ProductKernel::kWidePanels && hidden_nE.device().is_cpu() &&
         hidden_nE.numel() > 0 && hidden_nE.scalar_type() == at::kBFloat16 &&
         Panels::can_hold(at::kFloat, hidden_nE.size(1));
}

// An operator, so that another device without kernels of its own takes the CPU's, with its bits.
at::Tensor wide_logits(const at::Tensor& hidden_nE, const at::Tensor& head_VE) {
  static const Operator<decltype(wide_logits)> op("ringside::wide_logits");
  return op(hidden_nE, head_VE);
}

}  // namespace

at::Tensor head_logits(const at::Tensor& hidden_nE, const Weight& head_VE) {
  const at::ScalarType dtype = hidden_nE.scalar_type();
  const Panels* const panels = head_VE.panels.get();
  if (hidden_nE.is_cuda() || dtype == at::kFloat || dtype == at::kDouble) {
    return product_with_rows(hidden_nE, head_VE.value, {}, head_VE.kernel, panels);
  }
  return panels != nullptr || widens(hidden_nE, head_VE.kernel)
             ? wide_product_with_rows(hidden_nE, head_VE.value, panels, head_VE.kernel)
             : wide_logits(hidden_nE, head_VE.value);
}

}  // namespace ringside::engine
