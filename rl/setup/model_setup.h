// The starting model as the configuration describes it. Trainer and worker both build theirs here.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "engine/models/decoder.h"
#include "rl/config/config.h"

namespace ringside::rl {

at::ScalarType scalar_type(DType dtype);

// The shape of the model at config.model.path, with what the configuration adds to it.
engine::ModelConfig load_model_config(const Config& config, const std::string& path);

// The starting weights that config.model describes, read from disk or drawn from config.seed.
std::unique_ptr<engine::Decoder> load_starting_model(const Config& config, const std::string& path);

}  // namespace ringside::rl
