#include "rl/setup/model_setup.h"

#include <cstdio>
#include <functional>
#include <stdexcept>

#include "engine/io/adapter_directory.h"
#include "engine/io/hf_directory.h"
#include "engine/layers/decoder_layer.h"
#include "engine/models/random_weights.h"
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
  return {scalar_type(config.model.dtype), device};
}

engine::ComputeContext compute_context(const Config& config, const sp::ProcessGroups& groups) {
  engine::ComputeContext context = compute_context(config, groups.device());
  context.sharding = make_sharding(config.parallel, groups);
  context.experts = make_expert_sharding(config.parallel, groups);
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

engine::ModelConfig load_model_config(const Config& config, const std::string& path) {
  engine::ModelConfig model = engine::load_model_config(path);
  model.fp32_norms = config.model.fp32_norms;
  model.max_document_tokens = config.model.max_document_tokens;
  if (const std::string problem = async_ulysses_problem(config, model); !problem.empty()) {
    throw std::invalid_argument("sp.async_ulysses: " + problem);
  }
  if (const std::string problem = expert_count_problem(config.parallel, model.experts.count);
      !problem.empty()) {
    throw std::invalid_argument("parallel.expert_parallel_size: " + problem);
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
  const engine::ModelConfig model = load_model_config(config, path);
  if (config.model.init == ModelInit::kRandom) {
    engine::RandomWeights draw(model, static_cast<uint64_t>(config.seed), config.model.init_std);
    return std::make_unique<engine::Decoder>(model, context, storage, std::ref(draw));
  }
  engine::WeightLoader load(path, model);
  auto decoder = std::make_unique<engine::Decoder>(model, context, storage, std::ref(load));
  load.refuse_the_rest();
  return decoder;
}

engine::WeightStorage policy_storage(const LoraConfig& config) {
  engine::WeightStorage storage;
  storage.frozen = config.rank > 0;
  if (storage.frozen && config.base != LoraBase::kModel) {
    storage.projections = config.base == LoraBase::kNf4 ? engine::QuantisedFormat::kNf4
                                                        : engine::QuantisedFormat::kInt8;
  }
  return storage;
}

engine::WeightStorage reference_storage(const Config& config) {
  return {.frozen = config.algorithm.reference_update_every == 0, .projections = {}};
}

engine::WeightStorage worker_storage(const Config& config) {
  const at::ScalarType compute = scalar_type(config.model.dtype);
  engine::WeightStorage storage;
  storage.frozen = at::promote_types(scalar_type(published_dtype(config)), compute) == compute;
  return storage;
}

std::unique_ptr<engine::Decoder> load_policy(const Config& config,
                                             const engine::ComputeContext& context) {
  auto decoder =
      load_starting_model(config, config.model.path, context, policy_storage(config.lora));
  if (config.lora.rank == 0) {
    return decoder;
  }
  engine::Adapters& adapters = decoder->add_adapters(adapter_options(config.lora));
  if (config.lora.path.empty()) {
    adapters.init_random(static_cast<uint64_t>(config.seed));
  } else {
    engine::load_adapters(config.lora.path, adapters);
  }
  return decoder;
}

std::unique_ptr<engine::Decoder> make_worker_model(const Config& config, c10::Device device) {
  const engine::ComputeContext context = compute_context(config, device);
  if (config.lora.publish == LoraPublish::kAdapter) {
    return load_policy(config, context);
  }
  return std::make_unique<engine::Decoder>(load_model_config(config, config.model.path), context,
                                           worker_storage(config), [](engine::ParamUnit&) {});
}

}  // namespace ringside::rl
