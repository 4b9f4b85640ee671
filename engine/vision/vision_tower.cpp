#include "engine/vision/vision_tower.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/device/side_stream.h"
#include "engine/device/upload.h"
#include "engine/nn/recompute.h"
#include "engine/vision/patch_attention.h"
#include "engine/vision/patch_tables.h"
#include "engine/vision/position_taps.h"

namespace ringside::engine {
namespace {

constexpr double kNormEpsilon = 1e-6, kRopeTheta = 10000.0;

// Side of the table of learned positions.
int64_t table_side(const VisionConfig& config) {
  return std::llround(std::sqrt(static_cast<double>(config.positions)));
}

const VisionConfig& checked(const ModelConfig& config) {
  TORCH_CHECK(config.vision, "vision tower: the model has none");
  const VisionConfig& c = *config.vision;
  TORCH_CHECK(c.depth > 0 && c.width > 0 && c.mlp > 0 && c.heads > 0 && c.patch > 0 &&
                  c.temporal_patch > 0 && c.merge > 0,
              "vision tower: sizes must be positive");
  TORCH_CHECK(c.width % c.heads == 0 && c.head_dim() % 4 == 0, "vision tower: ", c.heads,
              " heads of width ", c.width, ", expected heads of a multiple of 4 components");
  TORCH_CHECK(c.window == 0 || c.window_tokens() > 0, "vision tower: windows of ", c.window,
              " pixels are smaller than a token");
  const bool has_table = c.family == VisionFamily::kQwen3Vl;
  TORCH_CHECK(has_table == (c.positions > 0) && table_side(c) * table_side(c) == c.positions,
              "vision tower: ", c.positions, " learned positions, expected ",
              has_table ? "a square number" : "none");
  TORCH_CHECK(
      std::ranges::is_sorted(c.deepstack, std::less_equal<>()) &&
          (c.deepstack.empty() || (c.deepstack.front() >= 0 && c.deepstack.back() < c.depth)),
      "vision tower: deepstack behind blocks that do not ascend below ", c.depth);
  return c;
}

NormOptions norm_of(const ModelConfig& config) { return {kNormEpsilon, config.fp32_norms}; }

std::vector<VisionBlock> blocks_of(const ModelConfig& config) {
  std::vector<VisionBlock> blocks;
  for (int64_t i = 0; i < config.vision->depth; ++i) {
    blocks.emplace_back(*config.vision, i, norm_of(config));
  }
  return blocks;
}

std::vector<PatchMerger> mergers_of(const ModelConfig& config) {
  std::vector<PatchMerger> mergers;
  mergers.emplace_back(*config.vision, "merger", MergerNorm::kOfPatches, config.hidden_size,
                       norm_of(config));
  for (std::size_t i = 0; i < config.vision->deepstack.size(); ++i) {
    mergers.emplace_back(*config.vision, "deepstack_merger_list." + std::to_string(i),
                         MergerNorm::kOfTokens, config.hidden_size, norm_of(config));
  }
  return mergers;
}

std::vector<ParamSpec> specs_of(const ParamTable& table, const std::string& prefix) {
  std::vector<ParamSpec> specs;
  for (const WeightSpec& weight : table.weights()) {
    for (const ParamSpec& spec : weight.params) {
      specs.push_back({prefix + spec.name, spec.shape});
    }
  }
  return specs;
}

// Of one component turned by rows and one by columns, half of the pairs each.
RopeFrequencies patch_frequencies(const VisionConfig& config, c10::Device device) {
  const at::Tensor half = rope_frequencies({config.head_dim() / 2, kRopeTheta, {}}).inverse_d;
  RopeFrequencies frequencies{at::cat({half, half})};
  frequencies.component_d = section_components({{half.numel(), half.numel(), 0}}, 2 * half.numel());
  frequencies.inverse_d = frequencies.inverse_d.to(device);
  frequencies.component_d = frequencies.component_d.to(device);
  return frequencies;
}

void check_input(const at::Tensor& patches_pF, int64_t patches, const VisionConfig& config,
                 const ComputeContext& context) {
  TORCH_CHECK(patches_pF.dim() == 2 && patches_pF.size(0) == patches &&
                  patches_pF.size(1) == config.row_size() &&
                  patches_pF.scalar_type() == context.compute &&
                  patches_pF.device() == context.device,
              "vision tower: expected patches ", context.compute, " [", patches, ", ",
              config.row_size(), "] on ", context.device, ", got ", patches_pF.scalar_type(), " ",
              patches_pF.sizes(), " on ", patches_pF.device());
}

// The tokens of patches in another order.
at::Tensor reorder_tokens(const at::Tensor& rows, const at::Tensor& order_n,
                          int64_t rows_of_token) {
  if (!order_n.defined()) {
    return rows;
  }
  return rows.view({order_n.size(0), rows_of_token * rows.size(1)})
      .index_select(0, order_n)
      .view(rows.sizes());
}

}  // namespace

std::vector<VisionUnitSpecs> vision_unit_specs(const ModelConfig& config) {
  const VisionConfig& vision = checked(config);
  const std::string& prefix = config.on_disk.tower;
  std::vector<VisionUnitSpecs> units{
      {"vision.embedding", specs_of(PatchEmbedding(vision).table(), prefix)}};
  const std::vector<VisionBlock> blocks = blocks_of(config);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::string name = "blocks." + std::to_string(i);
    units.push_back({"vision." + name, specs_of(blocks[i].table(), prefix + name + ".")});
  }
  const std::vector<PatchMerger> mergers = mergers_of(config);
  for (std::size_t i = 0; i < mergers.size(); ++i) {
    units.push_back({i == 0 ? "vision.merger" : "vision.deepstack." + std::to_string(i - 1),
                     specs_of(mergers[i].table(), prefix), true});
  }
  return units;
}

struct VisionTower::Pass {
  int64_t patches = 0;
  LearnedPositions positions;
  RopeTables rope;
  at::Tensor order_n, place_n;  // of tokens in windows; undefined without
  std::shared_ptr<PatchAttention> attention;
  ScopeChain scopes = {};
};

VisionTower::VisionTower(const ModelConfig& config, const ComputeContext& context,
                         std::vector<std::shared_ptr<ParamUnit>> units)
    : vision_(checked(config)),
      context_(context),
      embedding_(vision_),
      blocks_(blocks_of(config)),
      mergers_(mergers_of(config)),
      rope_frequencies_(patch_frequencies(vision_, context.device)),
      upload_stream_(make_side_stream(context.device)),
      units_(std::move(units)) {
  const std::vector<VisionUnitSpecs> expected = vision_unit_specs(config);
  TORCH_CHECK(units_.size() == expected.size(), "vision tower: ", units_.size(),
              " units, expected ", expected.size());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    TORCH_CHECK(units_[i]->specs() == expected[i].specs, "vision tower: unit ", units_[i]->name(),
                " in place of ", expected[i].name);
  }
}

UnitShapes VisionTower::shapes_of(std::size_t unit) const {
  const std::size_t merger = unit > blocks_.size() ? unit - blocks_.size() - 1 : 0;
  const ParamTable& table = unit == 0                ? embedding_.table()
                            : unit <= blocks_.size() ? blocks_[unit - 1].table()
                                                     : mergers_[merger].table();
  UnitShapes cut{context_.compute, {}};
  for (const WeightSpec& weight : table.weights()) {
    cut.shapes.push_back(weight.shape);
  }
  return cut;
}

VisionTower::Pass VisionTower::start(std::span<const PatchGrid> grids) const {
  PatchTables tables = patch_tables(vision_, grids);
  std::vector<at::Tensor> host{
      at::stack({at::tensor(tables.row_p, at::kLong), at::tensor(tables.column_p, at::kLong)}),
      vision_.window > 0 ? at::tensor(tables.order_n, at::kLong) : at::Tensor(),
      vision_.window > 0 ? at::tensor(tables.place_n, at::kLong) : at::Tensor(), at::Tensor(),
      at::Tensor()};
  if (vision_.positions > 0) {
    PositionTaps taps = position_taps(table_side(vision_), vision_.merge, grids);
    host[3] = std::move(taps.row_4p);
    host[4] = taps.weight_4p.unsqueeze(-1);
  }
  std::vector<at::Tensor> there = Upload(host, context_.device, upload_stream_).take();
  const at::ScalarType angles = context_.compute == at::kDouble ? at::kDouble : at::kFloat;
  return {.patches = tables.patches,
          .positions = {there[3], there[4]},
          .rope = rope_tables(rope_frequencies_, there[0], angles),
          .order_n = there[1],
          .place_n = there[2],
          .attention = std::make_shared<PatchAttention>(vision_, std::move(tables))};
}

at::Tensor VisionTower::run(std::size_t unit, const at::Tensor& hidden, Pass& pass, bool recomputes,
                            const Layer& layer) const {
  const auto with = [rope = pass.rope, attention = pass.attention, layer](
                        const std::vector<Weight>& weights, const at::Tensor& input) {
    return layer(input, {weights, {rope}, *attention});
  };
  GatheredUnit& gathered = units_[unit]->gathered();
  const bool is_trained = hidden.requires_grad() || units_[unit]->flat().requires_grad();
  if (recomputes && is_trained && at::GradMode::is_enabled()) {
    const auto segment = [this, unit, with](const at::Tensor& input) {
      return with(units_[unit]->gathered().materialize(shapes_of(unit)), input);
    };
    return recompute_in_backward(hidden, {units_[unit]->flat()}, segment);
  }
  const auto segment = [&](const std::vector<Weight>& weights, const at::Tensor& input) {
    return std::vector<at::Tensor>{with(weights, input)};
  };
  return run_with_weights(gathered, shapes_of(unit), hidden, segment, pass.scopes).front();
}

EncodedImages VisionTower::encode(const at::Tensor& patches_pF, std::span<const PatchGrid> grids,
                                  const ActivationOptions& activations) const {
  Pass pass = start(grids);
  check_input(patches_pF, pass.patches, vision_, context_);
  const bool recomputes = activations.recompute != Recompute::kNone;
  const std::size_t first_merger = 1 + blocks_.size();
  at::Tensor hidden_pC =
      run(0, patches_pF, pass, false, [&](const at::Tensor& patches, const LayerPass& of_layer) {
        return embedding_.forward(patches, pass.positions, of_layer);
      });
  hidden_pC = reorder_tokens(hidden_pC, pass.order_n, vision_.patches_of_token());
  const auto merge = [&](std::size_t merger) {
    const at::Tensor rows_iE = run(first_merger + merger, hidden_pC, pass, false,
                                   [&](const at::Tensor& hidden, const LayerPass& of_layer) {
                                     return mergers_[merger].forward(hidden, of_layer);
                                   });
    return reorder_tokens(rows_iE, pass.place_n, 1);
  };
  EncodedImages encoded;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    hidden_pC = run(1 + i, hidden_pC, pass, recomputes,
                    [this, i](const at::Tensor& hidden, const LayerPass& of_layer) {
                      return blocks_[i].forward(hidden, of_layer);
                    });
    if (std::ranges::find(vision_.deepstack, static_cast<int64_t>(i)) != vision_.deepstack.end()) {
      encoded.deepstack_iE.push_back(merge(1 + encoded.deepstack_iE.size()));
    }
  }
  encoded.rows_iE = merge(0);
  return encoded;
}

}  // namespace ringside::engine
