// Starting model as the configuration describes it, for trainer and workers alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "engine/device/compute_context.h"
#include "engine/models/activation_options.h"
#include "engine/models/decoder.h"
#include "rl/config/config.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

at::ScalarType scalar_type(DType dtype);

// The device and config.model.dtype as a context for whole models.
engine::ComputeContext compute_context(const Config& config, c10::Device device);
// The same for models of a trainer's rank, which may be sharded.
engine::ComputeContext compute_context(const Config& config, const sp::ProcessGroups& groups);

// The choices of config.model about activations.
engine::ActivationOptions activation_options(const Config& config);

// The model configuration at `path`, extended by the settings of config.model.
engine::ModelConfig load_model_config(const Config& config, const std::string& path);

// The starting weights that config.model describes: read from `path` or drawn from config.seed.
std::unique_ptr<engine::Decoder> load_starting_model(const Config& config, const std::string& path,
                                                     const engine::ComputeContext& context);

}  // namespace ringside::rl
