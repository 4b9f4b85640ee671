// Guards: a backward in two parts that gives other gradients than one in one part, that computes
// weights' gradients before they are asked for, or that computes one twice.
#include "engine/runner/split_backward.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <vector>

#include "engine/nn/grouped_linear.h"
#include "engine/nn/linear.h"
#include "tests/support/catch.h"

using namespace ringside;

namespace {

constexpr int64_t kRows = 6, kWidth = 4;

at::Tensor leaf_of(const at::Tensor& values) { return values.clone().requires_grad_(true); }

// Two leaves: a unit with three matrices, a bias and a norm's weight, and a table of embeddings.
struct Leaves {
  at::Tensor unit = leaf_of(at::arange(3 * kWidth * kWidth + 2 * kWidth, at::kFloat).sin());
  at::Tensor table = leaf_of(at::arange(5 * kWidth, at::kFloat).view({5, kWidth}).cos());
  at::Tensor input = leaf_of(at::arange(kRows * kWidth, at::kFloat).view({kRows, kWidth}).cos());
};

enum class Start { kInput, kIds };

// A residual block with experts behind a norm.
at::Tensor forward(const Leaves& leaves, Start start) {
  const std::vector<at::Tensor> parts =
      leaves.unit.split_with_sizes({kWidth * kWidth, kWidth, kWidth, 2 * kWidth * kWidth});
  const engine::Weight matrix(parts[0].view({kWidth, kWidth})), bias(parts[1].view({kWidth}));
  const engine::Weight experts(parts[3].view({2, kWidth, kWidth}));
  at::Tensor x = leaves.input;
  if (start == Start::kIds) {
    x = engine::embed(engine::Weight(leaves.table), at::arange(kRows, at::kLong).remainder(5));
  }
  const at::Tensor normed = x * parts[2].view({kWidth});
  const at::Tensor inner = at::silu(engine::apply_linear(normed, matrix, bias));
  // The matrix is used twice.
  return x +
         engine::apply_linear(engine::apply_grouped_linear(inner, experts, {2, kRows - 2}), matrix);
}

int64_t products = 0;

// Products of matrices that run while it exists.
class ProductCount {
 public:
  ProductCount() {
    products = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& fn)
                                       -> std::unique_ptr<at::ObserverContext> {
          products +=
              std::strcmp(fn.name(), "aten::mm") == 0 || std::strcmp(fn.name(), "aten::addmm_") == 0
                  ? 1
                  : 0;
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~ProductCount() { at::removeCallback(handle_); }
  int64_t count() const { return products; }

 private:
  at::CallbackHandle handle_ = 0;
};

void check_split(Start start) {
  Leaves whole, split;
  const at::Tensor gradient = at::arange(kRows * kWidth, at::kFloat).view({kRows, kWidth}).sin();
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    forward(whole, start).backward(gradient);
    const at::Tensor received = start == Start::kInput ? split.input : at::Tensor();
    engine::SplitBackward backward(torch::autograd::impl::gradient_edge(forward(split, start)),
                                   received);
    const at::Tensor unit_before =
        split.unit.grad().defined() ? split.unit.grad().clone() : at::Tensor();
    const at::Tensor of_input = backward.input_gradient(gradient);
    CHECK(split.unit.grad().defined() == unit_before.defined());
    CHECK((!unit_before.defined() || split.unit.grad().equal(unit_before)));
    backward.weight_gradients();
    CHECK(split.unit.grad().equal(whole.unit.grad()));
    if (start == Start::kIds) {
      CHECK(split.table.grad().equal(whole.table.grad()));
    } else {
      CHECK(of_input.equal(micro_batch == 0 ? whole.input.grad() : of_input));
      CHECK(!split.input.grad().defined());
    }
  }
}

}  // namespace

TEST_CASE("a backward in two parts gives each leaf the bits of one in one part") {
  check_split(Start::kInput);
  check_split(Start::kIds);
}

TEST_CASE("weights' products run in the second part, each of them once") {
  Leaves leaves;
  const at::Tensor matrix_leaf = leaf_of(at::ones({kWidth, kWidth}));
  const engine::Weight weight(matrix_leaf);
  const at::Tensor y =
      engine::apply_linear(at::silu(engine::apply_linear(leaves.input, weight)), weight);
  const at::Tensor other = leaf_of(at::ones({kWidth, kWidth}));
  const at::Tensor end = engine::apply_linear(y, engine::Weight(other));
  engine::SplitBackward backward(torch::autograd::impl::gradient_edge(end), leaves.input);
  const at::Tensor gradient = at::ones_like(end);
  {
    const ProductCount first;
    backward.input_gradient(gradient);
    CHECK(first.count() == 3);  // those of the inputs
  }
  const ProductCount second;
  backward.weight_gradients();
  CHECK(second.count() == 3);
  CHECK(other.grad().equal(gradient.t().mm(y.detach())));
}

TEST_CASE("a stage without linear layers is done after the first part") {
  Leaves leaves;
  const at::Tensor end = engine::embed(engine::Weight(leaves.table), at::arange(5, at::kLong));
  engine::SplitBackward backward(torch::autograd::impl::gradient_edge(end), {});
  CHECK(!backward.input_gradient(at::ones_like(end)).defined());
  CHECK(leaves.table.grad().equal(at::ones({5, kWidth})));
  backward.weight_gradients();
  CHECK(leaves.table.grad().equal(at::ones({5, kWidth})));
}
