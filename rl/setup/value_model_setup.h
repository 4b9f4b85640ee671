// Starting value model as the configuration describes it: a critic, or a reward model.
#pragma once

#include <memory>
#include <string>

#include "engine/models/value_model.h"
#include "rl/config/config.h"

namespace ringside::rl {

// The value model that training starts from: the trunk and, where the files have one, the head of
// `path`, or weights drawn from config.seed. head_bias: as of ValueModel. Not collective. Blocks:
// until the weights are read.
// Throws: as load_model_config() and engine::load_value_weights().
std::unique_ptr<engine::ValueModel> load_value_model(const Config& config, const std::string& path,
                                                     bool random, bool head_bias,
                                                     const engine::ComputeContext& context);

}  // namespace ringside::rl
