// Device backends: what a program has, and which device a rank gets.
#include "engine/device/device_backend.h"

#include <ATen/ATen.h>

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "engine/device/device_event.h"
#include "engine/device/side_stream.h"
#include "sp/mesh/c10d_communicator.h"
#include "tests/support/catch.h"

using namespace ringside;

namespace {

int64_t devices_there = 0;  // of the backend below

// A kind of device that only this test is linked with.
class RegisteredBackend final : public engine::DeviceBackend {
 public:
  c10::DeviceType type() const override { return c10::kMeta; }
  std::string name() const override { return "registered"; }
  int64_t device_count() const override { return devices_there; }
  std::string reason_none() const override { return devices_there > 0 ? "" : "none is plugged in"; }
  std::string device_name(int64_t /*index*/) const override { return "registered device"; }
  std::vector<std::string> describe() const override { return {"for a test"}; }
  sp::ProcessGroups::Connect tensor_groups(const sp::Mesh& mesh,
                                           const sp::GroupRendezvous& rendezvous,
                                           c10::Device /*device*/) const override {
    return [mesh, rendezvous](sp::Axes axes) {
      return sp::make_gloo_communicator(
          rendezvous.store, "registered/" + sp::group_name(mesh, axes), mesh.coordinate(axes),
          mesh.size(axes), rendezvous.host, rendezvous.timeout);
    };
  }
  std::shared_ptr<const sp::RingStepKernels> attention_kernels(
      const engine::ProductPlan& /*products*/) const override {
    return sp::cpu_kernels();
  }
};

const engine::DeviceBackendRegistration registration{std::make_unique<RegisteredBackend>()};

}  // namespace

TEST_CASE("a program has the CPU's backend and those that its objects registered") {
  const auto backends = engine::device_backends();
  REQUIRE(backends.size() == 2);
  CHECK(backends[0]->name() == "cpu");
  CHECK(backends[0]->device_count() == 1);
  CHECK(backends[1]->name() == "registered");
  CHECK(&engine::device_backend(c10::kMeta) == backends[1]);
  CHECK_THROWS_WITH(engine::device_backend(c10::kCUDA),
                    Catch::Contains("type cuda") && Catch::Contains("cpu, registered"));
}

TEST_CASE("a rank gets the device of its number on the machine, or the reason why not") {
  devices_there = 2;
  CHECK(engine::choose_device("registered", 1).device == c10::Device(c10::kMeta, 1));
  CHECK(engine::choose_device("registered", 1).error.empty());
  CHECK(engine::choose_device("auto", 0).device == c10::Device(c10::kMeta, 0));
  CHECK(engine::choose_device("cpu", 5).device == c10::Device(c10::kCPU));
  CHECK(engine::choose_device("cpu", 5).error.empty());
  CHECK_THAT(engine::choose_device("registered", 2).error,
             Catch::Contains("2 devices") && Catch::Contains("number 2"));
  CHECK_THAT(engine::choose_device("auto", 2).error, Catch::Contains("2 devices"));
}

TEST_CASE("without a device auto is the CPU, and the kind itself is refused with the reason") {
  devices_there = 0;
  CHECK(engine::choose_device("auto", 3).device == c10::Device(c10::kCPU));
  CHECK(engine::choose_device("auto", 3).error.empty());
  CHECK(engine::choose_device("registered", 0).error ==
        "registered: no device: none is plugged in");
  CHECK(engine::choose_device("cuda", 0).error ==
        "cuda: this program was linked without it; it has cpu, registered");
}

TEST_CASE("a backend's groups carry tensors beside Gloo's for control data") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const sp::GroupRendezvous rendezvous{store, "127.0.0.1", std::chrono::seconds(20)};
  std::vector<double> sums(2);
  std::vector<int> apart(2);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const sp::Mesh mesh({1, 2, 1}, rank);
        const auto groups = engine::connect_groups(mesh, rendezvous, c10::Device(c10::kMeta, 0));
        apart[rank] = groups.tensors(sp::axes::kLoss) != groups.control(sp::axes::kLoss);
        at::Tensor value = at::full({1}, rank + 1.0, at::kDouble);
        groups.tensors(sp::axes::kRing)->all_reduce_sum(value, "test");
        groups.control(sp::axes::kRing)->all_reduce_sum(value, "test");
        sums[rank] = value.item<double>();
      });
    }
  }
  CHECK(sums == std::vector<double>{6.0, 6.0});
  CHECK(apart == std::vector<int>{1, 1});
}

TEST_CASE("a rank that never comes is named, whatever the device") {
  const sp::GroupRendezvous rendezvous{c10::make_intrusive<c10d::HashStore>(), "127.0.0.1",
                                       std::chrono::milliseconds(200)};
  const sp::Mesh mesh({1, 1, 3}, 1);
  CHECK_THROWS_WITH(engine::connect_groups(mesh, rendezvous, c10::Device(c10::kCPU)),
                    Catch::Contains("rank 1 waited 200 ms for rank(s) 0, 2 of 3"));
}

TEST_CASE("events of the CPU order nothing and work") {
  const c10::Stream stream(c10::Stream::DEFAULT, c10::Device(c10::kCPU));
  engine::DeviceEvent event(c10::kCPU);
  event.record(stream);
  event.make_wait(stream);
  event.synchronize();
  CHECK_FALSE(engine::make_side_stream(c10::Device(c10::kCPU)));
}
