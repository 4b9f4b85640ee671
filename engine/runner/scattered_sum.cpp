#include "engine/runner/scattered_sum.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace ringside::engine {

ScatteredSum::ScatteredSum(const ShardGather& cut, const at::Tensor& gradient_n,
                           at::ScalarType wire)
    : own_(cut.range().size), dtype_(gradient_n.scalar_type()) {
  sp::Communicator& shard = *cut.sharding().shard;
  const int64_t n = gradient_n.numel(), c = cut.range().stored;
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < shard.size(); ++rank) {
    counts.push_back(std::min(n, (rank + 1) * c) - std::min(n, rank * c));
  }
  const at::Tensor sent = gradient_n.contiguous().to(wire);
  received_ = at::empty({shard.size() * own_}, sent.options());
  const std::vector<int64_t> own_counts(shard.size(), own_);
  transfer_ = shard.start_all_to_all(sent, counts, received_, own_counts, "gradients");
}

at::Tensor ScatteredSum::wait() {
  transfer_->wait();
  at::Tensor sum = received_.narrow(0, 0, own_).to(dtype_, /*non_blocking=*/false, /*copy=*/true);
  for (int64_t begin = own_; begin < received_.numel(); begin += own_) {
    sum.add_(received_.narrow(0, begin, own_));
  }
  return sum;
}

}  // namespace ringside::engine
