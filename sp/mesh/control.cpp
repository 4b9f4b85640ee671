#include "sp/mesh/control.h"

#include <ATen/ATen.h>

namespace ringside::sp {
namespace {

std::vector<double> to_vector(const at::Tensor& values) {
  const double* data = values.data_ptr<double>();
  return {data, data + values.numel()};
}

}  // namespace

std::vector<double> sum_scalars(const std::vector<double>& values, Communicator& world) {
  at::Tensor tensor = at::tensor(values, at::kDouble);
  world.all_reduce_sum(tensor, "scalars");
  return to_vector(tensor);
}

std::vector<double> max_scalars(const std::vector<double>& values, Communicator& world) {
  at::Tensor tensor = at::tensor(values, at::kDouble);
  world.all_reduce_max(tensor, "scalars");
  return to_vector(tensor);
}

void check_agreement(uint64_t hash, const char* what, Communicator& world) {
  const at::Tensor mine = at::full({1}, static_cast<int64_t>(hash), at::kLong);
  const at::Tensor all = world.all_gather(mine, "agreement").view({-1});
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const auto theirs = static_cast<uint64_t>(all[rank].item<int64_t>());
    TORCH_CHECK(theirs == hash, what, " differs between ranks: rank ", rank, " has ", theirs,
                ", rank ", world.rank(), " has ", hash);
  }
}

}  // namespace ringside::sp
