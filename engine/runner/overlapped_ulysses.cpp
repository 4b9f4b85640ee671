#include "engine/runner/overlapped_ulysses.h"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "sp/heads/async_projection.h"

namespace ringside::engine {
namespace {

sp::ProjectionParameter parameter_of(const Weight& weight) { return {weight.value, weight.leaf}; }

std::optional<sp::ProjectionParameter> bias_of(const Weight& bias) {
  return bias.defined() ? std::make_optional(parameter_of(bias)) : std::nullopt;
}

}  // namespace

OverlappedUlysses::OverlappedUlysses(WindowContexts contexts, at::Tensor positions_S,
                                     std::shared_ptr<sp::KeptResults> kept)
    : contexts_(std::move(contexts)), positions_S_(std::move(positions_S)), kept_(std::move(kept)) {
  TORCH_CHECK(!contexts_.empty(), "overlapped Ulysses: no attention plan");
  const bool is_one_or_three =
      positions_S_.dim() == 1 || (positions_S_.dim() == 2 && positions_S_.size(0) == 3);
  TORCH_CHECK(is_one_or_three && positions_S_.size(-1) == any().plan().share_rows,
              "overlapped Ulysses: positions of ", positions_S_.sizes(), ", the plan's share has ",
              any().plan().share_rows, " rows");
}

std::unique_ptr<AttentionBackend> OverlappedUlysses::keeping(
    const std::shared_ptr<sp::KeptResults>& kept) const {
  return std::make_unique<OverlappedUlysses>(contexts_, positions_S_, kept);
}

at::Tensor OverlappedUlysses::attend(const AttentionSpec& spec, const at::Tensor& q_sHD,
                                     const at::Tensor& k_sKD, const at::Tensor& v_sKD) {
  return sp::attention(q_sHD, k_sKD, v_sKD, context_of(contexts_, spec.window), options(spec));
}

OverlappedAttention::Heads OverlappedUlysses::project(const at::Tensor& hidden_sE,
                                                      const Projection& q, const Projection& k,
                                                      const Projection& v) {
  const sp::AttentionPlan& plan = any().plan();
  auto [q_ShD, k_SkD, v_SkD] = sp::async_ulysses_qkv_projection(
      hidden_sE, parameter_of(q.weight), bias_of(q.bias), parameter_of(k.weight), bias_of(k.bias),
      parameter_of(v.weight), bias_of(v.bias), plan.heads.head_dim, any().ulysses,
      plan.ulysses_rows, kept_.get());
  return {q_ShD, k_SkD, v_SkD};
}

at::Tensor OverlappedUlysses::attend_heads(const AttentionSpec& spec, const Heads& heads) {
  return sp::share_attention(heads.q_ShD, heads.k_SkD, heads.v_SkD,
                             context_of(contexts_, spec.window), options(spec));
}

at::Tensor OverlappedUlysses::project_out(const at::Tensor& out_ShD, const Projection& o) {
  return sp::async_ulysses_output_projection(out_ShD, parameter_of(o.weight), bias_of(o.bias),
                                             any().ulysses, any().plan().ulysses_rows, kept_.get());
}

}  // namespace ringside::engine
