// Sequence parallelism for a model of one's own: an attention layer in plain ATen, one training
// step over two ranks. Guards: the functions of sp/functional used together, against the same step
// in one process.
#include "sp/functional/gather.h"
#include "sp/functional/gradient_sync.h"
#include "sp/functional/loss.h"
#include "sp/heads/async_projection.h"
#include "sp/heads/head_functions.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace ringside;

namespace {

constexpr int64_t kTokens = 11, kHidden = 8, kDim = 4, kInner = 3 * kDim;  // 3 heads

struct OwnAttention {
  at::Tensor q, k, v, out;  // weights [out, in]

  at::Tensor forward(const at::Tensor& x_sE, const std::shared_ptr<sp::Communicator>& comm) const {
    const auto lengths = sp::gather_lengths(x_sE.size(0), x_sE.device(), *comm);
    const auto [q_ShD, k_ShD, v_ShD] =
        sp::async_ulysses_qkv_projection(x_sE, q, {}, k, {}, v, {}, kDim, comm, lengths);
    const at::Tensor future = at::ones({q_ShD.size(0), q_ShD.size(0)}, at::kBool).triu(1);
    const at::Tensor scores = at::einsum("shd,thd->hst", {q_ShD, k_ShD}).masked_fill(future, -1e30);
    const at::Tensor attended_ShD = at::einsum("hst,thd->shd", {scores.softmax(-1), v_ShD});
    return x_sE + sp::async_ulysses_output_projection(attended_ShD, out, {}, comm, lengths);
  }
};

// Loss, then the gradients: the same code for one rank and for many.
std::vector<at::Tensor> train_step(const OwnAttention& model, const at::Tensor& x_SE,
                                   const at::Tensor& target_SE, const sp::ProcessGroups& comms) {
  const at::Tensor y_sE = model.forward(
      sp::slice_input_tensor(x_SE, 0, *comms.tensors(sp::axes::kSp)), comms.tensors(sp::axes::kSp));
  const at::Tensor error =
      (y_sE - sp::slice_input_tensor(target_SE, 0, *comms.tensors(sp::axes::kSp))).square().sum();
  const at::Tensor loss = sp::reduce_sequence_parallel_loss(
      error, y_sE.size(0), *comms.tensors(sp::axes::kSp), sp::LossForm::kSum);
  loss.backward();
  const std::vector<at::Tensor> weights{model.q, model.k, model.v, model.out};
  sp::sync_sp_parameter_gradients(weights, comms, sp::CpFsdpMode::kNone);
  return {loss.detach(), weights[0].grad(), weights[1].grad(), weights[2].grad(),
          weights[3].grad()};
}

}  // namespace

TEST_CASE("a model of one's own trains over two ranks as in one process") {
  at::manual_seed(3);
  const auto random = [](int64_t rows, int64_t columns) {
    return at::randn({rows, columns}, at::kDouble);
  };
  const at::Tensor x = random(kTokens, kHidden), target = random(kTokens, kHidden),
                   q = random(kInner, kHidden), k = random(kInner, kHidden),
                   v = random(kInner, kHidden), o = random(kHidden, kInner);
  const auto leaf = [](const at::Tensor& w) { return w.clone().requires_grad_(); };
  const auto step = [&](const sp::Mesh&, const sp::ProcessGroups& comms) {
    return train_step({leaf(q), leaf(k), leaf(v), leaf(o)}, x, target, comms);
  };
  std::vector<at::Tensor> expected;
  test::run_ranks({}, [&](const auto& mesh, const auto& comms) { expected = step(mesh, comms); });
  test::run_ranks({.ulysses = 2}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto got = step(mesh, comms);
    for (std::size_t i = 0; i < got.size(); ++i) {
      TORCH_CHECK(at::allclose(got[i], expected[i], 0, 1e-10), "result ", i);
    }
  });
}
