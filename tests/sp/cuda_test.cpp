// Guards: the CUDA merge kernel departing from its CPU twin, NCCL collectives that do not run. Linked wherever there is
// nvcc, run where there is a GPU (ctest label gpu); elsewhere it says that it ran nothing.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>

#include <limits>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "sp/attention/lse_merge.h"
#include "sp/attention/lse_merge_cuda.h"
#include "sp/comm/nccl_communicator.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

using namespace ringside;

TEST_CASE("the CUDA merge equals its CPU twin", "[gpu]") {
  if (!at::cuda::is_available()) {
    WARN("no GPU: the kernel was compiled and linked, not run");
    return;
  }
  at::manual_seed(1);
  const double inf = std::numeric_limits<double>::infinity();
  const sp::PartialAttention a{at::randn({300, 96}), at::randn({300}) * 30};
  sp::PartialAttention b{at::randn({300, 96}), at::randn({300}) * 30};
  a.lse[0] = -inf;
  a.lse[1] = -inf;
  b.lse[1] = -inf;
  b.lse[2] = -inf;
  const auto expected = sp::merge_partials(a, b);
  const at::Tensor out = a.out.cuda(), lse = a.lse.cuda(), out_b = b.out.cuda(), lse_b = b.lse.cuda();
  const cudaError_t error =
      sp::merge_partials_cuda(out.data_ptr<float>(), lse.data_ptr<float>(), out_b.data_ptr<float>(),
                              lse_b.data_ptr<float>(), 300, 96, c10::cuda::getCurrentCUDAStream());
  REQUIRE(error == cudaSuccess);
  const at::Tensor finite = expected.lse > -inf;
  CHECK(test::max_abs_diff(out.cpu().index({finite}), expected.out.index({finite})) < 1e-5);
  CHECK(at::equal(lse.cpu() == -inf, expected.lse == -inf));
  CHECK(out.cpu()[1].abs().max().item<float>() == 0.0f);
}

TEST_CASE("a CUDA group of one needs no NCCL call", "[gpu]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto alone = sp::make_nccl_communicator(store, "alone/", 0, 1, std::chrono::seconds(5));
  CHECK(alone->size() == 1);
}
