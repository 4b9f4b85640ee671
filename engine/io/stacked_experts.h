// Experts of a layer as two tensors of a file, gate and up projections in one and down projections
// in the other (Qwen3-VL-MoE, Qwen3.5-MoE).
//
// Shapes: X = experts, E = hidden size, I = an expert's MLP size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/params/param_unit.h"

namespace ringside::engine {

// Ends of their names, behind those of the layer.
inline constexpr const char* kStackedGateUp = "mlp.experts.gate_up_proj";
inline constexpr const char* kStackedDown = "mlp.experts.down_proj";

// How a model's files stack them.
// Thread safety: immutable.
class StackedExperts {
 public:
  // As the configuration's on_disk.stacks says.
  explicit StackedExperts(const ModelConfig& config)
      : count_(config.experts.count),
        hidden_(config.hidden_size),
        size_(config.experts.intermediate_size),
        stacks_(config.on_disk.stacks) {}

  // Whether the parameters that begin with this one are a unit of experts that files hold stacked.
  bool holds(const ParamSpec& first) const;
  // How many parameters such a unit has.
  int64_t parameters() const { return 3 * count_; }

  bool inputs_first() const { return stacks_ == ExpertStacks::kInputsFirst; }
  // [X, 2I, E] or [X, E, 2I]; [X, E, I] or [X, I, E].
  std::vector<int64_t> gate_up_shape() const { return shape(2 * size_, hidden_, inputs_first()); }
  std::vector<int64_t> down_shape() const { return shape(hidden_, size_, inputs_first()); }
  // The same the other way round, as programs may have saved them. transformers reads both.
  std::vector<int64_t> other_gate_up_shape() const {
    return shape(2 * size_, hidden_, !inputs_first());
  }
  std::vector<int64_t> other_down_shape() const { return shape(hidden_, size_, !inputs_first()); }

  // The two parameters of a unit that begins with this one.
  std::vector<ParamSpec> specs(const ParamSpec& first) const;
  // Their values. unit: all of the unit's, one expert after another with gate, up and down.
  std::vector<at::Tensor> tensors(const at::Tensor& unit) const;

 private:
  std::vector<int64_t> shape(int64_t outputs, int64_t inputs, bool inputs_first) const {
    return inputs_first ? std::vector{count_, inputs, outputs}
                        : std::vector{count_, outputs, inputs};
  }

  int64_t count_, hidden_, size_;
  ExpertStacks stacks_;
};

}  // namespace ringside::engine
