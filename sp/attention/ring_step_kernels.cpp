#include "sp/attention/ring_step_kernels.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace ringside::sp {

at::ScalarType accumulation_dtype(at::ScalarType wire_dtype) {
  return wire_dtype == at::kDouble ? at::kDouble : at::kFloat;
}

PreparedPlan::PreparedPlan(std::shared_ptr<const AttentionPlan> plan, const at::TensorOptions& wire)
    : plan_(std::move(plan)),
      device_(wire.device()),
      wire_dtype_(c10::typeMetaToScalarType(wire.dtype())) {
  const auto& source = plan_->gather.source;
  std::vector<int64_t> buffer_row(source.size());
  for (std::size_t row = 0; row < source.size(); ++row) {
    buffer_row[source[row]] = static_cast<int64_t>(row);
    reorder_ = reorder_ || source[row] != static_cast<int64_t>(row);
  }
  if (reorder_) {
    source_ = tables_.add(source);
    buffer_row_ = tables_.add(buffer_row);
  }
}

void PreparedPlan::upload_tables() {
  tables_.upload(device_);
  if (reorder_) {
    gather_order_ = {tables_.table(source_), tables_.table(buffer_row_)};
  }
}

}  // namespace ringside::sp
