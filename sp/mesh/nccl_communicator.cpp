#include "sp/mesh/nccl_communicator.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "sp/mesh/c10d_communicator.h"

namespace ringside::sp {

std::shared_ptr<Communicator> make_nccl_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& group_name, int64_t rank,
                                                     int64_t size,
                                                     std::chrono::milliseconds timeout) {
  if (size == 1) {
    return make_single_rank_communicator();
  }
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(group_name, store);
  auto communicator = make_c10d_communicator(c10::make_intrusive<c10d::ProcessGroupNCCL>(
      prefixed, static_cast<int>(rank), static_cast<int>(size), options));
  at::Tensor warm_up = at::ones({1}, at::TensorOptions().device(at::kCUDA).dtype(at::kFloat));
  communicator->all_reduce_sum(warm_up, "warm_up");
  communicator->reset_counters();
  return communicator;
}

}  // namespace ringside::sp
