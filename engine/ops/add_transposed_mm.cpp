#include "engine/ops/add_transposed_mm.h"

#include <ATen/ATen.h>

#include "engine/ops/dispatch.h"

namespace ringside::engine {
namespace {

void add_transposed_mm_on_cpu(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType acc = sum.scalar_type();
  at::Tensor target = sum;
  target.addmm_(a.t().to(acc), b.to(acc));
}

TORCH_LIBRARY_FRAGMENT(ringside, m) {
  define_operator(m, "add_transposed_mm(Tensor(a!) sum, Tensor a, Tensor b) -> ()",
                  TORCH_FN(add_transposed_mm_on_cpu));
}

}  // namespace

namespace operators {

void add_transposed_mm(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  static const Operator<decltype(add_transposed_mm)> op("ringside::add_transposed_mm");
  op(sum, a, b);
}

}  // namespace operators
}  // namespace ringside::engine
