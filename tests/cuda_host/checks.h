// What tests of kernels on the host have in common.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/cuda_host/machine.h"
#include "tests/support/cuda_host/reports.h"
#include "tests/support/cuda_host/tensors.h"

namespace ringside::test {

// Fails with the text of every report since the last call.
inline void check_no_reports() {
  for (const cuda_host::Report& report : cuda_host::take_reports()) {
    FAIL_CHECK(cuda_host::text_of(report));
  }
}

// What rounding to a dtype may cost: two steps of the last place of numbers up to `size`.
inline double rounding(at::ScalarType dtype, double size) {
  switch (dtype) {
    case at::kDouble:
      return 1e-13 * size;
    case at::kFloat:
      return 4e-6 * size;
    case at::kHalf:
      return 2 * size * std::numeric_limits<c10::Half>::epsilon();
    default:
      return 2 * size * std::numeric_limits<c10::BFloat16>::epsilon();
  }
}

// Compares tensor by tensor; what a kernel left unwritten is NaN and differs from everything.
inline void check_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected,
                        at::ScalarType dtype) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    REQUIRE(got[i].sizes() == expected[i].sizes());
    REQUIRE(got[i].scalar_type() == expected[i].scalar_type());
    if (got[i].numel() > 0) {
      const double size = std::max(1.0, expected[i].to(at::kDouble).abs().max().item<double>());
      CHECK(max_abs_diff(got[i], expected[i]) <= rounding(dtype, size));
    }
  }
}

// The results of `call`, whose kernels run with threads and blocks in one order, then in the other:
// both must give the same bits, without a report.
template <class Call>
std::vector<at::Tensor> in_both_orders(cuda_host::DeviceTensors& device, Call call) {
  std::vector<std::vector<at::Tensor>> results;
  for (const auto order : {cuda_host::Order::kForward, cuda_host::Order::kBackward}) {
    cuda_host::set_order(order);
    results.push_back(call(device));
    check_no_reports();
  }
  cuda_host::set_order(cuda_host::Order::kForward);
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    CAPTURE(i);
    CHECK(at::equal(results[0][i], results[1][i]));
  }
  return results[0];
}

}  // namespace ringside::test
