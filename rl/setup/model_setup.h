// Starting model as the configuration describes it, for trainer and workers alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/layers/activation_options.h"
#include "engine/models/decoder.h"
#include "rl/config/config.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

// The dtype that model.dtype and the like name.
at::ScalarType scalar_type(DType dtype);

// The dtype that weights.publish_dtype resolves to.
DType published_dtype(const Config& config);

// The device and config.model.dtype as a context for whole models.
engine::ComputeContext compute_context(const Config& config, c10::Device device);
// The same for models of a trainer's rank, which may be sharded. Not collective.
// Throws: as make_sharding().
engine::ComputeContext compute_context(const Config& config, const sp::ProcessGroups& groups);

// The choices of config.model about activations.
engine::ActivationOptions activation_options(const Config& config);

// Why sp.async_ulysses does not work with the model; "" where it does.
std::string async_ulysses_problem(const Config& config, const engine::ModelConfig& model);

// What is wrong with parallel.tensor_parallel_size for this model, or with the blocks of its
// quantised matrices; "" when nothing is.
std::string tensor_parallel_problem(const Config& config, const engine::ModelConfig& model);

// The model configuration at `path`, extended by the settings of config.model; with data.image_key
// it has its vision tower.
// Throws: as engine::load_model_config(); std::invalid_argument naming the key when
// sp.async_ulysses or parallel.expert_parallel_size does not suit the model.
engine::ModelConfig load_model_config(const Config& config, const std::string& path);

// The adapters that config.lora describes; lora.rank is above 0.
// Throws: as engine::parse_adapter_targets().
engine::AdapterOptions adapter_options(const LoraConfig& config);

// The keys lora.* as "key=value" that use the adapters of a PEFT directory as they are.
// Throws: as engine::read_adapter_options.
std::vector<std::string> adapter_overrides(const std::filesystem::path& dir);

// The starting weights that config.model describes: read from `path` or drawn from config.seed, one
// unit after another. Not collective: a rank of a sharded model keeps its part.
// Blocks: until the weights are read.
// Throws: as load_model_config(); std::runtime_error when the weights cannot be loaded.
std::unique_ptr<engine::Decoder> load_starting_model(const Config& config, const std::string& path,
                                                     const engine::ComputeContext& context,
                                                     const engine::WeightStorage& storage = {});

// The same for this rank's stages of the model, by context.pipeline: one without a pipeline.
// Throws: as above; std::invalid_argument when the model has too few layers for the stages.
std::vector<std::unique_ptr<engine::Decoder>> load_starting_stages(
    const Config& config, const std::string& path, const engine::ComputeContext& context,
    const engine::WeightStorage& storage = {});

// What model.vision means for the units of a tower.
engine::VisionTraining vision_training(VisionPart part);

// What the ranks keep of the policy's weights: with lora.rank above 0 constants, packed as
// lora.base says; otherwise what model.vision does not train is constant.
engine::WeightStorage policy_storage(const Config& config);

// What the ranks keep of a reference that is loaded: constants in the compute dtype. One that
// follows the policy (algorithm.reference_update_every) is averaged in the master dtype, which it
// keeps.
engine::WeightStorage reference_storage(const Config& config);

// What a worker that gets whole models keeps of them: constants in the compute dtype, unless
// published ones are wider. It reads back what it installed.
engine::WeightStorage worker_storage(const Config& config);

// The policy as training starts: the starting weights of model.path; with lora.rank above 0 frozen,
// quantised as lora.base says, with adapters read from lora.path or drawn from config.seed. Not
// collective.
// Throws: as load_starting_model() and adapter_options(); std::runtime_error when the adapters
// cannot be loaded.
std::unique_ptr<engine::Decoder> load_policy(const Config& config,
                                             const engine::ComputeContext& context);

// The same for this rank's stages of the policy.
std::vector<std::unique_ptr<engine::Decoder>> load_policy_stages(
    const Config& config, const engine::ComputeContext& context);

// This rank's stages of one policy of a run. name: of its adapter among several; "" = the only one.
struct LoadedPolicy {
  std::string name;
  std::vector<std::unique_ptr<engine::Decoder>> stages;
};
// All policies of the run: load_policy_stages(), or with lora.adapters one for each name, which
// share the frozen base. Each has the adapters that a run of its own would start with.
// Throws: as load_policy() and adapter_names().
std::vector<LoadedPolicy> load_policies(const Config& config,
                                        const engine::ComputeContext& context);

// A worker's model before its first weights: load_policy() if versions are adapters alone,
// otherwise a model in worker_storage() whose parameters arrive with the first version. One that
// takes images has its starting weights, since the constant part of its tower does not arrive.
// Throws: as load_policy().
std::unique_ptr<engine::Decoder> make_worker_model(const Config& config, c10::Device device);

// A model of a worker's that samples for one adapter. name: as of LoadedPolicy.
struct WorkerModel {
  std::string name;
  std::unique_ptr<engine::Decoder> decoder;
};
// make_worker_model(), or with lora.adapters one for each name, which share the frozen base.
// Throws: as make_worker_model() and load_policies().
std::vector<WorkerModel> make_worker_models(const Config& config, c10::Device device);

}  // namespace ringside::rl
