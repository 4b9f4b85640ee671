#include "engine/device/compute_context.h"

#include <c10/util/Exception.h>

namespace ringside::engine {

ComputeContext::ComputeContext(at::ScalarType compute_dtype, c10::Device compute_device)
    : device(compute_device), compute(compute_dtype) {
  TORCH_CHECK(compute_dtype == at::kFloat || compute_dtype == at::kBFloat16 ||
                  compute_dtype == at::kHalf || compute_dtype == at::kDouble,
              "compute context: the compute dtype is Float, BFloat16, Half or Double, got ",
              compute_dtype);
  master = reduce = compute_dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace ringside::engine
