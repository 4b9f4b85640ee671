// Guards the figures that stay on the device until one copy: sums and maxima by name.
#include "engine/device/device_sums.h"

#include <ATen/ATen.h>

#include "tests/support/catch.h"

namespace ringside::engine {
namespace {

TEST_CASE("device sums add and maximise element by element, in fp64, whatever dtype comes") {
  DeviceSums sums;
  CHECK(sums.fetch().empty());
  sums.add("tokens", at::full({}, 3, at::kLong));
  sums.add("tokens", at::full({}, 4, at::kLong));
  sums.add("losses", at::tensor({0.5, -1.0}, at::kDouble));
  sums.add("losses", at::tensor({1e-9, 2.0}, at::kDouble));
  sums.maximise("highest", at::tensor({-2.0f, 7.0f}));
  sums.maximise("highest", at::tensor({-1.0f, 5.0f}));
  const HostSums host = sums.fetch();
  REQUIRE(host.size() == 3);
  CHECK(host.at("tokens") == std::vector<double>{7.0});
  CHECK(host.at("losses") == std::vector<double>{0.5 + 1e-9, 1.0});
  CHECK(host.at("highest") == std::vector<double>{-1.0, 7.0});
}

TEST_CASE("device sums keep no graph of what they add") {
  const at::Tensor weight = at::ones({2}, at::kDouble).requires_grad_();
  DeviceSums sums;
  sums.add("loss", (weight * 2).sum());
  (weight * 3).sum().backward();
  CHECK(sums.fetch().at("loss").front() == 4.0);
  CHECK_THROWS_AS(sums.add("loss", at::ones({3})), c10::Error);
}

}  // namespace
}  // namespace ringside::engine
