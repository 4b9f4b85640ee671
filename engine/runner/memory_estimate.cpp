#include "engine/runner/memory_estimate.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <optional>

#include "engine/models/decoder.h"

namespace ringside::engine {
namespace {

int64_t elements(const std::vector<ParamSpec>& specs) {
  int64_t sum = 0;
  for (const ParamSpec& spec : specs) {
    sum += spec.numel();
  }
  return sum;
}

int64_t share(int64_t whole, int64_t ranks) { return (whole + ranks - 1) / ranks; }

// Adapters and the base that they are trained beside. Bytes.
class AdapterSizes {
 public:
  // config: of the model. compute, master: bytes of a number.
  AdapterSizes(const ModelConfig& config, const AdapterShape& shape, int64_t compute,
               int64_t master)
      : c_(config),
        base_(shape.base),
        factors_(Adapters::factors(config, shape.options)),
        compute_(compute),
        master_(master) {}

  // Master values of all adapters. Every rank has them whole.
  int64_t masters() const { return elements(factors_) * master_; }

  // What those of a layer add to what it saves: x A^T of each, and the factors' casts.
  int64_t saved_by_layer(int64_t tokens) const {
    int64_t columns = 0;
    for (const ParamSpec& spec : factors_) {
      columns += spec.name.ends_with("lora_A.weight") ? spec.shape[0] : 0;
    }
    const int64_t casts =
        compute_ != master_ ? elements(factors_) * compute_ / c_.num_hidden_layers : 0;
    return columns / c_.num_hidden_layers * tokens * compute_ + casts;
  }

  bool is_packed() const { return base_.has_value(); }
  // One layer of a packed base, with its projections as they are stored.
  int64_t packed_layer() const {
    const bool nf4 = base_ == QuantisedFormat::kNf4;
    int64_t bytes = 0;
    for (const ParamSpec& spec : decoder_layer_specs(c_, /*layer=*/0)) {
      const int64_t numel = spec.numel();
      if (spec.shape.size() != 2) {
        bytes += numel * compute_;
      } else {
        bytes +=
            nf4 ? numel / 2 + (numel + kNf4Block - 1) / kNf4Block * 4 : numel + spec.shape[0] * 4;
      }
    }
    return bytes;
  }
  // A packed gate and up projection while a product uses them: each unpacked, and joined. matrix:
  // elements of one.
  int64_t unpacked(int64_t matrix) const { return base_ ? 4 * matrix * compute_ : 0; }

 private:
  const ModelConfig& c_;
  std::optional<QuantisedFormat> base_;
  std::vector<ParamSpec> factors_;
  int64_t compute_, master_;
};

// What one layer keeps for its backward, and what flows through that. Bytes.
class LayerActivations {
 public:
  // compute, sums: bytes of a number. adapters: nullptr without.
  LayerActivations(const ModelConfig& config, const PassShape& shape, int64_t compute, int64_t sums,
                   const AdapterSizes* adapters, bool has_experts)
      : c_(config),
        p_(shape),
        compute_(compute),
        sums_(sums),
        adapters_(adapters),
        has_experts_(has_experts) {}

  bool recomputes() const { return p_.activations.recompute != Recompute::kNone; }

  bool exchanges() const { return p_.query_heads < c_.num_attention_heads; }
  // What attention's node saves beyond its inputs in this rank's own layout.
  int64_t attention_results() const {
    return p_.share_tokens * p_.query_heads * (c_.head_dim * compute_ + sums_);
  }
  int64_t exchanged_inputs() const {
    return p_.share_tokens * (p_.query_heads + 2 * p_.kv_heads) * c_.head_dim * compute_;
  }
  int64_t exchanged_output() const {
    return p_.tokens * c_.num_attention_heads * c_.head_dim * compute_;
  }
  // gate, up and their product. With experts of each token's every route, beside the routed rows,
  // the results, and where they belong.
  int64_t mlp_saved(int64_t rows) const {
    if (!has_experts_) {
      return 3 * rows * c_.intermediate_size * compute_;
    }
    const int64_t routed = rows * c_.experts.per_token;
    const int64_t router = rows * c_.experts.count * (compute_ + sums_);
    const int64_t shared = 3 * rows * c_.experts.shared_intermediate_size * compute_;
    // Places: of rows among the pairs, twice, and the routes; with several ranks of the rows that
    // arrive, twice.
    const int64_t places = p_.state.expert_ranks > 1 ? 5 : 3;
    return routed *
               ((3 * c_.experts.intermediate_size + 2 * c_.hidden_size) * compute_ + places * 8) +
           router + shared;
  }
  // What flows through the MLP's backward beside the residual.
  int64_t mlp_flowing(int64_t rows) const {
    return has_experts_ ? rows * c_.experts.per_token *
                              (2 * c_.experts.intermediate_size * compute_ + c_.hidden_size * sums_)
                        : 2 * rows * c_.intermediate_size * compute_;
  }

  // What one layer saves without recomputation, but for its MLP: decoder_layer() and the operators
  // that it calls, in their order.
  int64_t saved_before_mlp() const {
    const int64_t s = p_.tokens, d = c_.head_dim;
    const int64_t heads = c_.num_attention_heads, kv = c_.num_key_value_heads;
    const int64_t norms = 2 * s * (2 * c_.hidden_size * compute_ + sums_);
    if (c_.has_latent_attention()) {
      return norms + latent_saved() + attention_results();
    }
    const int64_t qkv = s * (heads + 2 * kv) * d * compute_;
    const int64_t rotated = s * (heads + kv) * (d * compute_ + (c_.attention.qk_norm ? sums_ : 0));
    // Without an exchange the queries are a view of what was rotated; keys and values are joined.
    const int64_t joined = p_.share_tokens * 2 * p_.kv_heads * d * compute_;
    const int64_t attention =
        exchanges() ? exchanged_inputs() + exchanged_output() - s * (heads + kv) * d * compute_
                    : joined;
    return norms + qkv + rotated + attention + attention_results() +
           (adapters_ != nullptr ? adapters_->saved_by_layer(p_.tokens) : 0);
  }
  // Of latent attention: each latent before and after its norm, what RoPE turned, and the inputs of
  // attention and of the output projection. The tensors between are freed.
  int64_t latent_saved() const {
    const LatentAttentionConfig& latent = c_.latent;
    const int64_t s = p_.tokens, d = c_.head_dim, heads = c_.num_attention_heads;
    const int64_t ranks = (latent.q_rank > 0 ? 2 * latent.q_rank : 0) + 2 * latent.kv_rank;
    const int64_t latents = s * (ranks * compute_ + (latent.q_rank > 0 ? 2 : 1) * sums_);
    const int64_t turned = s * (heads + 1) * latent.rope_dim * compute_;
    const int64_t joined = p_.share_tokens * 2 * p_.kv_heads * d * compute_;
    const int64_t inputs = exchanges() ? exchanged_inputs() : s * heads * d * compute_ + joined;
    return latents + turned + inputs + s * heads * latent.value_dim * compute_;
  }
  int64_t layer_saved() const { return saved_before_mlp() + mlp_saved(p_.tokens); }

  // What one layer keeps from the forward to its backward.
  int64_t kept_by_layer() const {
    // Recomputed layers keep their routes.
    const int64_t input =
        p_.tokens * (c_.hidden_size * compute_ + (has_experts_ ? c_.experts.per_token * 8 : 0));
    switch (p_.activations.recompute) {
      case Recompute::kNone:
        return layer_saved();
      case Recompute::kFull:
        return input;
      case Recompute::kSelective:
        return input + kept_attention();
    }
    return 0;
  }
  int64_t kept_attention() const {
    return attention_results() + (exchanges() ? exchanged_inputs() + exchanged_output() : 0);
  }
  // What a recomputed layer saves beside what it kept. Its input is the residual that its first
  // norm saves; the gradient of its output stays until all of its backward is done.
  int64_t recomputed(int64_t saved) const {
    if (!recomputes()) {
      return 0;
    }
    const bool selective = p_.activations.recompute == Recompute::kSelective;
    return saved - (selective ? kept_attention() : 0);
  }

 private:
  const ModelConfig& c_;
  const PassShape& p_;
  int64_t compute_, sums_;
  const AdapterSizes* adapters_;
  bool has_experts_;
};

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
    has_experts_ = config.has_experts(largest);
    const int64_t mine = share(config.experts.count, shape.state.expert_ranks);
    mlp_matrix_ = has_experts_ ? mine * config.experts.intermediate_size * config.hidden_size
                               : config.intermediate_size * config.hidden_size;
    dense_layer_ = elements(decoder_layer_specs(config, largest));
    int64_t whole = 0;  // elements of all experts of all layers
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      const int64_t experts = elements(layer_experts_specs(config, layer));
      whole += experts;
      experts_layer_ =
          layer == largest && experts > 0 ? experts / config.experts.count * mine : experts_layer_;
    }
    layer_parameters_ = dense_layer_ + experts_layer_;
    dense_ = elements(decoder_specs(config)) - whole;
    experts_ = whole > 0 ? whole / config.experts.count * mine : 0;
    parameters_ = dense_ + experts_;
    head_parameters_ = config.vocab_size * config.hidden_size;
    if (shape.adapters) {
      adapters_.emplace(config, *shape.adapters, compute_, master_);
    }
    layer_.emplace(c_, p_, compute_, sums_, adapters_ ? &*adapters_ : nullptr, has_experts_);
  }

  MemoryEstimate at_head() const {
    MemoryEstimate m = states();
    m.gradients = accumulated_gradients();
    const int64_t head_weights = weights_are_made() ? head_parameters_ * compute_ : 0;
    m.gathered = keeps_gathered() ? kept_gathered()
                                  : saved_casts(layers()) + head_weights +
                                        (sharded() ? made_layer() * compute_ : 0);
    m.activations = rope() + device_layers(1) * layer_->kept_by_layer() + tail();
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
    const int64_t layers_of_weights = keeps_gathered()       ? 0
                                      : sharded()            ? 2
                                      : layer_->recomputes() ? 1
                                                             : 0;
    m.gathered = keeps_gathered()
                     ? kept_gathered()
                     : saved_casts(below + 1) +
                           (weights_are_made() ? layers_of_weights * made_layer() * compute_ : 0);
    m.activations = rope() + std::min(device_layers(2), below + 1) * layer_->kept_by_layer();
    m.working = mlp_moment();
    if (attention_moment() + key_value_buffers() > m.working) {
      m.working = attention_moment();
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
    int64_t gradients =
        p_.accumulates || sharded() ? accumulated_gradients() : done * layer_parameters_ * master_;
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
    const int64_t outside = (parameters_ - layers() * layer_parameters_) * compute_;
    const int64_t base = adapters_->is_packed() ? share(outside, state.shard_ranks) +
                                                      layers() * adapters_->packed_layer()
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
      m.host_activations = (layers() - 1) * layer_->kept_by_layer();
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
    if (!casts_ || layer_->recomputes()) {
      return 0;
    }
    return layers_kept * compute_ *
           ((sharded() ? 0 : dense_layer_) + (experts_sharded() ? 0 : experts_layer_));
  }

  int64_t rope() const { return p_.tokens * c_.rope().head_dim * compute_; }
  // The final norm's input and output, and the rows of the entries.
  int64_t tail() const {
    return p_.tokens * (2 * c_.hidden_size * compute_ + sums_) +
           p_.entries * (c_.hidden_size * compute_ + 24);
  }

  // Of how many layers the device holds what they keep.
  int64_t device_layers(int64_t with_offload) const {
    return p_.activations.offload ? std::min(with_offload, layers()) : layers();
  }

  // While the MLP's backward runs.
  int64_t mlp_moment() const {
    const int64_t tile = has_experts_ ? 0 : p_.activations.mlp_tile_tokens;
    const int64_t s = p_.tokens, e = c_.hidden_size;
    const int64_t rows = tile > 0 ? std::min(tile, s) : s;
    const int64_t flowing = s * e * compute_ + layer_->mlp_flowing(rows);
    // The down projection's gradient; with tiles, those of all three and a tile's.
    const int64_t gradients = frozen()   ? adapters_->unpacked(mlp_matrix_)
                              : tile > 0 ? 5 * mlp_matrix_ * master_
                                         : mlp_matrix_ * (casts_ ? master_ : compute_);
    const int64_t tile_in_out = tile > 0 ? (s * e + 2 * rows * e) * compute_ : 0;
    const int64_t saved = layer_->saved_before_mlp() + layer_->mlp_saved(rows);
    // Without recomputation the layer's activations are among those kept.
    return layer_->recomputed(saved) + flowing + gradients + tile_in_out;
  }

  // While attention's backward runs: the MLP's activations are gone, its gradients exist.
  int64_t attention_moment() const {
    const int64_t e = c_.hidden_size, d = c_.head_dim;
    const int64_t s = p_.tokens, S = p_.share_tokens;
    const int64_t flowing = s * e * compute_ + S * p_.query_heads * d * (compute_ + sums_) +
                            S * 2 * p_.kv_heads * d * sums_;
    const int64_t gradients = frozen() ? 0 : 3 * mlp_matrix_ * master_;
    const int64_t freed = layer_->recomputes() ? 0 : layer_->mlp_saved(s);
    return layer_->recomputed(layer_->saved_before_mlp()) + flowing + gradients - freed;
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
  std::optional<LayerActivations> layer_;        // the largest layer
  bool has_experts_ = false;                     // that layer
  int64_t mlp_matrix_ = 0;                       // elements of its gate, of all experts
  // Elements that this rank computes with, its own experts among them: of the largest layer, and of
  // all.
  int64_t dense_layer_ = 0, experts_layer_ = 0, layer_parameters_ = 0;
  int64_t dense_ = 0, experts_ = 0, parameters_ = 0, head_parameters_ = 0;
};

}  // namespace

MemoryEstimate estimate_memory(const ModelConfig& config, const ComputeContext& context,
                               const PassShape& shape) {
  const Sizes sizes(config, context, shape);
  MemoryEstimate largest = sizes.at_head();
  const int64_t last = sizes.layers() - 1;
  for (const int64_t below : {last, std::min<int64_t>(1, last), int64_t{0}}) {
    const MemoryEstimate moment = sizes.in_layer(below);
    if (moment.peak() > largest.peak()) {
      largest = moment;
    }
  }
  return largest;
}

}  // namespace ringside::engine
