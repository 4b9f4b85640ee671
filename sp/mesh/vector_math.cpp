#include "sp/mesh/vector_math.h"

#include <ATen/ATen.h>

namespace ringside::sp {

void prepare_vector_math() {
  using Function = at::Tensor (*)(const at::Tensor&);
  constexpr Function kFunctions[] = {
      at::exp,  at::expm1, at::log,  at::log1p, at::log2,  at::log10,  at::sin,
      at::cos,  at::tan,   at::sinh, at::cosh,  at::tanh,  at::asin,   at::acos,
      at::atan, at::erf,   at::erfc, at::sqrt,  at::rsqrt, at::erfinv, at::lgamma};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::full({1}, 0.5, dtype);
    for (const Function function : kFunctions) {
      function(x);
    }
  }
}

}  // namespace ringside::sp
