// Projections of a decoder layer that can have low-rank adapters, by their Hugging Face names.
// Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {

// q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj: "all-linear".
const std::vector<std::string>& adapter_targets();

// Those, the projections of latent attention (q_a_proj, ...) and of gated delta nets (in_proj_qkv,
// ..., out_proj), those of models that have several in one tensor (qkv_proj, gate_up_proj), and
// those of experts (experts.gate_up_proj, experts.down_proj).
const std::vector<std::string>& known_adapter_targets();

// The projections that `text` names, in the order of known_adapter_targets(): "all-linear", or
// names separated by commas.
// Throws: std::invalid_argument that names an unknown one, with the list, or one that comes twice.
std::vector<std::string> parse_adapter_targets(std::string_view text);

}  // namespace ringside::engine
