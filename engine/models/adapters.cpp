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

#include "engine/layers/decoder_layer.h"
#include "engine/params/sharding.h"

namespace ringside::engine {
namespace {

// Before a module's path in PEFT's files.
constexpr const char* kPeftPrefix = "base_model.model.";

// This rank's experts of a layer.
sp::Range own_experts(const ComputeContext& context, int64_t experts) {
  return context.experts == nullptr ? sp::Range{0, experts}
                                    : sp::even_part(experts, context.experts->ranks->size(),
                                                    context.experts->ranks->rank());
}

// A module's name in its mixer: "q_proj" of "self_attn.q_proj".
std::string name_of(std::string_view module) {
  return std::string(module.substr(module.find('.') + 1));
}

bool is_target(const AdapterOptions& options, std::string_view module) {
  return std::ranges::find(options.targets, name_of(module)) != options.targets.end();
}

bool is_known_target(std::string_view module) {
  const std::vector<std::string>& known = known_adapter_targets();
  return std::ranges::find(known, name_of(module)) != known.end();
}

bool cuts_rows(const TensorCut& cut) { return cut.is_cut() && cut.along == CutAlong::kRows; }

// This tensor rank's rows or columns of a factor of a cut projection; the factor itself where the
// cut goes along its other dim.
at::Tensor own_part(const at::Tensor& factor, const TensorCut& cut, CutAlong along, int64_t rank) {
  if (!cut.is_cut() || cut.along != along) {
    return factor;
  }
  const int64_t dim = along == CutAlong::kRows ? 0 : 1;
  std::vector<at::Tensor> ranges;
  for (const sp::Range& range : cut.of_part[rank]) {
    ranges.push_back(factor.narrow(dim, range.begin, range.size()));
  }
  if (ranges.empty()) {
    return factor.narrow(dim, 0, 0);
  }
  return ranges.size() == 1 ? ranges.front() : at::cat(ranges, dim);
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

std::vector<Adapters::Fused> Adapters::targets_of_experts(const DecoderLayer& layer,
                                                          const AdapterOptions& options) {
  std::vector<Fused> targeted;
  for (const ExpertsLinear& linear : layer.table().experts_linears()) {
    if (std::ranges::find(options.targets, linear.module) != options.targets.end()) {
      targeted.push_back({linear.weight,
                          {{"mlp.experts", linear.inputs, linear.outputs, 0, {}}},
                          layer.channel_mixer().routing().experts,
                          linear.input_first});
    }
  }
  // PEFT wraps the module that holds the parameters once for each, the first one innermost. It
  // calls the module mlp, whatever the model's files do.
  if (targeted.size() > 1) {
    targeted.front().targets.front().module = "mlp.experts.base_layer";
  }
  return targeted;
}

std::vector<std::vector<Adapters::Fused>> Adapters::targets_of_layers(const ModelConfig& config,
                                                                      const AdapterOptions& options,
                                                                      const TensorPlace& tensor) {
  const std::vector<DecoderLayer> layers = make_layers(config, tensor);
  std::string note;
  for (const DecoderLayer& layer : layers) {
    const Support tokens = layer.token_mixer().supports(Feature::kAdapters);
    TORCH_CHECK(tokens, "adapters: ", tokens.reason());
    const Support channels = layer.channel_mixer().supports(Feature::kAdapters);
    note = channels ? note : "; " + channels.reason();
  }
  // By the name of an MLP's projection PEFT means those of experts, in models that have any.
  const auto can = [&](const std::string& module) {
    return is_known_target(module) && (note.empty() || !module.starts_with("mlp."));
  };
  std::vector<std::string> names;  // that can have adapters, in some layer
  std::vector<std::vector<Fused>> targeted;
  for (const DecoderLayer& layer : layers) {
    std::vector<Fused>& of_layer = targeted.emplace_back();
    for (const LinearSpec& linear : layer.table().linears()) {
      Fused kept{linear.weight, {}};
      int64_t row = 0;
      for (const auto& [module, outputs, cut] : linear.projections) {
        if (can(module) && std::ranges::find(names, name_of(module)) == names.end()) {
          names.push_back(name_of(module));
        }
        if (can(module) && is_target(options, module)) {
          kept.targets.push_back({module, linear.inputs, outputs, row, cut});
        }
        row += cuts_rows(cut) ? sp::total_size(cut.of_part[tensor.rank]) : outputs;
      }
      if (!kept.targets.empty()) {
        of_layer.push_back(std::move(kept));
      }
    }
    for (const ExpertsLinear& linear : layer.table().experts_linears()) {
      if (std::ranges::find(names, linear.module) == names.end()) {
        names.push_back(linear.module);
      }
    }
    std::ranges::move(targets_of_experts(layer, options), std::back_inserter(of_layer));
  }
  const auto found = std::ranges::count_if(names, [&](const std::string& name) {
    return std::ranges::find(options.targets, name) != options.targets.end();
  });
  TORCH_CHECK(found == std::ssize(options.targets), "adapters: of ", options.targets,
              " the model has only ", found, note, "; name projections out of ", names);
  return targeted;
}

void check_adapter_options(const ModelConfig& config, const AdapterOptions& options) {
  Adapters::targets_of_layers(config, checked(options));
}

std::vector<ParamSpec> Adapters::specs(const ModelConfig& config, const AdapterOptions& options,
                                       const std::vector<std::vector<Fused>>& layers,
                                       const sp::Range& range) {
  std::vector<ParamSpec> specs;
  for (int64_t layer = range.begin; layer < range.end; ++layer) {
    const std::string prefix =
        kPeftPrefix + config.on_disk.modules + "layers." + std::to_string(layer) + ".";
    for (const Fused& group : layers[layer]) {
      for (const Target& target : group.targets) {
        specs.push_back({prefix + target.module + ".lora_A.weight",
                         {group.columns(options.rank), target.inputs}});
      }
      for (const Target& target : group.targets) {
        specs.push_back({prefix + target.module + ".lora_B.weight",
                         {target.outputs, group.columns(options.rank)}});
      }
    }
  }
  return specs;
}

std::vector<ParamSpec> Adapters::factors(const ModelConfig& config, const AdapterOptions& options) {
  return factors(config, whole_stage(config), options);
}

std::vector<ParamSpec> Adapters::factors(const ModelConfig& config, const Stage& stage,
                                         const AdapterOptions& options) {
  return specs(config, options, targets_of_layers(config, checked(options)), stage.layers);
}

Adapters::Adapters(const ModelConfig& config, const Stage& stage, AdapterOptions options,
                   const ComputeContext& context)
    : config_(config),
      stage_(stage),
      options_(std::move(options)),
      tensor_(tensor_place(context)),
      own_experts_(own_experts(context, config.experts.count)),
      layers_(targets_of_layers(config, checked(options_), tensor_)),
      unit_("adapters", specs(config, options_, layers_, stage.layers), context) {}

void Adapters::init_random(uint64_t seed) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  unit_.flat().zero_();
  std::size_t own = 0;  // the next of this stage's factors
  for (const ParamSpec& spec : specs(config_, options_, layers_, whole_stage(config_).layers)) {
    const bool is_own = own < unit_.specs().size() && spec.name == unit_.specs()[own].name;
    if (spec.name.ends_with("lora_A.weight")) {
      const double bound = 1.0 / std::sqrt(static_cast<double>(spec.shape[1]));
      // Drawn in fp64, so that adapters of either master dtype start alike; all of them, so that a
      // stage's are those of the whole model.
      const at::Tensor drawn = at::rand(spec.shape, generator, at::kDouble);
      if (is_own) {
        unit_.view(own).copy_(drawn.mul(2.0 * bound).sub_(bound));
      }
    }
    own += is_own ? 1 : 0;
  }
}

std::vector<at::Tensor> Adapters::split_layers() const {
  if (stage_.layers.empty()) {
    return {};
  }
  std::vector<int64_t> sizes;
  for (int64_t layer = stage_.layers.begin; layer < stage_.layers.end; ++layer) {
    int64_t& size = sizes.emplace_back(0);
    for (const Fused& fused : layers_[layer]) {
      for (const Target& target : fused.targets) {
        size += fused.columns(options_.rank) * (target.inputs + target.outputs);
      }
    }
  }
  return unit_.flat().split_with_sizes(sizes);
}

void Adapters::attach(int64_t layer, std::vector<Weight>& weights, const at::Tensor& leaf,
                      at::ScalarType compute_dtype) const {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> sizes;
  const auto add = [&](int64_t rows, int64_t columns) {
    shapes.push_back({rows, columns});
    sizes.push_back(rows * columns);
  };
  for (const Fused& fused : layers_[layer]) {
    const int64_t columns = fused.columns(options_.rank);
    add(static_cast<int64_t>(fused.targets.size()) * columns, fused.targets[0].inputs);
    for (const Target& target : fused.targets) {
      add(target.outputs, columns);
    }
  }
  if (sizes.empty()) {
    return;
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
  const auto keep_own = [&](at::Tensor& value, at::Tensor& factor_leaf, const TensorCut& cut,
                            CutAlong along) {
    value = own_part(value, cut, along, tensor_.rank);
    factor_leaf = casts ? own_part(factor_leaf, cut, along, tensor_.rank) : value;
  };
  for (const Fused& fused : layers_[layer]) {
    if (fused.experts > 0) {
      weights[fused.weight].low_rank =
          low_rank_of_experts(fused, leaves[next].view(shapes[next]),
                              leaves[next + 1].view(shapes[next + 1]), compute_dtype);
      next += 2;
      continue;
    }
    auto low_rank = std::make_shared<LowRank>();
    low_rank->scale = scale();
    take(low_rank->a, low_rank->a_leaf);
    keep_own(low_rank->a, low_rank->a_leaf, fused.targets.front().cut, CutAlong::kColumns);
    for (const Target& target : fused.targets) {
      LowRank::Part& part = low_rank->parts.emplace_back();
      part.row = target.row;
      take(part.b, part.b_leaf);
      keep_own(part.b, part.b_leaf, target.cut, CutAlong::kRows);
    }
    weights[fused.weight].low_rank = std::move(low_rank);
  }
}

std::shared_ptr<const LowRank> Adapters::low_rank_of_experts(const Fused& fused,
                                                             const at::Tensor& a,
                                                             const at::Tensor& b,
                                                             at::ScalarType compute_dtype) const {
  const auto own = [&](const at::Tensor& of_all) {
    return of_all.narrow(0, own_experts_.begin, own_experts_.size());
  };
  auto low_rank = std::make_shared<LowRank>();
  low_rank->scale = scale();
  low_rank->a_leaf = own(a.view({fused.experts, options_.rank, a.size(1)}));
  LowRank::Part& part = low_rank->parts.emplace_back();
  part.b_leaf = own(b.view({b.size(0), options_.rank, fused.experts}).permute({2, 0, 1}));
  low_rank->a = low_rank->a_leaf.detach().to(compute_dtype);
  part.b = part.b_leaf.detach().to(compute_dtype).contiguous();
  return low_rank;
}

std::size_t Adapters::first_factor(int64_t layer) const {
  std::size_t factors = 0;
  for (int64_t before = stage_.layers.begin; before < layer; ++before) {
    for (const Fused& fused : layers_[before]) {
      factors += 2 * fused.targets.size();
    }
  }
  return factors;
}

void Adapters::merge_into(int64_t layer, const at::Tensor& flat) const {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> weights;
  int64_t offset = 0;
  for (const ParamSpec& spec : DecoderLayer(config_, layer).specs()) {
    weights[spec.name] = flat.narrow(0, offset, spec.numel()).view(spec.shape);
    offset += spec.numel();
  }
  std::size_t i = first_factor(layer);
  for (const Fused& fused : layers_[layer]) {
    const std::size_t parts = fused.targets.size();
    for (std::size_t p = 0; p < parts && fused.experts == 0; ++p) {
      const at::Tensor a = unit_.view(i + p), b = unit_.view(i + parts + p);
      weights.at(layer_prefix(config_, layer) + fused.targets[p].module + ".weight")
          .addmm_(b, a, 1.0, scale());
    }
    i += 2 * parts;
  }
}

bool Adapters::adapts_experts(int64_t layer) const {
  return std::ranges::any_of(layers_[layer], [](const Fused& fused) { return fused.experts > 0; });
}

void Adapters::merge_into_experts(int64_t layer, const std::vector<ParamSpec>& specs,
                                  const at::Tensor& flat) const {
  const at::NoGradGuard no_grad;
  // Of this tensor rank: slots depend on it, experts' parameters do not.
  const DecoderLayer of_experts(config_, layer, tensor_);
  const std::vector<std::vector<ParamSpec>> units = of_experts.experts_specs();
  const auto unit = std::ranges::find(units, specs);
  TORCH_CHECK(unit != units.end(), "adapters: ", specs.front().name, " is no unit of experts");
  const auto place = static_cast<std::size_t>(unit - units.begin());
  const UnitShapes shapes =
      of_experts.experts_shapes(config_.experts.count, flat.scalar_type())[place];
  const std::vector<at::Tensor> matrices = matrices_of(specs.front().name, flat, shapes);
  std::size_t i = first_factor(layer);
  for (const Fused& fused : layers_[layer]) {
    const auto& slots = of_experts.experts_slots()[place];
    const auto slot = std::ranges::find(slots, fused.weight);
    if (fused.experts > 0 && slot != slots.end()) {
      const at::Tensor a = unit_.view(i).view({fused.experts, options_.rank, -1});
      const at::Tensor b =
          unit_.view(i + 1).view({-1, options_.rank, fused.experts}).permute({2, 0, 1});
      const at::Tensor& weight = matrices[slot - slots.begin()];
      (fused.input_first ? weight.transpose(1, 2) : weight).baddbmm_(b, a, 1.0, scale());
    }
    i += 2 * fused.targets.size();
  }
}

}  // namespace ringside::engine
