// Device memory that the host cannot touch, its statistics, and pinned memory.
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <cstring>

#include "tests/standin/streams.h"
#include "tests/support/catch.h"
#include "tests/support/standin/machine.h"

namespace ringside::standin {
namespace {

TEST_CASE("host reads, host writes and CPU kernels on device memory end the process") {
  Scope scope;
  const at::Tensor there = at::ones({8}, on_device());
  const auto check = [](const ChildEnd& end) {
    CHECK(end.status == kHostAccessStatus);
    CHECK(end.error_output.find("host code touched device memory: address 0x") !=
          std::string::npos);
    CHECK(end.error_output.find("device standin:0") != std::string::npos);
    CHECK(std::count(end.error_output.begin(), end.error_output.end(), '\n') > 4);  // a backtrace
  };
  SECTION("read") {
    check(run_in_child([&] {
      volatile float x = there.const_data_ptr<float>()[3];
      (void)x;
    }));
  }
  SECTION("write") {
    check(run_in_child([&] { std::memcpy(there.data_ptr(), "abcd", 4); }));
  }
  SECTION("a CPU kernel over from_blob") {
    check(run_in_child([&] { at::from_blob(there.data_ptr(), {8}).sum(); }));
  }
  SECTION("another bad address goes to the handler before") {
    CHECK(run_in_child([] { *static_cast<volatile int*>(nullptr) = 1; }).status !=
          kHostAccessStatus);
  }
}

// tests/support/standin/README.md shows it.
TEST_CASE("a test of a layer: no report, no wait of the host, memory as predicted") {
  struct {
    at::Tensor forward(const at::Tensor& x) const { return x * 2; }
  } layer;
  const int64_t predicted = Scope().current_bytes() + (1 << 20);
  standin::Scope scope;  // clears reports and counts
  const at::Tensor x = at::ones({4}, at::TensorOptions().device(standin::device()));
  {
    const standin::NoHostWaits none(0, "layer 3");
    layer.forward(x);
  }
  CHECK(scope.text() == "");  // no report
  CHECK(standin::Counts::sum(scope.counts().host_syncs) == 0);
  CHECK(scope.peak_bytes() <= predicted);
}

TEST_CASE("fresh memory is NaN in every floating-point format") {
  Scope scope;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    CHECK(at::empty({64}, on_device().dtype(dtype)).isnan().all().item<bool>());
  }
  CHECK_FALSE(scope.reports().empty());
  for (const Report& report : scope.reports()) {
    CHECK(report.fault == Fault::kUninitialisedRead);
  }
}

TEST_CASE("bytes in use and their peak are counted, for torch too") {
  Scope scope;
  const int64_t before = scope.current_bytes();
  {
    const at::Tensor a = at::zeros({1 << 18}, on_device());
    const at::Tensor b = a * 2;
    CHECK(scope.current_bytes() - before == 2 << 20);
  }
  CHECK(scope.current_bytes() == before);
  CHECK(scope.peak_bytes() - before == 2 << 20);
  const auto stats = at::accelerator::getDeviceStats(0);
  CHECK(stats.allocated_bytes[0].current == scope.current_bytes());
  CHECK(stats.allocated_bytes[0].peak == scope.peak_bytes());
  at::accelerator::resetPeakStats(0);
  CHECK(scope.peak_bytes() == before);
}

TEST_CASE("freed memory is used again, and a second free is an error") {
  Scope scope;
  DeviceMemory& memory = machine().memory;
  void* first = memory.allocate(2, 1000);
  void* second = memory.allocate(2, 3000);
  memory.free(first);
  CHECK_THROWS_WITH(memory.free(first), Catch::Contains("not allocated"));
  memory.free(second);
  void* both = memory.allocate(2, 4096);  // the two ranges were merged
  CHECK(both == first);
  memory.free(both);
  CHECK_THROWS_WITH(memory.allocate(2, kBytesPerDevice + 1), Catch::Contains("no room"));
}

TEST_CASE("a storage that was released gives an error, and one that grows keeps its bytes") {
  Scope scope;
  at::Tensor x = at::arange(6, on_device());
  x.resize_({300});
  CHECK(at::equal(x.narrow(0, 0, 6).cpu(), at::arange(6, at::kFloat)));
  CHECK(x.narrow(0, 6, 294).isnan().all().item<bool>());
  c10::StorageImpl* storage = x.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, device()));
  storage->set_nbytes(0);
  CHECK(error_of([&] { x.sum(); }).find("is released") != std::string::npos);
}

TEST_CASE("pinned memory is pinned, and copies with it need not block") {
  Scope scope;
  const at::Tensor host = pinned({4, 4}), pageable = at::ones({4, 4});
  host.fill_(1);
  CHECK(host.is_pinned());
  CHECK_FALSE(pageable.is_pinned());
  const at::Tensor there = host.to(device(), /*non_blocking=*/true);
  CHECK(Counts::sum(scope.counts().blocking_uploads) == 0);
  pageable.to(device(), /*non_blocking=*/true);
  CHECK(Counts::sum(scope.counts().blocking_uploads) == 1);
  host.to(device());  // waits although it is pinned
  CHECK(Counts::sum(scope.counts().blocking_uploads) == 2);

  at::Tensor back = pinned({4, 4});
  back.copy_(there * 2, /*non_blocking=*/true);
  CHECK(Counts::sum(scope.counts().host_syncs) == 0);
  event_on(main_stream()).synchronize();
  CHECK(back.sum().item<float>() == 32);
  CHECK(scope.counts().host_syncs.at("synchronize event") == 1);
  there.cpu();
  CHECK(Counts::sum(scope.counts().host_syncs) == 2);
  CHECK(scope.counts().uploads == 3);
  CHECK(scope.counts().downloads == 2);
  CHECK(scope.text() == "");
}

TEST_CASE("a guarded block's neighbours on the same page stay usable") {
  Scope scope;
  at::Tensor block = pinned({8});
  block.fill_(1);
  const at::Tensor there = at::full({4}, 5.0, on_device());
  block.narrow(0, 0, 4).copy_(there, /*non_blocking=*/true);
  block.narrow(0, 4, 4).fill_(2);
  CHECK(scope.text() == "");
  event_on(main_stream()).synchronize();
  CHECK(block.sum().item<float>() == 28);
  CHECK(scope.text() == "");
}

TEST_CASE("host syncs are counted by what waited") {
  Scope scope;
  const at::Tensor x = at::ones({4}, on_device()), mask = x > 0;
  const at::Tensor y = (x.view({2, 2}).matmul(x.view({2, 2})) + 1).sum();
  CHECK(Counts::sum(scope.counts().host_syncs) == 0);
  y.item<float>();
  CHECK(scope.counts().host_syncs.at("item") == 1);
  x.nonzero();
  CHECK(scope.counts().host_syncs.at("aten::nonzero") == 1);
  x.clone().index_put_({mask}, at::zeros({}, on_device()));
  CHECK(scope.counts().host_syncs.size() == 3);
  const at::Tensor repeats = at::ones({4}, on_device().dtype(at::kLong));
  at::repeat_interleave(x, repeats, 0, /*output_size=*/4);
  CHECK(scope.counts().host_syncs.count("aten::repeat_interleave.Tensor") == 0);
  at::repeat_interleave(x, repeats, 0);
  CHECK(scope.counts().host_syncs.at("aten::repeat_interleave.Tensor") == 1);
  device_guard().synchronizeDevice(0);
  CHECK(scope.counts().host_syncs.at("synchronize device") == 1);
}

}  // namespace
}  // namespace ringside::standin
