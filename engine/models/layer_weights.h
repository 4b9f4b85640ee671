// Weights of one decoder layer, and the list of parts that says how they are made from parameters.
//
// Shapes: E = hidden size, F = MLP size, H = query heads, K = key/value heads, D = head dim,
// X = experts, I = an expert's MLP size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/params/param_unit.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// A layer's parameters for use in compute dtype, with q, k, v and gate, up fused. Absent ones are
// undefined.
struct LayerWeights {
  Weight qkv_weight;  // [(H + 2K) D, E]
  Weight qkv_bias;
  Weight o_weight;  // [E, H D]
  Weight o_bias;
  Weight sinks;       // [H]
  Weight q_a_weight;  // latent attention's, in place of qkv; shapes in latent_attention.cpp
  Weight q_a_bias;
  Weight q_a_norm;
  Weight q_b_weight;
  Weight kv_a_weight;
  Weight kv_a_bias;
  Weight kv_a_norm;
  Weight kv_b_weight;
  Weight q_norm;  // [D]
  Weight k_norm;
  Weight gate_up_weight;  // [2F, E]
  Weight gate_up_bias;
  Weight down_weight;  // [E, F]
  Weight down_bias;
  Weight delta_in;  // gated delta net's, in place of qkv and o; shapes in delta_net.cpp
  Weight delta_conv;
  Weight delta_log_decay;
  Weight delta_decay_bias;
  Weight delta_norm;
  Weight delta_out;
  Weight router;                 // [X, E]; with experts, gate_up and down are of the shared MLP
  Weight router_bias;            // [X]
  at::Tensor router_correction;  // [X] in the dtype of the router's scores
  Weight experts_gate_up;        // [x, 2I, E] of the x experts of this rank
  Weight experts_down;           // [x, E, I]
  Weight experts_gate_up_bias;   // of clamped experts; shapes in clamped_experts.h
  Weight experts_down_bias;
  Weight shared_gate;            // [1, E] of the shared MLP
  Weight input_norm;             // [E]
  Weight post_attention_norm;    // before the channel mixer
  Weight attention_branch_norm;  // of what the mixers add to the residual
  Weight mlp_branch_norm;
};

// Where the parameters of a part lie.
enum class PartPlace {
  kLayer,    // in the layer's unit
  kExperts,  // in a unit with one expert after another, each with its share of every such part
  kStack,    // in a unit of its own: one parameter, whose first dimension is the experts
};

// One weight of a layer: where it goes, its shape, and the parameters that it is made of. They lie
// side by side in the unit, in this order. Names are those of Hugging Face behind the layer's
// prefix; in kExperts, behind that of one expert. Shapes in kExperts and kStack are those of one
// expert.
struct LayerPart {
  Weight LayerWeights::*target;
  std::vector<int64_t> shape;
  std::vector<ParamSpec> params;
  PartPlace place = PartPlace::kLayer;
};

// A weight that is one parameter.
inline LayerPart single_part(Weight LayerWeights::*target, const char* name,
                             const std::vector<int64_t>& shape,
                             PartPlace place = PartPlace::kLayer) {
  return {target, shape, {{name, shape}}, place};
}

// Whether a part is a projection, which quantised layers keep elsewhere.
inline bool is_projection(const std::string& parameter) {
  return parameter.ends_with("_proj.weight");
}

}  // namespace ringside::engine
