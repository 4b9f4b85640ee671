#include "engine/runner/memory_estimate.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "engine/layers/decoder_layer.h"
#include "engine/models/decoder.h"
#include "engine/runner/layer_memory.h"

namespace ringside::engine {
namespace {

// Sizes of one estimate. Bytes, unless said otherwise.
class Sizes {
 public:
  Sizes(const ModelConfig& config, const ComputeContext& context, const PassShape& shape)
      : c_(config), p_(shape) {
    const auto bytes = [](at::ScalarType dtype) {
      return static_cast<int64_t>(c10::elementSize(dtype));
    };
    compute_ = bytes(context.compute);
    master_ = bytes(context.master);
    sums_ = std::max<int64_t>(4, compute_);
    casts_ = context.compute != context.master && !shape.adapters;  // frozen ones are cast once
    int64_t largest = 0;
    while (config.experts.count > 0 && !config.has_experts(largest) &&
           largest + 1 < config.num_hidden_layers) {
      ++largest;
    }
    const bool has_experts = config.has_experts(largest);
    const int64_t mine = share(config.experts.count, shape.state.expert_ranks);
    mlp_matrix_ = has_experts ? mine * config.experts.intermediate_size * config.hidden_size
                              : config.intermediate_size * config.hidden_size;
    dense_layer_ = elements(DecoderLayer(config, largest).specs());
    int64_t whole = 0;  // elements of all experts of all layers
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      dense_layers_ += elements(DecoderLayer(config, layer).specs());
      int64_t experts = 0;
      for (const std::vector<ParamSpec>& specs : DecoderLayer(config, layer).experts_specs()) {
        experts += elements(specs);
      }
      whole += experts;
      experts_layer_ =
          layer == largest && experts > 0 ? experts / config.experts.count * mine : experts_layer_;
    }
    layer_parameters_ = dense_layer_ + experts_layer_;
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      // Without delta nets all layers count as the largest.
      elements_of_layer_.push_back(config.has_delta_net()
                                       ? elements(DecoderLayer(config, layer).specs()) +
                                             (config.has_experts(layer) ? experts_layer_ : 0)
                                       : layer_parameters_);
    }
    dense_ = elements(decoder_specs(config)) - whole;
    experts_ = whole > 0 ? whole / config.experts.count * mine : 0;
    parameters_ = dense_ + experts_;
    head_parameters_ = config.vocab_size * config.hidden_size;
    if (shape.adapters) {
      adapters_.emplace(config, *shape.adapters, compute_, master_);
    }
    const auto activations = [&](bool has_delta_net) {
      return LayerActivations(c_, p_, compute_, sums_, context.device.type(),
                              adapters_ ? &*adapters_ : nullptr, has_experts, has_delta_net);
    };
    kept_.emplace(c_, p_.activations, activations(false), activations(true));
  }

  MemoryEstimate at_head() const {
    MemoryEstimate m = states();
    m.gradients = accumulated_gradients();
    const int64_t head_weights = weights_are_made() ? head_parameters_ * compute_ : 0;
    m.gathered = keeps_gathered() ? kept_gathered()
                                  : saved_casts(layers()) + head_weights +
                                        (sharded() ? made_layer() * compute_ : 0);
    m.activations = tables() + kept_->on_device(layers() - 1, 1) + tail();
    const int64_t rows = std::min(p_.logit_rows, p_.entries);
    m.logits = rows * c_.vocab_size * p_.logit_bytes + (frozen() ? 0 : head_parameters_ * sums_) +
               p_.entries * c_.hidden_size * compute_;
    return m;
  }

  // In the backward of a layer, with `below` layers whose activations are still kept.
  MemoryEstimate in_layer(int64_t below) const {
    MemoryEstimate m = states();
    const int64_t done = layers() - 1 - below;  // layers whose gradients exist
    if (frozen()) {
      m.gradients = accumulated_gradients() + adapters_->masters() * (done + 1) / layers();
    } else {
      m.gradients = layer_gradients(done);
    }
    const int64_t layers_of_weights = keeps_gathered()      ? 0
                                      : sharded()           ? 2
                                      : kept_->recomputes() ? 1
                                                            : 0;
    m.gathered = keeps_gathered()
                     ? kept_gathered()
                     : saved_casts(below + 1) +
                           (weights_are_made() ? layers_of_weights * made_layer() * compute_ : 0);
    m.activations = tables() + kept_->on_device(below, 2);
    const LayerActivations& layer = kept_->at(below);
    m.working = mlp_moment(layer);
    if (layer.has_delta_net()) {
      m.working = std::max(m.working, delta_moment(layer));
    } else if (attention_moment(layer) + key_value_buffers() > m.working) {
      m.working = attention_moment(layer);
      m.communication = key_value_buffers();
    }
    return m;
  }

  Sizes(const Sizes&) = delete;
  Sizes& operator=(const Sizes&) = delete;

  int64_t layers() const { return c_.num_hidden_layers; }

 private:
  // Gradients of trained weights, with those of `done` layers.
  int64_t layer_gradients(int64_t done) const {
    int64_t gradients = p_.accumulates || sharded()
                            ? accumulated_gradients()
                            : std::accumulate(elements_of_layer_.end() - done,
                                              elements_of_layer_.end(), int64_t{0}) *
                                  master_;
    // The head's gradient: of tied weights it waits for the embedding's.
    if (!p_.accumulates || c_.tie_word_embeddings) {
      gradients += head_parameters_ * (sharded() && !c_.tie_word_embeddings ? 0 : master_);
    }
    if (sharded()) {
      gradients += layer_parameters_ * master_;  // whole, while it is summed
    }
    return gradients;
  }

  bool frozen() const { return adapters_.has_value(); }
  // A frozen base and the adapters.
  MemoryEstimate frozen_states() const {
    const StateShape& state = p_.state;
    MemoryEstimate m;
    // Experts are never packed: a model that has them is refused, with its size as if they were
    // not.
    const int64_t base = adapters_->is_packed()
                             ? (share(dense_ - dense_layers_, state.shard_ranks) +
                                share(experts_, state.expert_shard_ranks)) *
                                       compute_ +
                                   adapters_->packed_layers()
                             : stored() * compute_;
    (state.parameters_on_host ? m.host : m.weights) += base;
    m.weights += adapters_->masters();
    if (p_.trains) {
      const bool off = state.moments_on_host || state.masters_on_host;
      (off ? m.host : m.moments) += 2 * adapters_->masters();
    }
    return m;
  }
  bool sharded() const { return p_.state.shard_ranks > 1; }
  bool keeps_gathered() const { return sharded() && p_.state.zero_stage < 3; }
  // Whether a weight for use is a tensor beside the stored one.
  bool weights_are_made() const { return casts_ || sharded() || p_.state.parameters_on_host; }
  // Elements that this rank stores.
  int64_t stored() const {
    return share(dense_, p_.state.shard_ranks) + share(experts_, p_.state.expert_shard_ranks);
  }
  // Whether this rank's experts are gathered for use.
  bool experts_sharded() const { return p_.state.expert_shard_ranks > 1; }
  // Elements of a layer that are made for use, where weights are.
  int64_t made_layer() const {
    return dense_layer_ + (experts_sharded() || casts_ ? experts_layer_ : 0);
  }
  int64_t kept_gathered() const {
    return (dense_ + (experts_sharded() ? experts_ : 0)) * compute_ +
           (experts_sharded() || !casts_ ? 0 : experts_layer_ * compute_);
  }

  // Weights, moments and host memory, which do not depend on the moment.
  MemoryEstimate states() const {
    if (frozen()) {
      return with_host_activations(frozen_states());
    }
    const StateShape& state = p_.state;
    MemoryEstimate m;
    const int64_t masters = stored() * master_;
    if (state.masters_on_host) {
      // The device keeps this rank's part in the compute dtype.
      m.weights = state.parameters_on_host || keeps_gathered() ? 0 : stored() * compute_;
      m.host += masters;
    } else {
      (state.parameters_on_host ? m.host : m.weights) += masters;
    }
    if (p_.trains) {
      const bool off = state.moments_on_host || state.masters_on_host;
      (off ? m.host : m.moments) += 2 * masters;
      m.host += state.masters_on_host ? masters : 0;  // gradients
    }
    return with_host_activations(m);
  }
  MemoryEstimate with_host_activations(MemoryEstimate m) const {
    if (p_.activations.offload) {
      m.host_activations = kept_->sum(0, layers() - 1);
      m.host += m.host_activations;
    }
    return m;
  }

  int64_t accumulated_gradients() const {
    if (frozen()) {
      return p_.accumulates ? adapters_->masters() : 0;
    }
    if (p_.state.masters_on_host) {
      return layer_parameters_ * master_;
    }
    if (!p_.accumulates) {
      return 0;
    }
    const bool whole = !sharded() || p_.state.zero_stage == 1;
    return (whole ? parameters_ : stored()) * master_;
  }

  // Casts of layers' weights that their backward keeps.
  int64_t saved_casts(int64_t layers_kept) const {
    if (!casts_ || kept_->recomputes()) {
      return 0;
    }
    return layers_kept * compute_ *
           ((sharded() ? 0 : dense_layer_) + (experts_sharded() ? 0 : experts_layer_));
  }

  // Tables that all layers share: of RoPE, of states.
  int64_t tables() const { return p_.tokens * c_.rope().head_dim * compute_ + kept_->tables(); }
  // The final norm's input and output, and the rows of the entries.
  int64_t tail() const {
    return p_.tokens * (2 * c_.hidden_size * compute_ + sums_) +
           p_.entries * (c_.hidden_size * compute_ + 24);
  }

  // While the MLP's backward runs.
  int64_t mlp_moment(const LayerActivations& layer) const {
    const int64_t tile = layer.has_experts() ? 0 : p_.activations.mlp_tile_tokens;
    const int64_t s = p_.tokens, e = c_.hidden_size;
    const int64_t rows = tile > 0 ? std::min(tile, s) : s;
    const int64_t flowing = s * e * compute_ + layer.mlp_flowing(rows);
    // The down projection's gradient; with tiles, those of all three and a tile's.
    const int64_t gradients = frozen()   ? adapters_->unpacked(mlp_matrix_)
                              : tile > 0 ? 5 * mlp_matrix_ * master_
                                         : mlp_matrix_ * (casts_ ? master_ : compute_);
    const int64_t tile_in_out = tile > 0 ? (s * e + 2 * rows * e) * compute_ : 0;
    const int64_t saved = layer.saved_before_mlp() + layer.mlp_saved(rows);
    // Without recomputation the layer's activations are among those kept.
    return layer.recomputed(saved) + flowing + gradients + tile_in_out;
  }

  // While attention's backward runs: the MLP's activations are gone, its gradients exist.
  int64_t attention_moment(const LayerActivations& layer) const {
    const int64_t e = c_.hidden_size, d = c_.head_dim;
    const int64_t s = p_.tokens, S = p_.share_tokens;
    const int64_t flowing = s * e * compute_ + S * p_.query_heads * d * (compute_ + sums_) +
                            S * 2 * p_.kv_heads * d * sums_;
    const int64_t gradients = frozen() ? 0 : 3 * mlp_matrix_ * master_;
    const int64_t freed = layer.recomputes() ? 0 : layer.mlp_saved(s);
    return layer.recomputed(layer.saved_before_mlp()) + flowing + gradients - freed;
  }

  // While a delta net's backward runs: its rule, or its convolution.
  int64_t delta_moment(const LayerActivations& layer) const {
    const DeltaNetMemory net = layer.delta_net();
    const int64_t flowing = p_.tokens * c_.hidden_size * compute_;
    const sp::StateShape& shape = c_.delta_net.shape;
    const int64_t out_matrix = c_.hidden_size * shape.value_heads * shape.value_dim;
    const int64_t gradients = frozen() ? 0 : (3 * mlp_matrix_ + out_matrix) * master_;
    const int64_t freed = layer.recomputes() ? 0 : layer.mlp_saved(p_.tokens);
    return layer.recomputed(layer.saved_before_mlp()) + flowing + gradients - freed +
           std::max(net.rule_backward(), net.conv_backward());
  }

  // Other ranks' keys and values, and their gradients, where most of them exist: all of them when
  // they are gathered. Otherwise those of the step and of the next one, and the gradients of the
  // step, of the step before, which are being sent, and those that arrive. Short rings end before.
  int64_t key_value_buffers() const {
    const int64_t ranks = p_.ring_ranks;
    if (ranks == 1) {
      return 0;
    }
    const int64_t values = p_.gathers_kv ? ranks : ranks > 3 ? 2 : 1;
    const int64_t gradients = p_.gathers_kv ? ranks : ranks > 2 ? 3 : 1;
    return p_.share_tokens * 2 * p_.kv_heads * c_.head_dim *
           (values * compute_ + gradients * sums_);
  }

  const ModelConfig& c_;
  const PassShape& p_;
  int64_t compute_ = 0, master_ = 0, sums_ = 0;  // bytes of a number
  bool casts_ = false;                           // weights are cast for use
  std::optional<AdapterSizes> adapters_;         // empty: all weights are trained
  std::optional<KeptByLayers> kept_;
  int64_t mlp_matrix_ = 0;  // elements of the largest layer's gate, of all experts
  // Elements that this rank computes with, its own experts among them: of the largest layer, and of
  // all.
  int64_t dense_layer_ = 0, experts_layer_ = 0, layer_parameters_ = 0;
  std::vector<int64_t> elements_of_layer_;
  int64_t dense_ = 0, dense_layers_ = 0, experts_ = 0, parameters_ = 0, head_parameters_ = 0;
};

}  // namespace

MemoryEstimate estimate_memory(const ModelConfig& config, const ComputeContext& context,
                               const PassShape& shape) {
  const Sizes sizes(config, context, shape);
  MemoryEstimate largest = sizes.at_head();
  for (int64_t below = 0; below < sizes.layers(); ++below) {
    const MemoryEstimate moment = sizes.in_layer(below);
    if (moment.peak() > largest.peak()) {
      largest = moment;
    }
  }
  return largest;
}

}  // namespace ringside::engine
