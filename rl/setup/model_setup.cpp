#include "rl/setup/model_setup.h"

#include <cstdio>
#include <functional>
#include <stdexcept>

#include "engine/io/adapter_directory.h"
#include "engine/io/hf_directory.h"
#include "engine/layers/decoder_layer.h"
#include "engine/models/pipeline.h"
#include "engine/models/quantised_layer.h"
#include "engine/models/random_weights.h"
#include "rl/config/adapter_names.h"
#include "rl/setup/product_choice.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"

namespace ringside::rl {

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat16:
      return at::kHalf;
  }
  throw std::invalid_argument("unknown dtype");
}

DType published_dtype(const Config& config) {
  return config.weights.publish_dtype.value_or(config.model.dtype);
}

engine::ComputeContext compute_context(const Config& config, c10::Device device) {
  engine::ComputeContext context(scalar_type(config.model.dtype), device);
  context.products = products_of(config);
  return context;
}

engine::ComputeContext compute_context(const Config& config, const sp::ProcessGroups& groups) {
  engine::ComputeContext context = compute_context(config, groups.device());
  context.sharding = make_sharding(config.parallel, groups);
  context.experts = make_expert_sharding(config.parallel, groups);
  context.pipeline = make_pipeline(config, groups);
  context.tensor = make_tensor_sharding(config.parallel, groups);
  if (config.parallel.reduce_dtype == DType::kBFloat16) {
    context.reduce = at::kBFloat16;
  }
  context.host_moments = config.optimizer.offload == OptimizerOffload::kMoments;
  context.host_master = config.optimizer.offload == OptimizerOffload::kFull;
  context.host_values = config.model.offload_parameters;
  return context;
}

engine::ActivationOptions activation_options(const Config& config) {
  return {config.model.recompute, config.model.offload_activations, config.model.mlp_tile_tokens,
          config.model.logit_chunk_mb << 20};
}

std::string async_ulysses_problem(const Config& config, const engine::ModelConfig& model) {
  // Adapters are not looked at: with them the exchange is synchronous, which is no error.
  const engine::Support can = engine::supports(model, engine::Feature::kAsyncUlysses);
  return config.sp.async_ulysses != AsyncUlysses::kTrue || can
             ? ""
             : "is true, but " + can.reason() + " (model_type " + model.model_type +
                   "); expected false";
}

std::string tensor_parallel_problem(const Config& config, const engine::ModelConfig& model) {
  const int64_t ranks = config.parallel.tensor_parallel_size;
  const auto packed = policy_storage(config).projections;
  if (ranks == 1) {
    return "";
  }
  if (const engine::Support can = engine::supports(model, engine::Feature::kTensorCut, {0, ranks});
      !can) {
    return "is " + std::to_string(ranks) + ", but " + can.reason() + " (model_type " +
           model.model_type + "); expected 1";
  }
  if (!packed) {
    return "";
  }
  const std::string problem = engine::packed_cut_problem(model, *packed, ranks);
  return problem.empty() ? ""
                         : "is " + std::to_string(ranks) + ", but lora.base is " +
                               std::string(to_string(config.lora.base)) + ": " + problem +
                               "; expected a number of ranks whose parts are whole blocks, or "
                               "lora.base int8 or model";
}

engine::ModelConfig load_model_config(const Config& config, const std::string& path) {
  engine::ModelConfig model =
      engine::load_model_config(path, {.vision = !config.data.image_key.empty()});
  model.fp32_norms = config.model.fp32_norms;
  model.max_document_tokens = config.model.max_document_tokens;
  // A reference may be averaged with the policy, so it has the same parameters.
  model.on_disk.predicts_further =
      config.model.mtp_loss_coef > 0 &&
      (path == config.model.path || path == config.model.reference_path);
  if (const std::string problem =
          model.on_disk.predicts_further ? engine::further_problem(model) : std::string();
      !problem.empty()) {
    throw std::invalid_argument("model.mtp_loss_coef: is above 0, but " + problem + "; expected 0");
  }
  if (const std::string problem = async_ulysses_problem(config, model); !problem.empty()) {
    throw std::invalid_argument("sp.async_ulysses: " + problem);
  }
  if (const std::string problem = expert_count_problem(config.parallel, model.experts.count);
      !problem.empty()) {
    throw std::invalid_argument("parallel.expert_parallel_size: " + problem);
  }
  if (const std::string problem = tensor_parallel_problem(config, model); !problem.empty()) {
    throw std::invalid_argument("parallel.tensor_parallel_size: " + problem);
  }
  return model;
}

engine::AdapterOptions adapter_options(const LoraConfig& config) {
  return {config.rank, config.alpha, engine::parse_adapter_targets(config.target_modules)};
}

std::vector<std::string> adapter_overrides(const std::filesystem::path& dir) {
  const engine::AdapterOptions options = engine::read_adapter_options(dir);
  std::string targets;
  for (const std::string& name : options.targets) {
    targets += (targets.empty() ? "" : ",") + name;
  }
  char alpha[32];
  std::snprintf(alpha, sizeof alpha, "%.17g", options.alpha);
  return {"lora.path=" + dir.string(), "lora.rank=" + std::to_string(options.rank),
          std::string("lora.alpha=") + alpha, "lora.target_modules=" + targets};
}

std::unique_ptr<engine::Decoder> load_starting_model(const Config& config, const std::string& path,
                                                     const engine::ComputeContext& context,
                                                     const engine::WeightStorage& storage) {
  return std::move(load_starting_stages(config, path, context, storage).front());
}

std::vector<std::unique_ptr<engine::Decoder>> load_starting_stages(
    const Config& config, const std::string& path, const engine::ComputeContext& context,
    const engine::WeightStorage& storage) {
  const engine::ModelConfig model = load_model_config(config, path);
  const std::vector<engine::Stage> stages = engine::own_stages(model, context.pipeline.get());
  std::vector<std::unique_ptr<engine::Decoder>> decoders;
  if (config.model.init == ModelInit::kRandom) {
    for (const engine::Stage& stage : stages) {
      engine::RandomWeights draw(model, static_cast<uint64_t>(config.seed), config.model.init_std);
      decoders.push_back(
          std::make_unique<engine::Decoder>(model, stage, context, storage, std::ref(draw)));
    }
    return decoders;
  }
  engine::WeightLoader load(path, model);
  for (const engine::Stage& stage : stages) {
    decoders.push_back(
        std::make_unique<engine::Decoder>(model, stage, context, storage, std::ref(load)));
  }
  load.refuse_the_rest();
  return decoders;
}

engine::VisionTraining vision_training(VisionPart part) {
  switch (part) {
    case VisionPart::kFrozen:
      return engine::VisionTraining::kNothing;
    case VisionPart::kMergers:
      return engine::VisionTraining::kMergers;
    case VisionPart::kTrained:
      return engine::VisionTraining::kAll;
  }
  throw std::invalid_argument("unknown part of a vision tower");
}

engine::WeightStorage policy_storage(const Config& config) {
  engine::WeightStorage storage;
  storage.frozen = config.lora.rank > 0;
  storage.vision = vision_training(config.model.vision);
  if (storage.frozen && config.lora.base != LoraBase::kModel) {
    storage.projections = config.lora.base == LoraBase::kNf4 ? engine::QuantisedFormat::kNf4
                                                             : engine::QuantisedFormat::kInt8;
  }
  return storage;
}

engine::WeightStorage reference_storage(const Config& config) {
  return {.frozen = config.algorithm.reference_update_every == 0,
          .projections = {},
          .vision = vision_training(config.model.vision)};
}

engine::WeightStorage worker_storage(const Config& config) {
  const at::ScalarType compute = scalar_type(config.model.dtype);
  engine::WeightStorage storage;
  storage.frozen = at::promote_types(scalar_type(published_dtype(config)), compute) == compute;
  storage.vision = vision_training(config.model.vision);
  return storage;
}

std::unique_ptr<engine::Decoder> load_policy(const Config& config,
                                             const engine::ComputeContext& context) {
  return std::move(load_policy_stages(config, context).front());
}

namespace {

// Adds those that `name` starts with.
void add_adapters(const Config& config, const std::string& name,
                  const std::vector<std::unique_ptr<engine::Decoder>>& stages) {
  const std::string path = adapter_start(config.lora, name);
  for (const auto& stage : stages) {
    engine::Adapters& adapters = stage->add_adapters(adapter_options(config.lora));
    if (path.empty()) {
      adapters.init_random(static_cast<uint64_t>(config.seed));
    } else {
      engine::load_adapters(path, adapters);
    }
  }
}

}  // namespace

std::vector<std::unique_ptr<engine::Decoder>> load_policy_stages(
    const Config& config, const engine::ComputeContext& context) {
  auto stages = load_starting_stages(config, config.model.path, context, policy_storage(config));
  if (config.lora.rank > 0) {
    add_adapters(config, "", stages);
  }
  return stages;
}

std::vector<LoadedPolicy> load_policies(const Config& config,
                                        const engine::ComputeContext& context) {
  const std::vector<std::string> names = adapter_names(config.lora);
  std::vector<LoadedPolicy> policies;
  if (names.empty()) {
    policies.push_back({"", load_policy_stages(config, context)});
    return policies;
  }
  auto first = load_starting_stages(config, config.model.path, context, policy_storage(config));
  for (const std::string& name : names) {
    LoadedPolicy& policy = policies.emplace_back();
    policy.name = name;
    if (policies.size() == 1) {
      policy.stages = std::move(first);
    } else {
      for (const auto& stage : policies.front().stages) {
        policy.stages.push_back(stage->without_adapters());
      }
    }
    add_adapters(config, name, policy.stages);
  }
  return policies;
}

std::unique_ptr<engine::Decoder> make_worker_model(const Config& config, c10::Device device) {
  const engine::ComputeContext context = compute_context(config, device);
  if (config.lora.publish == LoraPublish::kAdapter) {
    return load_policy(config, context);
  }
  if (!config.data.image_key.empty()) {
    return load_starting_model(config, config.model.path, context, worker_storage(config));
  }
  return std::make_unique<engine::Decoder>(load_model_config(config, config.model.path), context,
                                           worker_storage(config), [](engine::ParamUnit&) {});
}

std::vector<WorkerModel> make_worker_models(const Config& config, c10::Device device) {
  std::vector<WorkerModel> models;
  if (config.lora.adapters.empty()) {
    models.push_back({"", make_worker_model(config, device)});
    return models;
  }
  for (LoadedPolicy& policy : load_policies(config, compute_context(config, device))) {
    models.push_back({policy.name, std::move(policy.stages.front())});
  }
  return models;
}

}  // namespace ringside::rl
