// Vision tower of a model that takes images: patches to rows of the language model.
//
// The rows stand in place of embeddings (ImageRows in engine/models). They may be used on another
// rank than the one that encodes the image: encode() knows no tokens.
//
// Shapes: p = patches of all images, F = numbers of a patch row, i = tokens of all images, E =
// hidden size of the language model.
// Source: transformers 5.9, models/qwen2_vl, qwen2_5_vl, qwen3_vl and qwen3_5.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/images/image_processor.h"
#include "engine/layers/activation_options.h"
#include "engine/layers/model_config.h"
#include "engine/nn/rope.h"
#include "engine/params/param_unit.h"
#include "engine/params/unit_scope.h"
#include "engine/vision/vision_layers.h"

namespace ringside::engine {

// Which part of a tower is trained; the others are constants.
enum class VisionTraining { kNothing, kMergers, kAll };

// One unit of a tower.
struct VisionUnitSpecs {
  std::string name;
  std::vector<ParamSpec> specs;
  bool merges = false;  // has a merger
};

// The units of a model's tower, in order: patch embedding, blocks, merger, mergers of deepstack.
// Allocates nothing.
std::vector<VisionUnitSpecs> vision_unit_specs(const ModelConfig& config);

// Rows of images, those of one image after those of another. Gradients of the rows are those of the
// tower.
struct EncodedImages {
  at::Tensor rows_iE;
  std::vector<at::Tensor> deepstack_iE;  // added behind the first layers
};

// Thread safety: const functions from any thread while no thread writes parameters.
class VisionTower {
 public:
  // units: of vision_unit_specs(), in order.
  // Throws: c10::Error on a model without a tower, on an impossible shape and on other units.
  VisionTower(const ModelConfig& config, const ComputeContext& context,
              std::vector<std::shared_ptr<ParamUnit>> units);

  // Differentiable towards the units that are trained; of others it keeps nothing for a backward.
  // A trained block is recomputed with any recomputation; what is kept is not offloaded.
  // Shapes: patches_pF in compute dtype on the model's device, rows as patch_rows() orders them;
  // p may be 0, which takes part in all collectives.
  // Collective over: the shard of a sharded model, also in the backward.
  // Blocks: never; the grids are known on the host.
  // Throws: c10::Error on other shapes or dtypes; std::invalid_argument as patch_tables().
  EncodedImages encode(const at::Tensor& patches_pF, std::span<const PatchGrid> grids,
                       const ActivationOptions& activations = {}) const;

  const std::vector<std::shared_ptr<ParamUnit>>& units() const { return units_; }

 private:
  // What the layers of one pass share.
  struct Pass;
  using Layer = std::function<at::Tensor(const at::Tensor& hidden, const LayerPass& pass)>;

  Pass start(std::span<const PatchGrid> grids) const;
  // A layer with the weights of its unit.
  at::Tensor run(std::size_t unit, const at::Tensor& hidden, Pass& pass, bool recomputes,
                 const Layer& layer) const;
  UnitShapes shapes_of(std::size_t unit) const;

  VisionConfig vision_;
  ComputeContext context_;
  PatchEmbedding embedding_;
  std::vector<VisionBlock> blocks_;
  std::vector<PatchMerger> mergers_;  // the first one makes the rows
  RopeFrequencies rope_frequencies_;
  std::optional<c10::Stream> upload_stream_;
  std::vector<std::shared_ptr<ParamUnit>> units_;
};

}  // namespace ringside::engine
