#include "engine/vision/vision_layers.h"

#include <ATen/ATen.h>

#include <cmath>

#include "engine/nn/attention_backend.h"
#include "engine/nn/linear.h"
#include "engine/ops/gated_activation.h"
#include "engine/ops/gelu.h"
#include "engine/ops/layer_norm.h"
#include "engine/ops/qk_norm_rope.h"
#include "engine/ops/rms_norm.h"

namespace ringside::engine {
namespace {

// The modules of a family as its files name them.
struct ModuleNames {
  std::vector<const char*> up;  // projections that share the MLP's input
  const char* down;
  const char* merger_norm;
  const char* merger_first;
  const char* merger_second;
};

ModuleNames names_of(VisionFamily family) {
  switch (family) {
    case VisionFamily::kQwen2Vl:
      return {{"mlp.fc1"}, "mlp.fc2", ".ln_q", ".mlp.0", ".mlp.2"};
    case VisionFamily::kQwen2_5Vl:
      return {{"mlp.gate_proj", "mlp.up_proj"}, "mlp.down_proj", ".ln_q", ".mlp.0", ".mlp.2"};
    case VisionFamily::kQwen3Vl:
      return {{"mlp.linear_fc1"}, "mlp.linear_fc2", ".norm", ".linear_fc1", ".linear_fc2"};
  }
  TORCH_CHECK(false, "vision tower: unknown family ", static_cast<int>(family));
}

std::vector<Projection> up_projections(const VisionConfig& config) {
  std::vector<Projection> projections;
  for (const char* module : names_of(config.family).up) {
    projections.push_back({module, config.mlp});
  }
  return projections;
}

Slot add_patch_weight(const VisionConfig& c, ParamTable& table) {
  return table.add({{c.width, c.row_size()},
                    {{"patch_embed.proj.weight", {c.width, 3, c.temporal_patch, c.patch, c.patch}}},
                    WeightPlace::kLayer});
}

}  // namespace

PatchNorm::PatchNorm(ParamTable& table, const std::string& module, int64_t size,
                     VisionFamily family, const NormOptions& options)
    : weight_(table.add(module + ".weight", {size})), options_(options) {
  if (family != VisionFamily::kQwen2_5Vl) {
    bias_ = table.add(module + ".bias", {size});
  }
}

at::Tensor PatchNorm::operator()(const at::Tensor& x, const LayerPass& pass) const {
  return bias_ ? layer_norm(x, pass.weights[weight_], pass.weights[*bias_], options_.eps)
               : rms_norm(x, pass.weights[weight_], options_);
}

PatchEmbedding::PatchEmbedding(const VisionConfig& config)
    : weight_(add_patch_weight(config, table_)) {
  if (config.family == VisionFamily::kQwen3Vl) {
    bias_ = table_.add("patch_embed.proj.bias", {config.width});
    positions_ = table_.add("pos_embed.weight", {config.positions, config.width});
  }
}

at::Tensor PatchEmbedding::forward(const at::Tensor& patches_pF, const LearnedPositions& positions,
                                   const LayerPass& pass) const {
  const at::Tensor hidden_pC =
      apply_linear(patches_pF, pass.weights[weight_], bias_ ? pass.weights[*bias_] : Weight());
  if (!positions_) {
    return hidden_pC;
  }
  const at::Tensor rows_4pC = embed(pass.weights[*positions_], positions.row_4p.flatten())
                                  .view({4, hidden_pC.size(0), hidden_pC.size(1)});
  return hidden_pC + (rows_4pC * positions.weight_4p1).sum(0).to(hidden_pC.scalar_type());
}

VisionBlock::VisionBlock(const VisionConfig& config, int64_t index, const NormOptions& norm)
    : index_(index),
      heads_(config.heads),
      head_dim_(config.head_dim()),
      family_(config.family),
      attention_norm_(table_, "norm1", config.width, config.family, norm),
      qkv_(table_, {{"attn.qkv", 3 * config.width}}, config.width, Bias::kAll),
      out_(table_, {{"attn.proj", config.width}}, config.width, Bias::kAll),
      mlp_norm_(table_, "norm2", config.width, config.family, norm),
      up_(table_, up_projections(config), config.width, Bias::kAll),
      down_(table_, {{names_of(config.family).down, config.width}}, config.mlp, Bias::kAll) {}

at::Tensor VisionBlock::attend(const at::Tensor& normed_pC, const LayerPass& pass) const {
  const at::Tensor heads_p3HD =
      qkv_(normed_pC, pass).view({normed_pC.size(0), 3 * heads_, head_dim_});
  // Turned in the dtype of the angles, as in transformers: fp32 in models of lower precision.
  const auto [q, k, v] = norm_and_rotate(heads_p3HD.to(pass.ropes.global.cos_s1d.scalar_type()),
                                         {heads_, heads_}, {}, pass.ropes.global);
  const at::ScalarType dtype = normed_pC.scalar_type();
  const at::Tensor out_pHD =
      pass.attention.attend({.layer = index_,
                             .softmax_scale = 1.0 / std::sqrt(static_cast<double>(head_dim_)),
                             .sinks_H = {}},
                            q.to(dtype), k.to(dtype), v.to(dtype));
  return out_(out_pHD.flatten(1), pass);
}

at::Tensor VisionBlock::apply_mlp(const at::Tensor& normed_pC, const LayerPass& pass) const {
  const at::Tensor up = up_(normed_pC, pass);
  switch (family_) {
    case VisionFamily::kQwen2Vl:
      return down_(gelu(up, GeluForm::kQuick), pass);
    case VisionFamily::kQwen2_5Vl:
      return down_(swiglu(up), pass);
    case VisionFamily::kQwen3Vl:
      return down_(gelu(up, GeluForm::kTanh), pass);
  }
  TORCH_CHECK(false, "vision tower: unknown family ", static_cast<int>(family_));
}

at::Tensor VisionBlock::forward(const at::Tensor& hidden_pC, const LayerPass& pass) const {
  const at::Tensor attended_pC = hidden_pC + attend(attention_norm_(hidden_pC, pass), pass);
  return attended_pC + apply_mlp(mlp_norm_(attended_pC, pass), pass);
}

PatchMerger::PatchMerger(const VisionConfig& config, const std::string& module, MergerNorm place,
                         int64_t out, const NormOptions& norm)
    : place_(place),
      patches_(config.patches_of_token()),
      joined_(patches_ * config.width),
      norm_(table_, module + names_of(config.family).merger_norm,
            place == MergerNorm::kOfTokens ? joined_ : config.width, config.family, norm),
      first_(table_, {{module + names_of(config.family).merger_first, joined_}}, joined_,
             Bias::kAll),
      second_(table_, {{module + names_of(config.family).merger_second, out}}, joined_,
              Bias::kAll) {}

at::Tensor PatchMerger::forward(const at::Tensor& hidden_pC, const LayerPass& pass) const {
  const std::vector<int64_t> of_tokens{hidden_pC.size(0) / patches_, joined_};
  const at::Tensor joined = place_ == MergerNorm::kOfTokens
                                ? norm_(hidden_pC.view(of_tokens), pass)
                                : norm_(hidden_pC, pass).view(of_tokens);
  return second_(gelu(first_(joined, pass), GeluForm::kExact), pass);
}

}  // namespace ringside::engine
