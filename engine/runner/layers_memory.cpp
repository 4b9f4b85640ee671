#include "engine/runner/layers_memory.h"

#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>

namespace ringside::engine {
namespace {

int64_t bytes(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

MixerShape mixer_shape(const PassShape& shape, const ComputeContext& context) {
  MixerShape mixers = shape;
  mixers.expert_ranks = shape.state.expert_ranks;
  mixers.mlp_tile_tokens = shape.activations.mlp_tile_tokens;
  mixers.compute = bytes(context.compute);
  mixers.sums = std::max<int64_t>(4, mixers.compute);
  mixers.device = context.device.type();
  return mixers;
}

// Elements of a row that matrices of such parameters give.
int64_t result_width(const std::vector<ParamSpec>& specs) {
  int64_t width = 0;
  for (const ParamSpec& spec : specs) {
    const std::vector<int64_t> shape =
        spec.cut.is_cut() ? piece_shape(spec.cut, spec.shape, /*part=*/0) : spec.shape;
    width += shape.size() == 2 ? shape[0] : 0;
  }
  return width;
}

// The same of a layer. Of experts each token has those of its routes.
int64_t result_width(const DecoderLayer& layer, const ModelConfig& config) {
  int64_t experts = 0;
  for (const std::vector<ParamSpec>& specs : layer.experts_specs()) {
    for (const ParamSpec& spec : specs) {
      experts += spec.shape.size() < 2 ? 0 : spec.numel() / spec.shape.back();
    }
  }
  return result_width(layer.specs()) +
         (experts > 0 ? experts / config.experts.count * config.experts.per_token : 0);
}

}  // namespace

int64_t elements(const std::vector<ParamSpec>& specs) {
  int64_t sum = 0;
  for (const ParamSpec& spec : specs) {
    sum += spec.numel();
  }
  return sum;
}

OwnElements own_elements(const std::vector<ParamSpec>& specs, int64_t tensor_ranks) {
  OwnElements own;
  for (const ParamSpec& spec : specs) {
    if (spec.cut.is_cut()) {
      own.cut += c10::multiply_integers(piece_shape(spec.cut, spec.shape, /*part=*/0));
    } else {
      (tensor_ranks == 1 ? own.cut : own.whole) += spec.numel();
    }
  }
  return own;
}

int64_t share(int64_t whole, int64_t ranks) { return (whole + ranks - 1) / ranks; }

int64_t packed_layer_bytes(const std::vector<ParamSpec>& specs, QuantisedFormat format,
                           int64_t compute) {
  int64_t bytes = 0;
  for (const ParamSpec& spec : specs) {
    const std::vector<int64_t> shape =
        spec.cut.is_cut() ? piece_shape(spec.cut, spec.shape, /*part=*/0) : spec.shape;
    bytes += shape.size() == 2 ? QuantisedMatrix::packed_bytes(shape[0], shape[1], format)
                               : c10::multiply_integers(shape) * compute;
  }
  return bytes;
}

namespace {

bool is_of_experts(const ParamSpec& factor) {
  return factor.name.find(".experts.") != std::string::npos;
}

// What the factors of a stage's layers add to what their passes save.
int64_t saved_by_adapters(const std::vector<ParamSpec>& factors, const ModelConfig& config,
                          const PassShape& pass, bool casts, int64_t compute) {
  int64_t numbers = 0;
  for (const ParamSpec& factor : factors) {
    const bool is_a = factor.name.ends_with("lora_A.weight");
    if (!is_of_experts(factor)) {
      numbers += (is_a ? factor.shape[0] * pass.tokens : 0) + (casts ? factor.numel() : 0);
      continue;
    }
    // Of each route of an own row; and a copy of this rank's B, which lie apart in the unit.
    const int64_t routed = pass.own_rows() * config.experts.per_token;
    numbers += is_a ? pass.adapters->options.rank * routed : 0;
    numbers += casts || !is_a ? factor.numel() / config.experts.count *
                                    share(config.experts.count, pass.state.expert_ranks)
                              : 0;
  }
  return numbers * compute;
}

}  // namespace

AdapterMemory adapter_memory(const ModelConfig& config, const Stage& stage, const PassShape& pass,
                             int64_t compute, int64_t master) {
  const AdapterShape& shape = *pass.adapters;
  const std::vector<ParamSpec> factors = Adapters::factors(config, stage, shape.options);
  const int64_t layers = std::max<int64_t>(1, stage.layers.size());
  AdapterMemory memory{
      elements(factors) * master,
      saved_by_adapters(factors, config, pass, compute != master, compute) / layers};
  if (shape.base) {
    memory.packed_layers = 0;
    const std::vector<DecoderLayer> all = make_layers(config, {0, pass.tensor_ranks});
    for (int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
      const DecoderLayer& layer = all[i];
      *memory.packed_layers += packed_layer_bytes(layer.specs(), *shape.base, compute);
    }
  }
  return memory;
}

std::size_t largest_layer(const std::vector<DecoderLayer>& layers) {
  const auto found = std::ranges::find_if(layers, [](const DecoderLayer& layer) {
    return layer.channel_mixer().routing().experts > 0;
  });
  return found == layers.end() ? 0 : static_cast<std::size_t>(found - layers.begin());
}

LayersMemory::LayersMemory(const ModelConfig& config, const std::vector<DecoderLayer>& layers,
                           const PassShape& shape, const ComputeContext& context,
                           const AdapterMemory* adapters)
    : p_(shape),
      adapters_(adapters),
      compute_(bytes(context.compute)),
      master_(bytes(context.master)),
      stream_(shape.own_rows() * config.hidden_size * compute_) {
  const MixerShape mixers = mixer_shape(shape, context);
  // A mixer saves its input: with tensor ranks that of all of them, where it gathers hidden states.
  const auto input = [&](const TensorWidths& widths) {
    return widths.gathered == config.hidden_size ? shape.tokens * config.hidden_size * compute_
                                                 : stream_;
  };
  for (const DecoderLayer& layer : layers) {
    Cost& cost = tokens_.emplace_back(layer.token_mixer().cost(mixers));
    const TensorWidths of_tokens = layer.token_mixer().tensor_widths();
    const TensorWidths of_channels = layer.channel_mixer().tensor_widths();
    // A norm saves its input and a number of each row.
    cost.saved += layer.num_norms() * (stream_ + shape.own_rows() * mixers.sums) +
                  input(of_tokens) + input(of_channels) +
                  (adapters != nullptr ? adapters->saved_by_layer : 0);
    cost.buffers += tensor_buffers(of_tokens, mixers);
    linear_results_.push_back(shape.tokens * result_width(layer, config) * compute_);
  }
  const ChannelMixer& channels = layers[largest_layer(layers)].channel_mixer();
  channels_ = channels.cost(mixers);
  channels_.flowing += tensor_buffers(channels.tensor_widths(), mixers);
}

int64_t LayersMemory::recomputed(int64_t layer, int64_t saved) const {
  if (!recomputes()) {
    return 0;
  }
  const bool selective = p_.activations.recompute == Recompute::kSelective;
  return saved - (selective ? tokens_[layer].kept : 0);
}

int64_t LayersMemory::kept_by(int64_t layer) const {
  const int64_t input = stream_ + channels_.kept;
  switch (p_.activations.recompute) {
    case Recompute::kNone:
      return tokens_[layer].saved + channels_.saved;
    case Recompute::kFull:
      return input;
    case Recompute::kSelective:
      return input + tokens_[layer].kept;
  }
  return 0;
}

int64_t LayersMemory::kept(int64_t begin, int64_t end) const {
  int64_t sum = 0;
  for (int64_t layer = begin; layer < end; ++layer) {
    sum += kept_by(layer);
  }
  return sum;
}

int64_t LayersMemory::linear_results(int64_t begin, int64_t end) const {
  return std::accumulate(linear_results_.begin() + begin, linear_results_.begin() + end,
                         int64_t{0});
}

int64_t LayersMemory::kept_on_device(int64_t last, int64_t with_offload) const {
  const int64_t first = p_.activations.offload ? last + 1 - with_offload : 0;
  return kept(std::max<int64_t>(0, first), last + 1);
}

int64_t LayersMemory::tables() const {
  int64_t largest = 0;
  for (const Cost& cost : tokens_) {
    largest = std::max(largest, cost.tables);
  }
  return largest;
}

int64_t LayersMemory::channels_moment(int64_t layer) const {
  const int64_t unpacked =
      adapters_ != nullptr && adapters_->packed_layers ? channels_.unpacked * compute_ : 0;
  const int64_t gradients = adapters_ != nullptr ? unpacked : channels_.gradients * master_;
  // Without recomputation the layer's activations are among those kept.
  return recomputed(layer, tokens_[layer].saved + channels_.recomputed) + stream_ +
         channels_.flowing + gradients;
}

int64_t LayersMemory::tokens_moment(int64_t layer) const {
  const Cost& mixer = tokens_[layer];
  const int64_t gradients =
      adapters_ != nullptr ? 0 : (channels_.weights + mixer.gradients) * master_;
  const int64_t freed = recomputes() ? 0 : channels_.saved;
  return recomputed(layer, mixer.saved) + stream_ + mixer.flowing + gradients - freed;
}

}  // namespace ringside::engine
