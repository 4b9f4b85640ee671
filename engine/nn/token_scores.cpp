#include "engine/nn/token_scores.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/nn/checks.h"
#include "engine/nn/head_logits.h"
#include "engine/nn/operators.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType score_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// The dtype in which a chunk's logits and their gradient are kept. Not rounded but on CUDA, so that
// the head's gradient, too, is summed from parts that were not rounded.
at::ScalarType logits_dtype(c10::Device device, at::ScalarType hidden) {
  return device.is_cuda() ? hidden : score_dtype(hidden);
}

constexpr std::size_t kHeadLeaf = 2;  // place among the arguments of forward
constexpr const char* kFirstLogits = "first_logits";

// The logits that the forward kept. Computed again in a second backward, as the first one's
// gradient took their place.
at::Tensor take_first_logits(AutogradContext& ctx, const at::Tensor& hidden_cE,
                             const at::Tensor& head_VE) {
  const at::Tensor kept = std::exchange(ctx.saved_data[kFirstLogits], at::Tensor()).toTensor();
  return kept.defined() ? kept : head_logits(hidden_cE, head_VE);
}

struct TokenScoresFunction : torch::autograd::Function<TokenScoresFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden_nE,
                               const at::Tensor& head_VE, const at::Tensor& /*head_leaf*/,
                               const at::Tensor& targets_n, const at::Tensor& temperature_n,
                               int64_t chunk_rows, bool has_backward) {
    const int64_t n = hidden_nE.size(0);
    const auto options = hidden_nE.options().dtype(score_dtype(hidden_nE.scalar_type()));
    const at::Tensor temperature = temperature_n.to(options);
    const at::Tensor logprobs_n = at::empty({n}, options);
    const at::Tensor entropy_n = at::empty({n}, options);
    const at::Tensor lse_n = at::empty({n}, options);
    // The first chunk comes last and its logits stay: the backward begins with them. So one chunk
    // is computed once, and no more logits exist at a time than with all of them computed again.
    at::Tensor first_logits_cV;
    const int64_t chunks = (n + chunk_rows - 1) / chunk_rows;
    for (int64_t begin = (chunks - 1) * chunk_rows; begin >= 0; begin -= chunk_rows) {
      const int64_t rows = std::min(chunk_rows, n - begin);
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
      const at::Tensor logits_cV = head_logits(part(hidden_nE), head_VE);
      operators::token_scores(logits_cV, part(targets_n), part(temperature), part(logprobs_n),
                              part(entropy_n), part(lse_n));
      if (begin == 0 && has_backward) {
        first_logits_cV = logits_cV;
      }
    }
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({hidden_nE, head_VE, targets_n, temperature, entropy_n, lse_n});
    ctx->saved_data[kFirstLogits] = first_logits_cV;
    ctx->saved_data["chunk_rows"] = chunk_rows;
    return {logprobs_n, entropy_n};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &hidden_nE = saved[0], &head_VE = saved[1], &targets_n = saved[2];
    const at::Tensor &temperature_n = saved[3], &entropy_n = saved[4], &lse_n = saved[5];
    const at::ScalarType acc = entropy_n.scalar_type();
    const int64_t n = hidden_nE.size(0), chunk_rows = ctx->saved_data["chunk_rows"].toInt();
    const at::Tensor g_lp_n =
        grads[0].defined() ? grads[0] / temperature_n : at::zeros_like(entropy_n);
    const at::Tensor g_entropy_n = grads[1].defined() ? grads[1] / temperature_n : at::Tensor();
    at::Tensor d_hidden_nE = at::empty_like(hidden_nE);
    // Many chunks add to the head's gradient, so it is summed in fp32 for every compute dtype.
    at::Tensor d_head_VE;
    if (ctx->needs_input_grad(kHeadLeaf)) {
      d_head_VE = at::zeros(head_VE.sizes(), head_VE.options().dtype(acc));
    }
    for (int64_t begin = 0; begin < n; begin += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, n - begin);
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
      const at::Tensor hidden_cE = part(hidden_nE);
      // The gradient of the logits takes their place.
      const at::Tensor d_logits_cV = begin == 0 ? take_first_logits(*ctx, hidden_cE, head_VE)
                                                : head_logits(hidden_cE, head_VE);
      operators::token_scores_backward(
          d_logits_cV, part(targets_n), part(temperature_n), part(lse_n), part(entropy_n),
          part(g_lp_n),
          g_entropy_n.defined() ? std::make_optional(part(g_entropy_n)) : std::nullopt);
      at::Tensor d_hidden_cE = part(d_hidden_nE);
      at::mm_out(d_hidden_cE, d_logits_cV.to(hidden_nE.scalar_type()), head_VE);
      if (d_head_VE.defined()) {
        operators::add_transposed_mm(d_head_VE, d_logits_cV, hidden_cE);
      }
    }
    return {d_hidden_nE,  at::Tensor(), d_head_VE,   at::Tensor(),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

int64_t bytes_per_logit(const at::TensorOptions& hidden) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(hidden.dtype());
  const auto kept = static_cast<int64_t>(c10::elementSize(logits_dtype(hidden.device(), dtype)));
  // The CPU's operators hold the logits, their log-softmax and its exponential at once. A kernel of
  // our own works in place.
  if (hidden.device().is_cpu()) {
    return 3 * kept;
  }
  const auto product = static_cast<int64_t>(c10::elementSize(dtype));
  return product == kept ? kept : kept + product;
}

int64_t token_score_rows(const at::TensorOptions& hidden, int64_t vocab_size, int64_t chunk_bytes) {
  const bool doubles = hidden.dtype() == at::kDouble;
  const int64_t bytes = bytes_per_logit(doubles ? hidden.dtype(at::kFloat) : hidden);
  return std::max<int64_t>(1, chunk_bytes / (vocab_size * bytes));
}

TokenScores token_scores(const at::Tensor& hidden_nE, const Weight& head,
                         const at::Tensor& targets_n, const at::Tensor& temperature_n,
                         int64_t chunk_rows) {
  const at::Tensor& head_VE = head.value;
  TORCH_CHECK(hidden_nE.dim() == 2 && head_VE.dim() == 2 && hidden_nE.size(1) == head_VE.size(1) &&
                  hidden_nE.is_floating_point(),
              "token_scores: hidden ", hidden_nE.sizes(), " ", hidden_nE.scalar_type(),
              " does not fit the head ", head_VE.sizes());
  check_alike("token_scores", {{"hidden", hidden_nE}, {"head", head_VE}});
  check_same_device(
      "token_scores",
      {{"hidden", hidden_nE}, {"targets", targets_n}, {"temperature", temperature_n}});
  const int64_t n = hidden_nE.size(0);
  TORCH_CHECK(
      targets_n.dim() == 1 && targets_n.size(0) == n && targets_n.scalar_type() == at::kLong,
      "token_scores: ", n, " rows need int64 targets [", n, "], got ", targets_n.sizes(), " ",
      targets_n.scalar_type());
  TORCH_CHECK(temperature_n.dim() == 1 && temperature_n.size(0) == n, "token_scores: ", n,
              " rows need temperatures [", n, "], got ", temperature_n.sizes());
  TORCH_CHECK(chunk_rows > 0, "token_scores: chunk_rows must be positive, got ", chunk_rows);
  const variable_list scores =
      TokenScoresFunction::apply(hidden_nE, head_VE, head.leaf, targets_n, temperature_n,
                                 chunk_rows, at::GradMode::is_enabled());
  return {scores[0], scores[1]};
}

}  // namespace ringside::engine
