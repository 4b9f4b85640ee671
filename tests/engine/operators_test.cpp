// Guards what lets a device without kernels of its own run the decoder: a fallback calls the CPU
// implementation with a stack of values, so each operator must have one, and its arguments must be
// tensors and numbers.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <set>
#include <string>

#include "engine/ops/rms_norm.h"
#include "tests/support/catch.h"

namespace ringside::engine {
namespace {

std::vector<c10::OperatorHandle> our_operators() {
  std::vector<c10::OperatorHandle> ours;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.starts_with("ringside::")) {
      ours.push_back(c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), ""));
    }
  }
  return ours;
}

TEST_CASE("every operator has a CPU implementation, and takes tensors and numbers only") {
  const std::set<std::string> plain{"Tensor", "Optional[Tensor]", "int", "float", "bool"};
  const auto operators = our_operators();
  CHECK(operators.size() == 16);
  for (const c10::OperatorHandle& op : operators) {
    INFO(op.schema());
    CHECK(op.hasKernelForDispatchKey(c10::DispatchKey::CPU));
    for (const c10::Argument& argument : op.schema().arguments()) {
      CHECK(plain.contains(argument.type()->annotation_str()));
    }
    for (const c10::Argument& result : op.schema().returns()) {
      CHECK(result.type()->annotation_str() == "Tensor");
      CHECK(result.alias_info() == nullptr);  // a new tensor, not a view of an argument
    }
  }
}

TEST_CASE("an operator called with a stack of values gives what the direct call gives") {
  at::manual_seed(1);
  const at::Tensor x = at::randn({3, 8}), weight = at::randn({8});
  const auto [y, rstd] = operators::rms_norm(x, weight, 1e-6, false, false);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("ringside::rms_norm", "");
  torch::jit::Stack stack{x, weight, 1e-6, false, false};
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  REQUIRE(stack.size() == 2);
  CHECK(at::equal(stack[0].toTensor(), y));
  CHECK(at::equal(stack[1].toTensor(), rstd));
}

}  // namespace
}  // namespace ringside::engine
