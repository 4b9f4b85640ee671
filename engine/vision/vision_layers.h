// Layers of a vision tower: patch embedding, blocks, mergers. Each is one parameter unit. They hold
// no tensor: their weights come with each pass, by the slots of their tables.
//
// Shapes: p = patches, n = tokens, F = numbers of a patch row, C = width of the tower, M = patches
// of a token, E = hidden size of the language model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/layers/layer_pass.h"
#include "engine/layers/linear.h"
#include "engine/layers/param_table.h"
#include "engine/layers/vision_config.h"
#include "engine/ops/norm_options.h"

namespace ringside::engine {

// LayerNorm with bias or RMSNorm, as the tower's family has it.
// Thread safety: immutable.
class PatchNorm {
 public:
  // Adds "<module>.weight" of `size` elements and, for LayerNorm, "<module>.bias".
  PatchNorm(ParamTable& table, const std::string& module, int64_t size, VisionFamily family,
            const NormOptions& options);

  // Shapes: [..., size], in and out.
  at::Tensor operator()(const at::Tensor& x, const LayerPass& pass) const;

 private:
  Slot weight_;
  std::optional<Slot> bias_;
  NormOptions options_;
};

// Rows of a table of learned positions for each patch, and their weights, on the device.
// Shapes: [4, p] int64; [4, p, 1] fp32. Undefined where the tower has no table.
struct LearnedPositions {
  at::Tensor row_4p;
  at::Tensor weight_4p1;
};

// A product with each patch row, and learned positions if there are any. The convolution that files
// have has a kernel as large as its stride.
// Thread safety: immutable.
class PatchEmbedding {
 public:
  // Enters the weights of the tower's patch embedding in its table.
  explicit PatchEmbedding(const VisionConfig& config);
  const ParamTable& table() const { return table_; }

  // Shapes: patches [p, F] -> [p, C]. Differentiable in the weights.
  at::Tensor forward(const at::Tensor& patches_pF, const LearnedPositions& positions,
                     const LayerPass& pass) const;

 private:
  ParamTable table_;
  Slot weight_;
  std::optional<Slot> bias_, positions_;
};

// Attention and MLP, each added to the residual stream, with norms before them.
// Thread safety: immutable.
class VisionBlock {
 public:
  // Enters the weights of block `index` in its table.
  VisionBlock(const VisionConfig& config, int64_t index, const NormOptions& norm);
  const ParamTable& table() const { return table_; }

  // pass.ropes.global: of the patches, in fp32 or wider. Shapes: [p, C], in and out.
  at::Tensor forward(const at::Tensor& hidden_pC, const LayerPass& pass) const;

 private:
  at::Tensor attend(const at::Tensor& normed_pC, const LayerPass& pass) const;
  at::Tensor apply_mlp(const at::Tensor& normed_pC, const LayerPass& pass) const;

  int64_t index_, heads_, head_dim_;
  VisionFamily family_;
  ParamTable table_;
  PatchNorm attention_norm_;
  Linear qkv_, out_;
  PatchNorm mlp_norm_;
  Linear up_, down_;
};

// Where a merger has its norm.
enum class MergerNorm { kOfPatches, kOfTokens };

// Joins the patches of a token and projects them to a row of the language model.
// Thread safety: immutable.
class PatchMerger {
 public:
  // module: "merger". out: E.
  PatchMerger(const VisionConfig& config, const std::string& module, MergerNorm place, int64_t out,
              const NormOptions& norm);
  const ParamTable& table() const { return table_; }

  // Shapes: [p, C] -> [n, E].
  at::Tensor forward(const at::Tensor& hidden_pC, const LayerPass& pass) const;

 private:
  MergerNorm place_;
  int64_t patches_, joined_;  // of a token, and their width
  ParamTable table_;
  PatchNorm norm_;
  Linear first_, second_;
};

}  // namespace ringside::engine
