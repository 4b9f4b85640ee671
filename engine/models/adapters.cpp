#include "engine/models/adapters.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

namespace ringside::engine {
namespace {

// Before a module's path in PEFT's files.
constexpr const char* kPeftPrefix = "base_model.model.";

bool is_target(const AdapterOptions& options, std::string_view module) {
  const std::string_view name = module.substr(module.find('.') + 1);
  return std::find(options.targets.begin(), options.targets.end(), name) != options.targets.end();
}

const AdapterOptions& checked(const AdapterOptions& options) {
  TORCH_CHECK(options.rank > 0 && options.alpha > 0, "adapters: rank ", options.rank, " and alpha ",
              options.alpha, ", expected both above 0");
  TORCH_CHECK(!options.targets.empty(), "adapters: no projection is named");
  const std::vector<std::string>& known = known_adapter_targets();
  for (std::size_t i = 0; i < options.targets.size(); ++i) {
    const std::string& name = options.targets[i];
    TORCH_CHECK(std::find(known.begin(), known.end(), name) != known.end(), "adapters: ", name,
                " is not a projection, expected one of ", known);
    TORCH_CHECK(std::find(options.targets.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                          options.targets.end(), name) == options.targets.end(),
                "adapters: ", name, " is named twice");
  }
  return options;
}

}  // namespace

std::vector<Adapters::Fused> Adapters::attention_projections(const ModelConfig& config) {
  const int64_t e = config.hidden_size, h = config.num_attention_heads;
  const int64_t q = h * config.head_dim, kv = config.num_key_value_heads * config.head_dim;
  if (!config.has_latent_attention()) {
    return {{&LayerWeights::qkv_weight,
             {{"self_attn.q_proj", e, q, 0},
              {"self_attn.k_proj", e, kv, q},
              {"self_attn.v_proj", e, kv, q + kv}}},
            {&LayerWeights::o_weight, {{"self_attn.o_proj", q, e, 0}}}};
  }
  const LatentAttentionConfig& latent = config.latent;
  std::vector<Fused> all;
  if (latent.q_rank > 0) {
    all = {{&LayerWeights::q_a_weight, {{"self_attn.q_a_proj", e, latent.q_rank, 0}}},
           {&LayerWeights::q_b_weight, {{"self_attn.q_b_proj", latent.q_rank, q, 0}}}};
  } else {
    all = {{&LayerWeights::q_b_weight, {{"self_attn.q_proj", e, q, 0}}}};
  }
  all.push_back({&LayerWeights::kv_a_weight,
                 {{"self_attn.kv_a_proj_with_mqa", e, latent.kv_rank + latent.rope_dim, 0}}});
  all.push_back(
      {&LayerWeights::kv_b_weight,
       {{"self_attn.kv_b_proj", latent.kv_rank, h * (latent.nope_dim + latent.value_dim), 0}}});
  all.push_back({&LayerWeights::o_weight, {{"self_attn.o_proj", h * latent.value_dim, e, 0}}});
  return all;
}

std::vector<Adapters::Fused> Adapters::fused_projections(const ModelConfig& config,
                                                         const AdapterOptions& options) {
  const int64_t e = config.hidden_size, f = config.intermediate_size;
  TORCH_CHECK(!config.has_delta_net(),
              "adapters: models with gated delta nets have none; train all parameters");
  std::vector<Fused> all = attention_projections(config);
  if (config.experts.count == 0) {
    all.push_back(
        {&LayerWeights::gate_up_weight, {{"mlp.gate_proj", e, f, 0}, {"mlp.up_proj", e, f, f}}});
    all.push_back({&LayerWeights::down_weight, {{"mlp.down_proj", f, e, 0}}});
  }
  std::vector<Fused> targeted;
  std::string names;
  std::size_t found = 0;
  for (const Fused& fused : all) {
    Fused kept{fused.weight, {}};
    for (const Target& target : fused.targets) {
      names += (names.empty() ? "" : ", ") + target.module.substr(target.module.find('.') + 1);
      if (is_target(options, target.module)) {
        kept.targets.push_back(target);
      }
    }
    found += kept.targets.size();
    if (!kept.targets.empty()) {
      targeted.push_back(std::move(kept));
    }
  }
  TORCH_CHECK(found == options.targets.size(), "adapters: of ", options.targets,
              " the model has only ", found, config.experts.count > 0 ? "; experts have none" : "",
              "; name projections out of ", names);
  return targeted;
}

void check_adapter_options(const ModelConfig& config, const AdapterOptions& options) {
  Adapters::fused_projections(config, checked(options));
}

std::vector<ParamSpec> Adapters::specs(const ModelConfig& config, const AdapterOptions& options,
                                       const std::vector<Fused>& fused) {
  std::vector<ParamSpec> specs;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = kPeftPrefix + layer_prefix(config, layer);
    for (const Fused& group : fused) {
      for (const Target& target : group.targets) {
        specs.push_back({prefix + target.module + ".lora_A.weight", {options.rank, target.inputs}});
      }
      for (const Target& target : group.targets) {
        specs.push_back(
            {prefix + target.module + ".lora_B.weight", {target.outputs, options.rank}});
      }
    }
  }
  return specs;
}

std::vector<ParamSpec> Adapters::factors(const ModelConfig& config, const AdapterOptions& options) {
  return specs(config, options, fused_projections(config, checked(options)));
}

Adapters::Adapters(const ModelConfig& config, AdapterOptions options, const ComputeContext& context)
    : config_(config),
      options_(std::move(options)),
      fused_(fused_projections(config, checked(options_))),
      unit_("adapters", specs(config, options_, fused_), context) {}

void Adapters::init_random(uint64_t seed) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (std::size_t i = 0; i < unit_.specs().size(); ++i) {
    const ParamSpec& spec = unit_.specs()[i];
    at::Tensor values = unit_.view(i);
    if (spec.name.ends_with("lora_A.weight")) {
      const double bound = 1.0 / std::sqrt(static_cast<double>(spec.shape[1]));
      // Drawn in fp64, so that adapters of either master dtype start alike.
      values.copy_(at::rand(spec.shape, generator, at::kDouble).mul_(2.0 * bound).sub_(bound));
    } else {
      values.zero_();
    }
  }
}

std::vector<at::Tensor> Adapters::split_layers() const {
  return unit_.flat().split(unit_.flat().numel() / config_.num_hidden_layers);
}

void Adapters::attach(LayerWeights& weights, const at::Tensor& leaf,
                      at::ScalarType compute_dtype) const {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> sizes;
  const auto add = [&](int64_t rows, int64_t columns) {
    shapes.push_back({rows, columns});
    sizes.push_back(rows * columns);
  };
  for (const Fused& fused : fused_) {
    add(static_cast<int64_t>(fused.targets.size()) * options_.rank, fused.targets[0].inputs);
    for (const Target& target : fused.targets) {
      add(target.outputs, options_.rank);
    }
  }
  const bool casts = leaf.scalar_type() != compute_dtype;
  const std::vector<at::Tensor> leaves = leaf.split_with_sizes(sizes);
  const std::vector<at::Tensor> values =
      casts ? leaf.detach().to(compute_dtype).split_with_sizes(sizes) : leaves;
  std::size_t next = 0;
  const auto take = [&](at::Tensor& value, at::Tensor& factor_leaf) {
    value = values[next].view(shapes[next]);
    factor_leaf = casts ? leaves[next].view(shapes[next]) : value;
    ++next;
  };
  for (const Fused& fused : fused_) {
    auto low_rank = std::make_shared<LowRank>();
    low_rank->scale = scale();
    take(low_rank->a, low_rank->a_leaf);
    for (const Target& target : fused.targets) {
      LowRank::Part& part = low_rank->parts.emplace_back();
      part.row = target.row;
      take(part.b, part.b_leaf);
    }
    (weights.*fused.weight).low_rank = std::move(low_rank);
  }
}

void Adapters::merge_into(int64_t layer, const at::Tensor& flat) const {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> weights;
  int64_t offset = 0;
  for (const ParamSpec& spec : decoder_layer_specs(config_, layer)) {
    weights[spec.name] = flat.narrow(0, offset, spec.numel()).view(spec.shape);
    offset += spec.numel();
  }
  std::size_t i = unit_.specs().size() / config_.num_hidden_layers * layer;
  for (const Fused& fused : fused_) {
    const std::size_t parts = fused.targets.size();
    for (std::size_t p = 0; p < parts; ++p) {
      const at::Tensor a = unit_.view(i + p), b = unit_.view(i + parts + p);
      weights.at(layer_prefix(config_, layer) + fused.targets[p].module + ".weight")
          .addmm_(b, a, 1.0, scale());
    }
    i += 2 * parts;
  }
}

}  // namespace ringside::engine
