// Reader and writer of rotary embedding settings in a config.json.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/json/json_object.h"
#include "engine/layers/model_config.h"

namespace ringside::engine {

// Reads rope_theta and rope_scaling (transformers 4) or rope_parameters (5) into the config, whose
// head_dim and max_position_embeddings are set. As in transformers 5, a non-empty rope_scaling
// replaces rope_parameters, a rope_theta inside overrides the one outside, and an
// original_max_position_embeddings outside overrides the one inside.
// Throws: std::runtime_error naming file and key on another rope_type, on a field that the type
// does not have, and on a missing or impossible value.
void read_rope(const JsonObject& json, ModelConfig& config);

// The same for a model whose RoPE turns partial_rotary_factor of each head, `missing` if the field
// is. Sets attention.rotary_dim.
// Throws: also when that is not an even number of components.
void read_partial_rope(const JsonObject& json, double missing, ModelConfig& config);
// Adds partial_rotary_factor to what add_rope() wrote.
void add_partial_rope(const ModelConfig& config, nlohmann::ordered_json& json);

// The same for a model whose windowed layers have a RoPE of their own, without scaling
// (local_rope_theta): rope_local_base_freq (transformers 4), or the objects full_attention and
// sliding_attention of rope_parameters (5).
// Throws: also on a scaled RoPE of windowed layers.
void read_global_and_local_rope(const JsonObject& json, ModelConfig& config);
// The fields of both, in place of add_rope().
void add_global_and_local_rope(const ModelConfig& config, nlohmann::ordered_json& json);

// Writes both forms: transformers 4 reads rope_theta and rope_scaling, 5 reads rope_parameters.
void add_rope(const ModelConfig& config, nlohmann::ordered_json& json);

}  // namespace ringside::engine
