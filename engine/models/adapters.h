// Low-rank adapters (LoRA) of the projections of a decoder or of a stage of one: for each targeted
// projection x W^T becomes x W^T + (alpha / rank) (x A^T) B^T. Only A and B are trained.
//
// Source: Hu et al. 2021.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/layers/param_table.h"
#include "engine/models/adapter_targets.h"
#include "engine/models/stage.h"
#include "engine/params/param_unit.h"
#include "engine/params/tensor_cut.h"

namespace ringside::engine {

// What is adapted, and how.
struct AdapterOptions {
  int64_t rank = 0;
  double alpha = 0.0;
  std::vector<std::string> targets;  // of known_adapter_targets()
  bool operator==(const AdapterOptions&) const = default;
};

// Whether a model can have such adapters.
// Throws: c10::Error unless rank and alpha are positive and the targets are projections of the
// model, at least one, each once. Experts have none, nor have MLPs beside them.
void check_adapter_options(const ModelConfig& config, const AdapterOptions& options);

// All factors are one unit, because they are small and one sum over the ranks costs less than one a
// layer. Its parameters have the names of PEFT's files.
// Thread safety: as Decoder.
class Adapters {
 public:
  // The factors of the stage's layers are zero, whole on every rank: context is one without
  // sharding. Tensor-parallel ranks use the columns of A, or the rows of B, of their part of a
  // projection; the sum of their gradients is that of the whole.
  // Throws: as check_adapter_options().
  Adapters(const ModelConfig& config, const Stage& stage, AdapterOptions options,
           const ComputeContext& context);

  // A uniform in +-1/sqrt(inputs), as PEFT; B zero, so that the model starts as its base. The same
  // seed gives the same values, up to rounding to the master dtype; a stage's are those of the
  // whole model.
  void init_random(uint64_t seed);

  // Name and shape of every factor of the whole model, layer by layer. Allocates nothing.
  // Throws: as the constructor.
  static std::vector<ParamSpec> factors(const ModelConfig& config, const AdapterOptions& options);

  // Those of a stage of it.
  static std::vector<ParamSpec> factors(const ModelConfig& config, const Stage& stage,
                                        const AdapterOptions& options);

  // Of the whole model.
  const ModelConfig& config() const { return config_; }
  const AdapterOptions& options() const { return options_; }
  double scale() const { return options_.alpha / static_cast<double>(options_.rank); }
  ParamUnit& unit() { return unit_; }
  const ParamUnit& unit() const { return unit_; }

  // The factors of each layer as one flat piece of unit().flat(), differentiable towards it.
  // Shapes: one [elements of a layer's factors] for each layer of the stage.
  std::vector<at::Tensor> split_layers() const;

  // Adds the factors to the weights of layer `layer` of the model, one of the stage's, by slot.
  // leaf: of split_layers().
  void attach(int64_t layer, std::vector<Weight>& weights, const at::Tensor& leaf,
              at::ScalarType compute_dtype) const;

  // Adds scale B A to the weights of layer `layer` in place, in the dtype of `flat`, the master
  // dtype. flat: the layer's parameters in the order of DecoderLayer::specs().
  void merge_into(int64_t layer, const at::Tensor& flat) const;

 private:
  // A targeted projection.
  struct Target {
    std::string module;  // "self_attn.q_proj"
    int64_t inputs, outputs;
    int64_t row;    // of this rank's fused output, the projection's first
    TensorCut cut;  // of the projection
    bool operator==(const Target&) const = default;
  };
  // Targets that share an input, so that their A are adjacent in the unit, before their B.
  struct Fused {
    Slot weight;
    std::vector<Target> targets;
  };
  friend void check_adapter_options(const ModelConfig&, const AdapterOptions&);
  // The targets of every layer of the model: those of its projections that are named, so layers may
  // differ in them.
  static std::vector<std::vector<Fused>> targets_of_layers(const ModelConfig& config,
                                                           const AdapterOptions& options,
                                                           const TensorPlace& tensor = {});
  // range: of the model's layers.
  static std::vector<ParamSpec> specs(const ModelConfig& config, const AdapterOptions& options,
                                      const std::vector<std::vector<Fused>>& layers,
                                      const sp::Range& range);

  ModelConfig config_;
  Stage stage_;
  AdapterOptions options_;
  TensorPlace tensor_;
  std::vector<std::vector<Fused>> layers_;
  ParamUnit unit_;
};

}  // namespace ringside::engine
