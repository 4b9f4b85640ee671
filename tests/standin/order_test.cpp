// What orders two accesses, and what does not.
#include "tests/standin/streams.h"
#include "tests/support/catch.h"

namespace ringside::standin {
namespace {

std::vector<std::string> faults(const Scope& scope) {
  std::vector<std::string> result;
  for (const Report& report : scope.reports()) {
    result.emplace_back(to_string(report.fault));
  }
  return result;
}

TEST_CASE("a report names both operators and both streams") {
  Scope scope;
  const c10::Stream side = side_stream();
  const at::Tensor x = at::ones({4}, on_device());
  {
    const c10::StreamGuard on(side);
    x.exp();
  }
  REQUIRE(faults(scope) == std::vector<std::string>{to_string(Fault::kUnorderedRead)});
  const std::string text = scope.text();
  INFO(text);
  CHECK(text.find("aten::exp.out on standin:0 stream " + std::to_string(side.id())) !=
        std::string::npos);
  CHECK(text.find("aten::fill_.Scalar on standin:0 default stream") != std::string::npos);
}

TEST_CASE("an event orders what was launched before it was recorded") {
  Scope scope;
  const c10::Stream side = side_stream();
  at::Tensor x = at::ones({4}, on_device());
  order(main_stream(), side);
  {
    const c10::StreamGuard on(side);
    x.mul_(2);
  }
  order(side, main_stream());
  CHECK(x.sum().item<float>() == 8);
  CHECK(scope.text() == "");
}

TEST_CASE("order is passed on through a third stream") {
  Scope scope;
  const c10::Stream second = side_stream(), third = side_stream();
  at::Tensor x = at::ones({4}, on_device());
  order(main_stream(), second);
  order(second, third);
  const c10::StreamGuard on(third);
  x.mul_(2);
  CHECK(scope.text() == "");
}

TEST_CASE("two reads need no order, and disjoint parts of one block need none") {
  Scope scope;
  const c10::Stream side = side_stream();
  at::Tensor x = at::ones({8}, on_device());
  order(main_stream(), side);
  const auto low = x.narrow(0, 0, 4), high = x.narrow(0, 4, 4);
  x.exp();
  {
    const c10::StreamGuard on(side);
    x.exp();
  }
  order(main_stream(), side);
  order(side, main_stream());
  low.mul_(2);
  {
    const c10::StreamGuard on(side);
    high.mul_(3);
  }
  CHECK(scope.text() == "");
  x.exp();
  CHECK(faults(scope) == std::vector<std::string>{to_string(Fault::kUnorderedRead)});
}

TEST_CASE("what the host waited for comes before what it launches later") {
  Scope scope;
  const c10::Stream side = side_stream(), other = side_stream();
  const at::Tensor x = at::ones({4}, on_device());
  const c10::Event early = event_on(main_stream());
  const at::Tensor late = x * 2;
  early.synchronize();
  {
    const c10::StreamGuard on(side);
    x.exp();
  }
  CHECK(scope.text() == "");
  {
    const c10::StreamGuard on(side);
    late.exp();  // launched after the event that the host waited for
  }
  CHECK(faults(scope) == std::vector<std::string>{to_string(Fault::kUnorderedRead)});
  device_guard().synchronizeDevice(0);
  {
    const c10::StreamGuard on(other);
    late.exp();
  }
  CHECK(scope.reports().size() == 1);
}

TEST_CASE("a query that says done orders the host as a wait does, and is no host sync") {
  Scope scope;
  at::Tensor back = pinned({4});
  const at::Tensor x = at::ones({4}, on_device());
  back.copy_(x, /*non_blocking=*/true);
  const c10::Event copied = event_on(main_stream());
  REQUIRE(copied.query());
  CHECK(back.sum().item<float>() == 4);
  CHECK(Counts::sum(scope.counts().host_syncs) == 0);
  CHECK(scope.text() == "");
}

TEST_CASE("autograd orders a backward whose forward ran on two streams") {
  Scope scope;
  const c10::Stream side = side_stream();
  const at::Tensor x = at::ones({4}, on_device()).requires_grad_();
  at::Tensor product;
  order(main_stream(), side);
  {
    const c10::StreamGuard on(side);
    product = x * x;
  }
  order(side, main_stream());
  (product.sum() + x.sum()).backward();
  CHECK(x.grad().sum().item<float>() == 12);
  CHECK(scope.text() == "");
}

TEST_CASE("a copy between devices is ordered on both") {
  Scope scope;
  const at::Tensor x = at::ones({4}, on_device(0));
  const at::Tensor y = (x * 2).to(device(1));
  CHECK(y.sum().item<float>() == 8);
  CHECK(scope.text() == "");
}

TEST_CASE("memory may be freed when its owner waits for its users, or the use is recorded") {
  Scope scope;
  const c10::Stream side = side_stream();
  const auto used_on_side = [&] {
    const at::Tensor x = at::ones({4}, on_device());
    order(main_stream(), side);
    const c10::StreamGuard on(side);
    x.exp();
    return x;
  };
  {
    const at::Tensor x = used_on_side();
    order(side, main_stream());
  }
  {
    const at::Tensor x = used_on_side();
    x.record_stream(side);
  }
  CHECK(scope.text() == "");
  { used_on_side(); }
  CHECK(faults(scope) == std::vector<std::string>{to_string(Fault::kFreedInUse)});
}

TEST_CASE("memory counts as initialised where something has written it") {
  Scope scope;
  const at::Tensor x = at::empty({4, 4}, on_device());
  x.narrow(0, 0, 2).fill_(1);
  x.narrow(0, 0, 2).sum();
  x.select(0, 3).fill_(1);
  x.slice(0, 1, 4, 2).sum();  // rows 1 and 3; row 2 lies between and is not read
  CHECK(scope.text() == "");
  x.sum();
  CHECK(faults(scope) == std::vector<std::string>{to_string(Fault::kUninitialisedRead)});
}

TEST_CASE("a region reports host syncs on its device only, and inner regions are named") {
  Scope scope;
  const at::Tensor x = at::ones({2}, on_device(0)), y = at::ones({2}, on_device(1));
  {
    const NoHostWaits outer(0, "the step");
    const NoHostWaits inner(0, "layer 3");
    y.sum().item<float>();
    CHECK(scope.text() == "");
    x.sum().item<float>();
  }
  x.sum().item<float>();
  CHECK(scope.text() == "forbidden host sync: item waits for standin:0 inside 'layer 3'\n");
}

}  // namespace
}  // namespace ringside::standin
