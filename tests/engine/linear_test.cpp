// Guards the linear layer and the embedding: LibTorch's bits for one dtype, gradients that are not
// rounded to the compute dtype.
#include "engine/nn/linear.h"

#include <ATen/ATen.h>

#include "tests/support/catch.h"
#include "tests/support/close.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

at::Tensor leaf(std::vector<int64_t> shape, at::ScalarType dtype) {
  return (at::rand(shape, at::kDouble) - 0.5).to(dtype).requires_grad_();
}

TEST_CASE("linear and embed have at::linear's and at::embedding's bits, forward and backward") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    for (const int64_t s : {0, 1, 7}) {
      for (const bool biased : {false, true}) {
        CAPTURE(dtype, s, biased);
        const at::Tensor x = leaf({s, 5}, dtype), w = leaf({6, 5}, dtype), b = leaf({6}, dtype);
        const at::Tensor factor = at::rand({s, 6}, dtype);
        const auto expected = biased ? at::linear(x, w, b) : at::linear(x, w);
        (expected * factor).sum().backward();
        const std::vector<at::Tensor> grads{x.grad().clone(), w.grad().clone()};
        const at::Tensor b_grad = biased ? b.grad().clone() : at::Tensor();
        for (const at::Tensor& t : {x, w, b}) {
          t.mutable_grad().reset();
        }
        const at::Tensor y = biased ? apply_linear(x, w, b) : apply_linear(x, w);
        (y * factor).sum().backward();
        CHECK(at::equal(y, expected));
        CHECK(at::equal(x.grad(), grads[0]));
        CHECK(at::equal(w.grad(), grads[1]));
        CHECK((!biased || at::equal(b.grad(), b_grad)));
      }
    }
  }
  const at::Tensor table = leaf({6, 5}, at::kFloat), ids = at::tensor({4, 0, 4}, at::kLong);
  const at::Tensor factor = at::rand({3, 5});
  (at::embedding(table, ids) * factor).sum().backward();
  const at::Tensor expected = table.grad().clone();
  table.mutable_grad().reset();
  (embed(table, ids) * factor).sum().backward();
  CHECK(at::equal(table.grad(), expected));
}

TEST_CASE("the gradient of a bf16 layer's weight is not rounded to bf16") {
  const at::Tensor master = leaf({6, 5}, at::kFloat), bias = leaf({6}, at::kFloat);
  const Weight weight(master.detach().to(at::kBFloat16), master);
  const Weight offset(bias.detach().to(at::kBFloat16), bias);
  const at::Tensor x = leaf({300, 5}, at::kBFloat16);
  const at::Tensor dy = at::rand({300, 6}).to(at::kBFloat16);
  apply_linear(x, weight, offset).backward(dy);
  const at::Tensor exact = dy.to(at::kDouble).t().mm(x.detach().to(at::kDouble));
  CHECK(master.grad().scalar_type() == at::kFloat);
  CHECK(max_abs_diff(master.grad(), exact) < 1e-5 * exact.abs().max().item<double>());
  CHECK(max_abs_diff(bias.grad(), dy.to(at::kDouble).sum(0)) < 1e-4);
  CHECK(x.grad().scalar_type() == at::kBFloat16);

  const at::Tensor table = leaf({4, 3}, at::kFloat);
  const at::Tensor ids = at::zeros({1000}, at::kLong);
  embed({table.detach().to(at::kBFloat16), table}, ids)
      .backward(at::full({1000, 3}, 0.1, at::kBFloat16));
  const double each = at::full({}, 0.1, at::kBFloat16).item<double>();
  CHECK(std::abs(table.grad()[0][0].item<double>() - 1000 * each) < 1e-3);
}

TEST_CASE("linear refuses what does not fit") {
  CHECK_THROWS_WITH(apply_linear(at::ones({2, 4}), at::ones({3, 5})),
                    Catch::Contains("does not fit"));
  CHECK_THROWS_WITH(apply_linear(at::ones({2, 4}), at::ones({3, 4}, at::kDouble)),
                    Catch::Contains("weight"));
}

}  // namespace
}  // namespace ringside::engine
