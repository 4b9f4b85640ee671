// Low-rank adapters (LoRA) of the projections of a decoder or of a stage of one: for each targeted
// projection x W^T becomes x W^T + (alpha / rank) (x A^T) B^T. Only A and B are trained.
//
// Of the X experts of a layer each has an A and a B of that rank. The file has those of all experts
// as one parameter each, as PEFT's for a parameter of experts: A [X rank, inputs], an expert's rows
// one after another, and B [outputs, rank X], in which the columns of one index of the rank are
// those of all experts.
//
// Source: Hu et al. 2021; peft 0.21, lora.ParamWrapper.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/layers/param_table.h"
#include "engine/models/adapter_targets.h"
#include "engine/models/stage.h"
#include "engine/params/param_unit.h"
#include "engine/params/tensor_cut.h"
#include "engine/params/weight.h"
#include "sp/layout/range.h"

namespace ringside::engine {

class DecoderLayer;

// What is adapted, and how.
struct AdapterOptions {
  int64_t rank = 0;
  double alpha = 0.0;
  std::vector<std::string> targets;  // of known_adapter_targets()
  bool operator==(const AdapterOptions&) const = default;
};

// Whether a model can have such adapters.
// Throws: c10::Error unless rank and alpha are positive and the targets are projections of the
// model, at least one, each once. MLPs have none in models with experts.
void check_adapter_options(const ModelConfig& config, const AdapterOptions& options);

// All factors are one unit, because they are small and one sum over the ranks costs less than one a
// layer. Its parameters have the names of PEFT's files.
// Thread safety: as Decoder.
class Adapters {
 public:
  // The factors of the stage's layers are zero, whole on every rank: context is one without
  // sharding, but the ranks of its experts are read. Tensor-parallel ranks use the columns of A, or
  // the rows of B, of their part of a projection, and the ranks of experts the factors of theirs;
  // the sum of their gradients is that of the whole.
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

  // Whether experts of that layer have adapters.
  bool adapts_experts(int64_t layer) const;
  // Adds scale B A of all experts to a unit of the layer's experts, as merge_into(). flat: its
  // parameters in the order of `specs`, those of one of DecoderLayer::experts_specs().
  void merge_into_experts(int64_t layer, const std::vector<ParamSpec>& specs,
                          const at::Tensor& flat) const;

 private:
  // A targeted projection.
  struct Target {
    std::string module;  // as PEFT names it: "self_attn.q_proj"
    int64_t inputs, outputs;
    int64_t row;    // of this rank's fused output, the projection's first
    TensorCut cut;  // of the projection
    bool operator==(const Target&) const = default;
  };
  // Targets that share an input, so that their A are adjacent in the unit, before their B.
  struct Fused {
    Slot weight;
    std::vector<Target> targets;
    int64_t experts = 0;  // that each have the one target; 0: a linear layer
    bool input_first = false;

    // Columns of a B, and rows of an A, for adapters of that rank.
    int64_t columns(int64_t rank) const { return experts > 0 ? experts * rank : rank; }
  };
  friend void check_adapter_options(const ModelConfig&, const AdapterOptions&);
  // The targets of every layer of the model: those of its projections that are named, so layers may
  // differ in them.
  static std::vector<std::vector<Fused>> targets_of_layers(const ModelConfig& config,
                                                           const AdapterOptions& options,
                                                           const TensorPlace& tensor = {});
  // Those of a layer's experts, which are whole on every tensor rank.
  static std::vector<Fused> targets_of_experts(const DecoderLayer& layer,
                                               const AdapterOptions& options);
  // A and B of this rank's experts: [x, rank, inputs] and [x, outputs, rank].
  std::shared_ptr<const LowRank> low_rank_of_experts(const Fused& fused, const at::Tensor& a,
                                                     const at::Tensor& b,
                                                     at::ScalarType compute_dtype) const;
  // Number of the layer's first factor in the unit.
  std::size_t first_factor(int64_t layer) const;
  // range: of the model's layers.
  static std::vector<ParamSpec> specs(const ModelConfig& config, const AdapterOptions& options,
                                      const std::vector<std::vector<Fused>>& layers,
                                      const sp::Range& range);

  ModelConfig config_;
  Stage stage_;
  AdapterOptions options_;
  TensorPlace tensor_;
  sp::Range own_experts_;  // of each layer, that this rank computes with
  std::vector<std::vector<Fused>> layers_;
  ParamUnit unit_;
};

}  // namespace ringside::engine
