// The stand-in computes the CPU's bits: a small model forward and backward, optimizer, dtypes.
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/custom_function.h>

#include <thread>
#include <vector>

#include "tests/standin/streams.h"
#include "tests/support/catch.h"
#include "tests/support/standin/kernel_view.h"

namespace ringside::standin {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A node of one's own, which notes the thread that its backward runs in.
class Doubled : public torch::autograd::Function<Doubled> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    backward_thread = std::this_thread::get_id();
    return {gradients[0] * 2 + context->get_saved_variables()[0] * 0};
  }
  static inline std::thread::id backward_thread;
};

struct Inputs {
  std::vector<at::Tensor> leaves;  // states [10, 16], two weights, an embedding [11, 16]
  at::Tensor ids, targets;
};

Inputs inputs_on(c10::Device where, at::ScalarType dtype) {
  at::manual_seed(1);
  Inputs inputs;
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{10, 16}, {16, 64}, {32, 16}, {11, 16}}) {
    inputs.leaves.push_back(
        at::randn(shape, at::kFloat).to(where, dtype).detach().requires_grad_());
  }
  inputs.ids = at::randint(0, 11, {10}, at::kLong).to(where);
  inputs.targets = at::randint(0, 11, {10}, at::kLong).to(where);
  return inputs;
}

at::Tensor loss_of(const Inputs& inputs) {
  const auto& leaves = inputs.leaves;
  const at::Tensor states = at::embedding(leaves[3], inputs.ids) + leaves[0];
  const at::Tensor norm = states * at::rsqrt(states.pow(2).mean(-1, true) + 1e-6);
  const at::Tensor up = norm.matmul(leaves[1]);
  const at::Tensor mlp = at::silu(up.slice(1, 0, 32)) * up.slice(1, 32);
  const at::Tensor logits = Doubled::apply(mlp.matmul(leaves[2])).matmul(leaves[3].t());
  const at::Tensor log_probs = at::log_softmax(logits.to(at::kFloat), -1)
                                   .gather(-1, inputs.targets.unsqueeze(-1))
                                   .squeeze(-1);
  return -log_probs.masked_fill(inputs.targets.eq(3), 0).sum() / 7;
}

TEST_CASE("a small model's loss and gradients have the CPU's bits") {
  at::set_num_threads(1);
  Scope scope;
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const Inputs host = inputs_on(at::kCPU, dtype), there = inputs_on(device(), dtype);
  const at::Tensor expected = loss_of(host), loss = loss_of(there);
  CHECK(loss.device() == device());
  expected.backward();
  loss.backward();
  CHECK(at::equal(loss.cpu(), expected));
  for (size_t i = 0; i < host.leaves.size(); ++i) {
    INFO("gradient " << i);
    CHECK(there.leaves[i].grad().device() == device());
    CHECK(at::equal(there.leaves[i].grad().cpu(), host.leaves[i].grad()));
  }
  CHECK(scope.text() == "");
  CHECK(scope.counts().kernels.count("aten::embedding_dense_backward") == 1);
}

TEST_CASE("backward runs in the engine's thread, and in the caller's where multithreading is off") {
  at::set_num_threads(1);
  Scope scope;
  auto& state = c10::AutogradState::get_tls_state();
  const bool before = state.get_multithreading_enabled();
  for (const bool multithreading : {true, false}) {
    state.set_multithreading_enabled(multithreading);
    Doubled::apply(at::ones({2}, on_device()).requires_grad_()).sum().backward();
    CHECK((Doubled::backward_thread != std::this_thread::get_id()) == multithreading);
  }
  state.set_multithreading_enabled(before);
  CHECK(scope.text() == "");
}

TEST_CASE("operators with a CPU kernel and a composite use the kernel, as the CPU does") {
  Scope scope;
  const at::Tensor x = at::randn({6, 8}), weight = at::randn({8}), bias = at::randn({8});
  const auto there = [](const at::Tensor& t) { return t.to(device()); };
  CHECK(at::equal(at::layer_norm(there(x), {8}, there(weight), there(bias)).cpu(),
                  at::layer_norm(x, {8}, weight, bias)));
  CHECK(at::equal(at::stack({there(x), there(x)}).cpu(), at::stack({x, x})));
  CHECK(at::equal(at::silu_backward(there(x), there(x)).cpu(), at::silu_backward(x, x)));
  const Counts counts = scope.counts();
  CHECK(counts.kernels.count("aten::native_layer_norm") == 1);
  CHECK(counts.kernels.count("aten::silu_backward") == 1);
  CHECK(scope.text() == "");
}

TEST_CASE("fused AdamW, attention, views, sorting and random numbers have the CPU's bits") {
  at::set_num_threads(1);
  Scope scope;
  const at::Tensor x = at::randn({4, 4});
  const auto adamw = [&](c10::Device where) {
    std::vector<at::Tensor> p{x.to(where, at::kFloat, false, true)}, g{p[0] * 3};
    std::vector<at::Tensor> m{at::zeros_like(p[0])}, v{at::zeros_like(p[0])};
    const at::Tensor steps = at::ones({}, p[0].options());
    at::_fused_adamw_(p, g, m, v, {}, {steps}, 1e-3, 0.9, 0.99, 0.01, 1e-8, false, false);
    return at::stack({p[0], m[0], v[0]}).cpu();
  };
  CHECK(at::equal(adamw(device()), adamw(at::kCPU)));

  const at::Tensor q = at::randn({1, 4, 9, 16}), k = at::randn({1, 2, 9, 16});
  const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, k, 0, true);
  const auto [out_there, lse_there] = at::_scaled_dot_product_flash_attention_for_cpu(
      q.to(device()), k.to(device()), k.to(device()), 0, true);
  CHECK(at::equal(out_there.cpu(), out));
  CHECK(at::equal(lse_there.cpu(), lse));

  at::Tensor columns = x.to(device()), expected = x.clone();
  columns.select(1, 2).copy_(columns.select(1, 0));
  expected.select(1, 2).copy_(expected.select(1, 0).clone());
  CHECK(at::equal(columns.cpu(), expected));
  CHECK(at::equal(std::get<1>(x.to(device()).view({-1}).sort()).cpu(),
                  std::get<1>(x.view({-1}).sort())));
  at::Tensor product = at::empty({0}, on_device());
  at::mm_out(product, x.to(device()), x.to(device()));
  CHECK(at::equal(product.cpu(), at::mm(x, x)));

  at::manual_seed(7);
  const at::Tensor drawn = at::randn({5}, on_device());
  at::manual_seed(7);
  CHECK(at::equal(drawn.cpu(), at::randn({5})));
  CHECK(scope.text() == "");
}

TEST_CASE("an operator that only CUDA has is refused by name; a twin runs as one kernel") {
  Scope scope;
  const at::Tensor q = at::ones({3, 1, 8}, on_device());
  const std::string error =
      error_of([&] { at::_flash_attention_forward(q, q, q, {}, {}, 3, 3, 0.0, true, false); });
  CHECK(error.find("aten::_flash_attention_forward has no CPU kernel") != std::string::npos);

  at::Tensor sum = at::empty({8}, on_device());
  run_kernel("twin::sum", {q}, {sum}, [](const auto& reads, const auto& writes) {
    writes[0].copy_(reads[0].sum(at::IntArrayRef{0, 1}));
  });
  CHECK(at::equal(sum.cpu(), at::full({8}, 3.0)));
  CHECK(scope.counts().kernels.at("twin::sum") == 1);
  CHECK(scope.text() == "");
}

}  // namespace
}  // namespace ringside::standin
