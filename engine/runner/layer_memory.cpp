#include "engine/runner/layer_memory.h"

#include <algorithm>

#include "engine/layers/decoder_layer.h"
#include "engine/nn/delta_rule.h"

namespace ringside::engine {

int64_t elements(const std::vector<ParamSpec>& specs) {
  int64_t sum = 0;
  for (const ParamSpec& spec : specs) {
    sum += spec.numel();
  }
  return sum;
}

int64_t share(int64_t whole, int64_t ranks) { return (whole + ranks - 1) / ranks; }

int64_t packed_layer_bytes(const std::vector<ParamSpec>& specs, QuantisedFormat format,
                           int64_t compute) {
  int64_t bytes = 0;
  for (const ParamSpec& spec : specs) {
    bytes += spec.shape.size() == 2
                 ? QuantisedMatrix::packed_bytes(spec.shape[0], spec.shape[1], format)
                 : spec.numel() * compute;
  }
  return bytes;
}

AdapterSizes::AdapterSizes(const ModelConfig& config, const AdapterShape& shape, int64_t compute,
                           int64_t master)
    : c_(config),
      base_(shape.base),
      factors_(Adapters::factors(config, shape.options)),
      compute_(compute),
      master_(master) {}

int64_t AdapterSizes::masters() const { return elements(factors_) * master_; }

int64_t AdapterSizes::saved_by_layer(int64_t tokens) const {
  int64_t columns = 0;
  for (const ParamSpec& spec : factors_) {
    columns += spec.name.ends_with("lora_A.weight") ? spec.shape[0] : 0;
  }
  const int64_t casts =
      compute_ != master_ ? elements(factors_) * compute_ / c_.num_hidden_layers : 0;
  return columns / c_.num_hidden_layers * tokens * compute_ + casts;
}

bool AdapterSizes::is_packed() const { return base_.has_value(); }

int64_t AdapterSizes::packed_layers() const {
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
    bytes += packed_layer_bytes(DecoderLayer(c_, layer).specs(), *base_, compute_);
  }
  return bytes;
}

int64_t AdapterSizes::unpacked(int64_t matrix) const { return base_ ? 4 * matrix * compute_ : 0; }

DeltaNetMemory::DeltaNetMemory(const ModelConfig& config, const PassShape& shape, int64_t compute,
                               int64_t sums, c10::DeviceType device)
    : net_(config.delta_net),
      shape_(config.delta_net.shape),
      d_(shape.delta),
      tokens_(shape.tokens),
      share_(shape.share_tokens),
      heads_(shape.delta.groups * config.delta_net.shape.values_per_group()),
      compute_(compute),
      sums_(sums),
      device_(device) {}

int64_t DeltaNetMemory::saved() const { return conv_in() + of_rows() + of_rule() + after_rule(); }

int64_t DeltaNetMemory::rule_backward() const {
  const int64_t row_gradients =
      share_ * (2 * d_.groups * shape_.key_dim + 2 * heads_ * shape_.value_dim) * compute_ +
      share_ * 2 * heads_ * sums_;
  const int64_t states = 3 * d_.runs * heads_ * shape_.key_dim * shape_.value_dim * sums_;
  return gate_gradient() + row_gradients + states + block() - after_rule();
}

int64_t DeltaNetMemory::conv_backward() const {
  const int64_t rows = share_ * d_.groups * shape_.conv_channels();
  const int64_t convolution = rows * (6 * sums_ + (compute_ < sums_ ? compute_ : 0));
  return gate_gradient() + share_ * d_.groups * shape_.channels() * compute_ + convolution -
         of_rows() - of_rule() - after_rule();
}

int64_t DeltaNetMemory::tables() const {
  const int64_t slots = (d_.chunks + d_.mapped_chunks) * ChunkTables::kChunk;
  return slots * 9 + (share_ + d_.mapped_rows) * 16 + share_ * 8;
}

bool DeltaNetMemory::is_wide() const { return compute_ == sums_; }

int64_t DeltaNetMemory::out() const { return tokens_ * shape_.value_heads * shape_.value_dim; }

int64_t DeltaNetMemory::conv_in() const {
  return share_ * d_.groups * shape_.conv_channels() * compute_;
}

int64_t DeltaNetMemory::of_rows() const {
  const bool keeps_result = is_wide() || d_.groups == 1;
  return (keeps_result ? conv_in() : 0) +
         share_ * d_.groups * ((is_wide() ? 0 : 2 * shape_.key_dim) + 4) * sums_ +
         2 * share_ * heads_ * sums_;
}

int64_t DeltaNetMemory::of_rule() const {
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

int64_t DeltaNetMemory::after_rule() const {
  // The gate before SiLU is a view of the whole projection, unless it is copied or cast.
  const bool is_view = is_wide() && !net_.grouped_projections;
  const int64_t beside = is_view ? tokens_ * shape_.key_heads * shape_.channels() * compute_ : 0;
  return out() * (3 * compute_ + 2 * sums_) + tokens_ * shape_.value_heads * sums_ + beside;
}

int64_t DeltaNetMemory::gate_gradient() const { return out() * compute_; }

int64_t DeltaNetMemory::block() const {
  constexpr int64_t c = ChunkTables::kChunk;
  const int64_t k = shape_.key_dim, v = shape_.value_dim;
  const int64_t chunks = std::min(d_.chunks, delta_chunks_at_once(heads_, k, v, device_));
  return chunks * heads_ * (12 * c * k + 6 * c * v + 10 * c * c + 2 * k * v) * sums_;
}

LayerActivations::LayerActivations(const ModelConfig& config, const PassShape& shape,
                                   int64_t compute, int64_t sums, c10::DeviceType device,
                                   const AdapterSizes* adapters, bool has_experts,
                                   bool has_delta_net)
    : c_(config),
      p_(shape),
      compute_(compute),
      sums_(sums),
      device_(device),
      adapters_(adapters),
      has_experts_(has_experts),
      has_delta_net_(has_delta_net) {}

DeltaNetMemory LayerActivations::delta_net() const { return {c_, p_, compute_, sums_, device_}; }

bool LayerActivations::recomputes() const { return p_.activations.recompute != Recompute::kNone; }

bool LayerActivations::exchanges() const { return p_.query_heads < c_.num_attention_heads; }

int64_t LayerActivations::attention_results() const {
  return p_.share_tokens * p_.query_heads * (c_.head_dim * compute_ + sums_);
}

int64_t LayerActivations::exchanged_inputs() const {
  return p_.share_tokens * (p_.query_heads + 2 * p_.kv_heads) * c_.head_dim * compute_;
}

int64_t LayerActivations::exchanged_output() const {
  return p_.tokens * c_.num_attention_heads * c_.head_dim * compute_;
}

int64_t LayerActivations::mlp_saved(int64_t rows) const {
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

int64_t LayerActivations::mlp_flowing(int64_t rows) const {
  return has_experts_ ? rows * c_.experts.per_token *
                            (2 * c_.experts.intermediate_size * compute_ + c_.hidden_size * sums_)
                      : 2 * rows * c_.intermediate_size * compute_;
}

int64_t LayerActivations::saved_before_mlp() const {
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

int64_t LayerActivations::latent_saved() const {
  const LatentAttentionConfig& latent = c_.latent;
  const int64_t s = p_.tokens, d = c_.head_dim, heads = c_.num_attention_heads;
  const int64_t ranks = (latent.q_rank > 0 ? 2 * latent.q_rank : 0) + 2 * latent.kv_rank;
  const int64_t latents = s * (ranks * compute_ + (latent.q_rank > 0 ? 2 : 1) * sums_);
  const int64_t turned = s * (heads + 1) * latent.rope_dim * compute_;
  const int64_t joined = p_.share_tokens * 2 * p_.kv_heads * d * compute_;
  const int64_t inputs = exchanges() ? exchanged_inputs() : s * heads * d * compute_ + joined;
  return latents + turned + inputs + s * heads * latent.value_dim * compute_;
}

int64_t LayerActivations::kept_by_layer() const {
  // Recomputed layers keep their routes.
  const int64_t input =
      p_.tokens * (c_.hidden_size * compute_ + (has_experts_ ? c_.experts.per_token * 8 : 0));
  switch (p_.activations.recompute) {
    case Recompute::kNone:
      return saved_before_mlp() + mlp_saved(p_.tokens);
    case Recompute::kFull:
      return input;
    case Recompute::kSelective:
      return input + kept_attention();
  }
  return 0;
}

int64_t LayerActivations::kept_attention() const {
  if (has_delta_net_) {
    return 0;
  }
  return attention_results() + (exchanges() ? exchanged_inputs() + exchanged_output() : 0);
}

int64_t LayerActivations::recomputed(int64_t saved) const {
  if (!recomputes()) {
    return 0;
  }
  const bool selective = p_.activations.recompute == Recompute::kSelective;
  return saved - (selective ? kept_attention() : 0);
}

KeptByLayers::KeptByLayers(const ModelConfig& config, const ActivationOptions& options,
                           LayerActivations attention, LayerActivations delta)
    : c_(config), options_(options), attention_(attention), delta_(delta) {}

const LayerActivations& KeptByLayers::at(int64_t i) const {
  return is_delta_net(c_, i) ? delta_ : attention_;
}

bool KeptByLayers::recomputes() const { return options_.recompute != Recompute::kNone; }

int64_t KeptByLayers::sum(int64_t begin, int64_t end) const {
  int64_t sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    sum += at(i).kept_by_layer();
  }
  return sum;
}

int64_t KeptByLayers::on_device(int64_t last, int64_t with_offload) const {
  const int64_t first = options_.offload ? last + 1 - with_offload : 0;
  return sum(std::max<int64_t>(0, first), last + 1);
}

int64_t KeptByLayers::tables() const {
  return c_.has_delta_net() ? delta_.delta_net().tables() : 0;
}

}  // namespace ringside::engine
