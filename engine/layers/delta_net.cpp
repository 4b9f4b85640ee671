#include "engine/layers/delta_net.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "engine/nn/delta_rule.h"
#include "engine/nn/leaf_value.h"
#include "engine/nn/recurrent_backend.h"

namespace ringside::engine {
namespace {

// The projected input by head group.
struct Projected {
  at::Tensor channels_sGC;
  at::Tensor gate_sGo;  // of the output
};

// [s, all q | all k | all v] or the same with weights in place of rows -> one group after another.
at::Tensor by_group(const sp::StateShape& shape, const at::Tensor& flat, int64_t dim) {
  const int64_t g = shape.key_heads, keys = g * shape.key_dim;
  const auto groups = [&](int64_t begin, int64_t channels) {
    return flat.narrow(dim, begin, g * channels).unflatten(dim, {g, channels});
  };
  return at::cat({groups(0, shape.key_dim), groups(keys, shape.key_dim),
                  groups(2 * keys, shape.out_channels())},
                 dim + 1);
}

// Qwen3-Next: q, k, v and z of each group side by side, then b and a of each group.
Projected split_grouped(const sp::StateShape& shape, const at::Tensor& projected_sP) {
  const int64_t g = shape.key_heads, per_group = shape.values_per_group();
  const int64_t conv = shape.conv_channels(), out = shape.out_channels();
  const at::Tensor qkvz = projected_sP.narrow(1, 0, g * (conv + out)).unflatten(1, {g, conv + out});
  const at::Tensor gates =
      projected_sP.narrow(1, g * (conv + out), g * 2 * per_group).unflatten(1, {g, 2 * per_group});
  return {at::cat({qkvz.narrow(2, 0, conv), gates}, 2), qkvz.narrow(2, conv, out)};
}

// Qwen3.5: all q, all k, all v, all z, all b, all a.
Projected split_flat(const sp::StateShape& shape, const at::Tensor& projected_sP) {
  const int64_t g = shape.key_heads, per_group = shape.values_per_group();
  const int64_t conv = g * shape.conv_channels(), out = g * shape.out_channels();
  const auto groups = [&](int64_t begin, int64_t channels) {
    return projected_sP.narrow(1, begin, g * channels).unflatten(1, {g, channels});
  };
  return {at::cat({by_group(shape, projected_sP.narrow(1, 0, conv), 1),
                   groups(conv + out, per_group), groups(conv + out + g * per_group, per_group)},
                  2),
          groups(conv, shape.out_channels())};
}

// Parameters of all head groups, and how tensor ranks cut them.
struct GroupCuts {
  const sp::StateShape& shape;       // of all groups
  std::vector<sp::Range> groups_of;  // of each tensor rank; empty: one has all

  GroupCuts(const ModelConfig& config, const ParamTable& table)
      : shape(config.delta_net.shape),
        groups_of(table.place().ranks == 1 ? std::vector<sp::Range>{}
                                           : even_items(shape.key_heads, table.place().ranks)) {}

  // With `each` rows, or columns, a group.
  TensorCut items(int64_t each, CutAlong along = CutAlong::kRows) const {
    return groups_of.empty() ? TensorCut{} : cut_items(along, groups_of, each);
  }
  // All q, all k and all v.
  TensorCut qkv() const {
    const std::vector<int64_t> each{shape.key_dim, shape.key_dim, shape.out_channels()};
    return groups_of.empty() ? TensorCut{} : cut_blocks(groups_of, shape.key_heads, each);
  }
};

std::vector<Projection> input_projections(const DeltaNetConfig& net, const GroupCuts& cuts) {
  const sp::StateShape& shape = net.shape;
  const int64_t g = shape.key_heads, h = shape.value_heads, per_group = shape.values_per_group();
  const int64_t conv = g * shape.conv_channels(), out = g * shape.out_channels();
  if (net.grouped_projections) {
    return {{"linear_attn.in_proj_qkvz", conv + out,
             cuts.items(shape.conv_channels() + shape.out_channels())},
            {"linear_attn.in_proj_ba", 2 * h, cuts.items(2 * per_group)}};
  }
  return {{"linear_attn.in_proj_qkv", conv, cuts.qkv()},
          {"linear_attn.in_proj_z", out, cuts.items(shape.out_channels())},
          {"linear_attn.in_proj_b", h, cuts.items(per_group)},
          {"linear_attn.in_proj_a", h, cuts.items(per_group)}};
}

// With the heads of this tensor rank.
DeltaNetConfig own_net(const ModelConfig& config, const ParamTable& table) {
  const GroupCuts cuts(config, table);
  DeltaNetConfig own = config.delta_net;
  if (!cuts.groups_of.empty()) {
    own.shape.key_heads = cuts.groups_of[table.place().rank].size();
    own.shape.value_heads = own.shape.key_heads * cuts.shape.values_per_group();
  }
  return own;
}

Slot add_conv(const ModelConfig& config, ParamTable& table) {
  const sp::StateShape& shape = config.delta_net.shape;
  return table.add("linear_attn.conv1d.weight",
                   {shape.key_heads * shape.conv_channels(), 1, shape.conv_taps},
                   WeightPlace::kLayer, GroupCuts(config, table).qkv());
}

Slot add_of_value_heads(const char* name, const ModelConfig& config, ParamTable& table) {
  const sp::StateShape& shape = config.delta_net.shape;
  return table.add(name, {shape.value_heads}, WeightPlace::kLayer,
                   GroupCuts(config, table).items(shape.values_per_group()));
}

// Tensors of one layer. Bytes.
struct DeltaNetMemory {
  const DeltaNetConfig& net;
  const MixerShape& pass;
  const sp::StateShape& shape = net.shape;
  const DeltaShape& d = pass.delta;
  int64_t share = pass.share_tokens;
  int64_t heads = d.groups * shape.values_per_group();  // value heads of this rank
  int64_t k = shape.key_dim, v = shape.value_dim;
  int64_t compute = pass.compute, sums = pass.sums;
  bool is_wide = compute == sums;
  int64_t out = pass.tokens * shape.value_heads * v;  // elements
  int64_t conv_in = share * d.groups * shape.conv_channels() * compute;
  int64_t gate_gradient = out * compute;

  // The convolution's result, or q and k of it cast for their lengths; inverse lengths; gates.
  int64_t of_rows() const {
    const bool keeps_result = is_wide || d.groups == 1;
    return (keeps_result ? conv_in : 0) + share * d.groups * ((is_wide ? 0 : 2 * k) + 4) * sums +
           2 * share * heads * sums;
  }

  // The rule's inputs, and the states at the starts of chunks. The same again for the maps, whose
  // values are as wide as the state and its transition.
  int64_t of_rule() const {
    const int64_t values = d.groups > 1 ? share * heads * v * compute : 0;
    const int64_t rule = 2 * share * d.groups * k * compute + values + 2 * share * heads * sums +
                         d.chunks * heads * k * v * sums;
    const bool all_mapped = d.mapped_rows == share;
    const int64_t copies =
        all_mapped ? 0 : d.mapped_rows * (d.groups * k * compute + 2 * heads * sums);
    const int64_t maps = d.mapped_rows * heads * (v + k) * compute + copies +
                         d.mapped_chunks * heads * k * (v + k) * sums;
    return rule + maps;
  }

  // The rule's result, its norm, the gate before and after SiLU, and their product. The gate before
  // SiLU is a view of the whole projection, unless it is copied or cast.
  int64_t after_rule() const {
    const bool is_view = is_wide && !net.grouped_projections;
    const int64_t beside = is_view ? pass.tokens * shape.key_heads * shape.channels() * compute : 0;
    return out * (3 * compute + 2 * sums) + pass.tokens * shape.value_heads * sums + beside;
  }

  // Matrices of the chunks that are computed together, with their gradients.
  int64_t block() const {
    constexpr int64_t c = ChunkTables::kChunk;
    const int64_t chunks = std::min(d.chunks, delta_chunks_at_once(heads, k, v, pass.device));
    return chunks * heads * (12 * c * k + 6 * c * v + 10 * c * c + 2 * k * v) * sums;
  }

  // What the backward of the rule has beside what the forward saved and is not freed by then.
  int64_t rule_backward() const {
    const int64_t row_gradients =
        share * (2 * d.groups * k + 2 * heads * v) * compute + share * 2 * heads * sums;
    return gate_gradient + row_gradients + 3 * d.runs * heads * k * v * sums + block() -
           after_rule();
  }

  // The same of the convolution.
  int64_t conv_backward() const {
    const int64_t convolution =
        share * d.groups * shape.conv_channels() * (6 * sums + (compute < sums ? compute : 0));
    return gate_gradient + share * d.groups * shape.channels() * compute + convolution - of_rows() -
           of_rule() - after_rule();
  }

  // Index tables of the micro-batch.
  int64_t tables() const {
    const int64_t slots = (d.chunks + d.mapped_chunks) * ChunkTables::kChunk;
    return slots * 9 + (share + d.mapped_rows) * 16 + share * 8;
  }
};

}  // namespace

DeltaNet::DeltaNet(const ModelConfig& config, int64_t layer, ParamTable& table)
    : layer_(layer),
      hidden_(config.hidden_size),
      fp32_norms_(config.fp32_norms),
      net_(own_net(config, table)),
      in_(table, input_projections(config.delta_net, GroupCuts(config, table)), config.hidden_size),
      conv_(add_conv(config, table)),
      log_decay_(add_of_value_heads("linear_attn.A_log", config, table)),
      decay_bias_(add_of_value_heads("linear_attn.dt_bias", config, table)),
      // This norm's factor is its weight, whatever the layer's others are.
      norm_(table, "linear_attn.norm.weight", net_.shape.value_dim,
            {config.rms_norm_eps, config.fp32_norms}),
      out_(table,
           {{"linear_attn.out_proj", config.hidden_size,
             GroupCuts(config, table)
                 .items(config.delta_net.shape.out_channels(), CutAlong::kColumns)}},
           config.delta_net.shape.key_heads * config.delta_net.shape.out_channels()) {}

at::Tensor DeltaNet::forward(const at::Tensor& normed_sE, const LayerPass& pass) const {
  const at::Tensor projected = in_(gather_rows(normed_sE, pass.rows), pass);
  // Without a head group the output of no channels takes part in the sums.
  const at::Tensor mixed = net_.shape.key_heads == 0 ? projected : mix(projected, pass);
  return out_.summed(out_(mixed, pass), pass);
}

at::Tensor DeltaNet::mix(const at::Tensor& projected, const LayerPass& pass) const {
  RecurrentBackend* backend = pass.attention.recurrent();
  TORCH_CHECK(backend != nullptr, "delta net: layer ", layer_,
              " needs a backend that passes states, this one has keys and values alone");
  const sp::StateShape& shape = net_.shape;
  const Projected input =
      net_.grouped_projections ? split_grouped(shape, projected) : split_flat(shape, projected);
  const std::vector<int64_t> heads{shape.key_heads, shape.values_per_group()};
  const at::Tensor mixed =
      backend->mix(layer_, {shape, input.channels_sGC,
                            by_group(shape, leaf_value(pass.weights[conv_]).squeeze(1), 0),
                            leaf_value(pass.weights[log_decay_]).view(heads),
                            leaf_value(pass.weights[decay_bias_]).view(heads)});
  const int64_t s = projected.size(0);
  const std::vector<int64_t> by_head{s, shape.value_heads, shape.value_dim};
  const at::Tensor normed = norm_(mixed.reshape(by_head), pass);
  const bool doubles = normed.scalar_type() == at::kDouble && !fp32_norms_;
  const auto sums = doubles ? at::kDouble : at::kFloat;
  const at::Tensor gated =
      (normed * at::silu(input.gate_sGo.reshape(by_head).to(sums))).to(normed.scalar_type());
  return gated.flatten(1);
}

Support DeltaNet::supports(Feature feature) const {
  switch (feature) {
    case Feature::kAdapters:
      return Support::yes();
    case Feature::kPackedBase:
      return Support::no("gated delta nets cannot be quantised");
    case Feature::kAsyncUlysses:
      return Support::no("models with gated delta nets exchange heads synchronously");
    case Feature::kTensorCut:
      return Support::yes();
    case Feature::kRoutes:
    case Feature::kRouterCorrections:
      break;
  }
  return Support::no("gated delta nets have no experts");
}

TokenFlow DeltaNet::flow() const { return {net_.shape.key_heads, 0, {}, net_.shape}; }

Cost DeltaNet::cost(const MixerShape& shape) const {
  if (net_.shape.key_heads == 0) {
    return {};
  }
  const DeltaNetMemory memory{net_, shape};
  Cost cost;
  cost.saved = memory.conv_in + memory.of_rows() + memory.of_rule() + memory.after_rule();
  cost.flowing = std::max(memory.rule_backward(), memory.conv_backward());
  cost.gradients = hidden_ * net_.shape.value_heads * net_.shape.value_dim;
  cost.tables = memory.tables();
  return cost;
}

// It exchanges heads. Maps of states are small beside them.
MixerWork DeltaNet::work(const RankGrid& grid) const {
  if (net_.shape.key_heads == 0) {
    return {};
  }
  const sp::StateShape& net = net_.shape;
  constexpr double chunk = ChunkTables::kChunk;
  const auto k = static_cast<double>(net.key_dim), v = static_cast<double>(net.value_dim);
  const auto heads = static_cast<double>(net.value_heads);
  const auto u = static_cast<double>(grid.ulysses);
  const double tokens = grid.tokens / (static_cast<double>(grid.ring) * u);
  const double forwards = grid.recompute == Recompute::kNone ? 1 : 2;
  const auto channels = static_cast<double>(net.key_heads * (net.channels() + net.out_channels()));
  MixerWork work;
  // Of the rule: products of chunks, and of each with the state.
  work.products = tokens * (2.0 * heads * (chunk * (2.5 * k + 1.5 * v) + 3.0 * k * v));
  work.sent = (forwards + 1) * tokens * channels * (u - 1) / u * grid.element;
  return work;
}

}  // namespace ringside::engine
