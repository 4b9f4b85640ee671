#include "engine/runner/memory_estimate.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "engine/models/decoder.h"
#include "engine/nn/delta_rule.h"

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

// A gated delta net's tensors, without the norm before it. Bytes.
class DeltaNetMemory {
 public:
  DeltaNetMemory(const ModelConfig& config, const PassShape& shape, int64_t compute, int64_t sums,
                 c10::DeviceType device)
      : net_(config.delta_net),
        shape_(config.delta_net.shape),
        d_(shape.delta),
        tokens_(shape.tokens),
        share_(shape.share_tokens),
        heads_(shape.delta.groups * config.delta_net.shape.values_per_group()),
        compute_(compute),
        sums_(sums),
        device_(device) {}

  // What the forward saves.
  int64_t saved() const { return conv_in() + of_rows() + of_rule() + after_rule(); }

  // What the backward of the rule, and that of the convolution, have beside what the forward saved
  // and is not freed by then.
  int64_t rule_backward() const {
    const int64_t row_gradients =
        share_ * (2 * d_.groups * shape_.key_dim + 2 * heads_ * shape_.value_dim) * compute_ +
        share_ * 2 * heads_ * sums_;
    const int64_t states = 3 * d_.runs * heads_ * shape_.key_dim * shape_.value_dim * sums_;
    return gate_gradient() + row_gradients + states + block() - after_rule();
  }
  int64_t conv_backward() const {
    const int64_t rows = share_ * d_.groups * shape_.conv_channels();
    const int64_t convolution = rows * (6 * sums_ + (compute_ < sums_ ? compute_ : 0));
    return gate_gradient() + share_ * d_.groups * shape_.channels() * compute_ + convolution -
           of_rows() - of_rule() - after_rule();
  }

  // Index tables of the micro-batch, which all layers share.
  int64_t tables() const {
    const int64_t slots = (d_.chunks + d_.mapped_chunks) * ChunkTables::kChunk;
    return slots * 9 + (share_ + d_.mapped_rows) * 16 + share_ * 8;
  }

 private:
  bool is_wide() const { return compute_ == sums_; }
  int64_t out() const { return tokens_ * shape_.value_heads * shape_.value_dim; }  // elements
  int64_t conv_in() const { return share_ * d_.groups * shape_.conv_channels() * compute_; }
  // The convolution's result, or q and k of it cast for their lengths; inverse lengths; gates.
  int64_t of_rows() const {
    const bool keeps_result = is_wide() || d_.groups == 1;
    return (keeps_result ? conv_in() : 0) +
           share_ * d_.groups * ((is_wide() ? 0 : 2 * shape_.key_dim) + 4) * sums_ +
           2 * share_ * heads_ * sums_;
  }
  // Its inputs, and the states at the starts of chunks. The same again for the maps, whose values
  // are as wide as the state and its transition.
  int64_t of_rule() const {
    const int64_t k = shape_.key_dim, v = shape_.value_dim;
    const int64_t values = d_.groups > 1 ? share_ * heads_ * v * compute_ : 0;
    const int64_t rule = 2 * share_ * d_.groups * k * compute_ + values +
                         2 * share_ * heads_ * sums_ + d_.chunks * heads_ * k * v * sums_;
    const bool all_mapped = d_.mapped_rows == share_;
    const int64_t copies =
        all_mapped ? 0 : d_.mapped_rows * (d_.groups * k * compute_ + 2 * heads_ * sums_);
    const int64_t maps = d_.mapped_rows * heads_ * (v + k) * compute_ + copies +
                         d_.mapped_chunks * heads_ * k * (v + k) * sums_;
    return rule + maps;
  }
  // The rule's result, its norm, the gate before and after SiLU, and their product.
  int64_t after_rule() const {
    // The gate before SiLU is a view of the whole projection, unless it is copied or cast.
    const bool is_view = is_wide() && !net_.grouped_projections;
    const int64_t beside = is_view ? tokens_ * shape_.key_heads * shape_.channels() * compute_ : 0;
    return out() * (3 * compute_ + 2 * sums_) + tokens_ * shape_.value_heads * sums_ + beside;
  }
  int64_t gate_gradient() const { return out() * compute_; }
  // Matrices of the chunks that are computed together, with their gradients.
  int64_t block() const {
    constexpr int64_t c = ChunkTables::kChunk;
    const int64_t k = shape_.key_dim, v = shape_.value_dim;
    const int64_t chunks = std::min(d_.chunks, delta_chunks_at_once(heads_, k, v, device_));
    return chunks * heads_ * (12 * c * k + 6 * c * v + 10 * c * c + 2 * k * v) * sums_;
  }

  const DeltaNetConfig& net_;
  const sp::StateShape& shape_;
  const DeltaShape& d_;
  int64_t tokens_, share_;  // rows of this rank and of its ring share
  int64_t heads_;           // value heads of this rank
  int64_t compute_, sums_;
  c10::DeviceType device_;
};

// What one layer keeps for its backward, and what flows through that. Bytes.
class LayerActivations {
 public:
  // compute, sums: bytes of a number. adapters: nullptr without.
  LayerActivations(const ModelConfig& config, const PassShape& shape, int64_t compute, int64_t sums,
                   c10::DeviceType device, const AdapterSizes* adapters, bool has_experts,
                   bool has_delta_net)
      : c_(config),
        p_(shape),
        compute_(compute),
        sums_(sums),
        device_(device),
        adapters_(adapters),
        has_experts_(has_experts),
        has_delta_net_(has_delta_net) {}

  bool has_experts() const { return has_experts_; }
  bool has_delta_net() const { return has_delta_net_; }
  DeltaNetMemory delta_net() const { return {c_, p_, compute_, sums_, device_}; }

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
    if (has_delta_net_) {
      return norms + delta_net().saved();
    }
    if (c_.has_latent_attention()) {
      return norms + latent_saved() + attention_results();
    }
    // Gated attention has queries and keys copied out of its projection, the gate's sigmoid, and
    // the product with it.
    const int64_t qkv = s * (heads + (c_.attention.gated ? 1 : 2) * kv) * d * compute_;
    const int64_t gated = c_.attention.gated ? 2 * s * heads * d * compute_ : 0;
    const int64_t rotated = s * (heads + kv) * (d * compute_ + (c_.attention.qk_norm ? sums_ : 0));
    // Without an exchange the queries are a view of what was rotated; keys and values are joined.
    const int64_t joined = p_.share_tokens * 2 * p_.kv_heads * d * compute_;
    const int64_t attention =
        exchanges() ? exchanged_inputs() + exchanged_output() - s * (heads + kv) * d * compute_
                    : joined;
    return norms + qkv + gated + rotated + attention + attention_results() +
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
  // A delta net keeps nothing for its second run.
  int64_t kept_attention() const {
    if (has_delta_net_) {
      return 0;
    }
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
  c10::DeviceType device_;
  const AdapterSizes* adapters_;
  bool has_experts_, has_delta_net_;
};

// What all layers keep. Layers with attention count as the largest of them. Bytes.
class KeptByLayers {
 public:
  KeptByLayers(const ModelConfig& config, const ActivationOptions& options,
               LayerActivations attention, LayerActivations delta)
      : c_(config), options_(options), attention_(attention), delta_(delta) {}

  const LayerActivations& at(int64_t i) const { return is_delta_net(c_, i) ? delta_ : attention_; }
  bool recomputes() const { return options_.recompute != Recompute::kNone; }
  // Of layers [begin, end).
  int64_t sum(int64_t begin, int64_t end) const {
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      sum += at(i).kept_by_layer();
    }
    return sum;
  }
  // On the device, of layers up to `last`: with an offload, of the `with_offload` last ones.
  int64_t on_device(int64_t last, int64_t with_offload) const {
    const int64_t first = options_.offload ? last + 1 - with_offload : 0;
    return sum(std::max<int64_t>(0, first), last + 1);
  }
  // Tables that the layers share.
  int64_t tables() const { return c_.has_delta_net() ? delta_.delta_net().tables() : 0; }

 private:
  const ModelConfig& c_;
  const ActivationOptions& options_;
  LayerActivations attention_, delta_;
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
    const bool has_experts = config.has_experts(largest);
    const int64_t mine = share(config.experts.count, shape.state.expert_ranks);
    mlp_matrix_ = has_experts ? mine * config.experts.intermediate_size * config.hidden_size
                              : config.intermediate_size * config.hidden_size;
    dense_layer_ = elements(decoder_layer_specs(config, largest));
    int64_t whole = 0;  // elements of all experts of all layers
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      int64_t experts = 0;
      for (const std::vector<ParamSpec>& specs : layer_experts_specs(config, layer)) {
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
                                       ? elements(decoder_layer_specs(config, layer)) +
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
  int64_t dense_ = 0, experts_ = 0, parameters_ = 0, head_parameters_ = 0;
};

}  // namespace

DeltaShape delta_shape(const sp::StatePlan& plan) {
  DeltaShape shape;
  shape.groups = plan.own_groups().size();
  shape.runs = static_cast<int64_t>(plan.runs.size());
  const auto chunks_of = [](const sp::StatePlan::Run& run) {
    return std::max<int64_t>(1, share(run.rows.size(), ChunkTables::kChunk));
  };
  for (const sp::StatePlan::Run& run : plan.runs) {
    shape.chunks += chunks_of(run);
  }
  if (plan.maps_travel) {
    shape.mapped_runs = static_cast<int64_t>(plan.mapped_runs.size());
    for (const int64_t run : plan.mapped_runs) {
      shape.mapped_rows += plan.runs[run].rows.size();
      shape.mapped_chunks += chunks_of(plan.runs[run]);
    }
  }
  return shape;
}

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
