#include "sp/attention/index_tables.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace ringside::sp {

template <class T>
std::size_t IndexTables<T>::add(std::span<const T> values) {
  TORCH_CHECK(!block_.defined(), "IndexTables: a table is added after the upload");
  values_.insert(values_.end(), values.begin(), values.end());
  begins_.push_back(static_cast<int64_t>(values_.size()));
  return begins_.size() - 2;
}

template <class T>
void IndexTables<T>::upload(at::Device device) {
  // The caching host allocator keeps the pinned block until the stream has passed the copy.
  const at::Tensor host = at::empty({static_cast<int64_t>(values_.size())},
                                    at::TensorOptions(c10::CppTypeToScalarType<T>::value)
                                        .pinned_memory(!device.is_cpu() && !values_.empty()));
  std::copy(values_.begin(), values_.end(), host.mutable_data_ptr<T>());
  block_ = host.to(device, /*non_blocking=*/true);
  values_ = {};
}

template <class T>
at::Tensor IndexTables<T>::table(std::size_t number) const {
  return block_.narrow(0, begins_[number], begins_[number + 1] - begins_[number]);
}

template class IndexTables<int64_t>;
template class IndexTables<int32_t>;

}  // namespace ringside::sp
