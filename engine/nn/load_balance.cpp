#include "engine/nn/load_balance.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "sp/mesh/saved_context.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using StatePointer = std::shared_ptr<LoadBalance::State>;

at::Tensor in_sum_dtype(const at::Tensor& scores) {
  return scores.to(scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

at::Tensor probabilities(const at::Tensor& scores_sX, ScoreKind kind) {
  return kind == ScoreKind::kLogits ? at::softmax(scores_sX, 1)
                                    : scores_sX / scores_sX.sum(1, /*keepdim=*/true);
}

// Identity, whose backward adds the gradient of the loss.
struct WatchScores : torch::autograd::Function<WatchScores> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& scores_sX,
                            const StatePointer& state, int64_t kind) {
    ctx->save_for_backward({scores_sX});
    sp::hold(ctx, state);
    ctx->saved_data["kind"] = kind;
    return scores_sX.view_as(scores_sX);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto state = sp::held<StatePointer>(ctx);
    TORCH_CHECK(state->gradient_X.defined(),
                "load balance: finish() was not called before the backward");
    const auto kind = static_cast<ScoreKind>(ctx->saved_data["kind"].toInt());
    const at::Tensor scores = in_sum_dtype(ctx->get_saved_variables()[0]);
    const at::Tensor p = probabilities(scores, kind);
    const at::Tensor g = state->gradient_X.to(scores.scalar_type());
    const at::Tensor centred =
        (g - (p * g).sum(1, /*keepdim=*/true)) * state->copies_s1.to(scores.scalar_type());
    const at::Tensor added =
        kind == ScoreKind::kLogits ? p * centred : centred / scores.sum(1, /*keepdim=*/true);
    return {grads[0] + added.to(grads[0].scalar_type()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

LoadBalance::LoadBalance(int64_t layers, int64_t experts, const at::Tensor& copies_s)
    : state_(std::make_shared<State>()) {
  state_->copies_s1 = copies_s.to(at::kDouble).unsqueeze(1);
  state_->sums_2LX = at::zeros({2, layers, experts}, state_->copies_s1.options());
}

at::Tensor LoadBalance::watch(const at::Tensor& scores_sX, int64_t layer, ScoreKind kind,
                              sp::KeptResults* kept) const {
  sp::compute_once(kept, [&] {
    const at::NoGradGuard no_grad;
    const at::Tensor p = probabilities(in_sum_dtype(scores_sX), kind);
    const at::Tensor weighted = p * state_->copies_s1.to(p.scalar_type());
    state_->sums_2LX[1][layer].add_(
        at::sum(weighted, at::IntArrayRef{0}, /*keepdim=*/false, at::kDouble));
    return sp::KeptResults::Tensors{};
  });
  return WatchScores::apply(scores_sX, state_, static_cast<int64_t>(kind));
}

void LoadBalance::count(const at::Tensor& expert_sK, int64_t layer, sp::KeptResults* kept) const {
  state_->per_token = expert_sK.size(1);
  sp::compute_once(kept, [&] {
    const at::Tensor copies_sK = state_->copies_s1.expand(expert_sK.sizes());
    const at::Tensor used =
        at::zeros({expert_sK.size(0), state_->sums_2LX.size(2)}, copies_sK.options())
            .scatter_(1, expert_sK, copies_sK);
    state_->sums_2LX[0][layer].add_(used.sum(0));
    return sp::KeptResults::Tensors{};
  });
}

void LoadBalance::add_rows_of(sp::Communicator& ranks) const {
  const at::NoGradGuard no_grad;
  ranks.all_reduce_sum(state_->sums_2LX, "load_balance");
}

at::Tensor LoadBalance::finish(sp::Communicator& ranks, const at::Tensor& weight) const {
  const at::NoGradGuard no_grad;
  ranks.all_reduce_sum(state_->sums_2LX, "load_balance");
  const std::vector<at::Tensor> sums = state_->sums_2LX.sum(1).unbind(0);
  // No token at all: a loss of 0.
  const at::Tensor rows = (sums[0].sum() / static_cast<double>(state_->per_token)).clamp_min(1.0);
  const at::Tensor of_probability = sums[0] * static_cast<double>(sums[0].size(0)) / (rows * rows);
  state_->gradient_X = of_probability * weight.to(at::kDouble);
  return (of_probability * sums[1]).sum();
}

}  // namespace ringside::engine
