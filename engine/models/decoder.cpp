#include "engine/models/decoder.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "engine/device/side_stream.h"
#include "engine/nn/linear.h"
#include "engine/nn/recompute.h"
#include "engine/nn/rms_norm.h"

namespace ringside::engine {
namespace {

void check_config(const ModelConfig& c) {
  const std::pair<const char*, int64_t> sizes[] = {{"vocab_size", c.vocab_size},
                                                   {"hidden_size", c.hidden_size},
                                                   {"intermediate_size", c.intermediate_size},
                                                   {"num_hidden_layers", c.num_hidden_layers},
                                                   {"num_attention_heads", c.num_attention_heads},
                                                   {"num_key_value_heads", c.num_key_value_heads},
                                                   {"head_dim", c.head_dim}};
  for (const auto& [name, size] : sizes) {
    TORCH_CHECK(size > 0, "model config: ", name, " must be positive, got ", size);
  }
  TORCH_CHECK(c.num_attention_heads % c.num_key_value_heads == 0,
              "model config: num_attention_heads ", c.num_attention_heads,
              " is not a multiple of num_key_value_heads ", c.num_key_value_heads);
  TORCH_CHECK(c.head_dim % 2 == 0, "model config: rotary embedding needs an even head_dim, got ",
              c.head_dim);
  TORCH_CHECK(c.rope_theta > 0, "model config: rope_theta must be positive, got ", c.rope_theta);
  TORCH_CHECK(c.rms_norm_eps >= 0, "model config: rms_norm_eps must not be negative, got ",
              c.rms_norm_eps);
}

struct UnitSpecs {
  std::string name;
  std::vector<ParamSpec> specs;
};

// The units of Decoder::units(), in order.
std::vector<UnitSpecs> unit_specs(const ModelConfig& config) {
  const int64_t v = config.vocab_size, e = config.hidden_size;
  std::vector<UnitSpecs> units{{"embedding", {{"model.embed_tokens.weight", {v, e}}}}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    units.push_back({"layers." + std::to_string(i), decoder_layer_specs(config, i)});
  }
  units.push_back({"final_norm", {{"model.norm.weight", {e}}}});
  if (!config.tie_word_embeddings) {
    units.push_back({"head", {{"lm_head.weight", {v, e}}}});
  }
  return units;
}

void check_tokens(const at::Tensor& ids_s, const at::Tensor& positions_s) {
  TORCH_CHECK(ids_s.dim() == 1 && ids_s.scalar_type() == at::kLong &&
                  positions_s.sizes() == ids_s.sizes() && positions_s.scalar_type() == at::kLong,
              "decoder: ids and positions must be int64 [s], got ", ids_s.sizes(), " ",
              ids_s.scalar_type(), " and ", positions_s.sizes(), " ", positions_s.scalar_type());
}

}  // namespace

Decoder::Decoder(ModelConfig config, const ComputeContext& context)
    : config_(std::move(config)), context_(context) {
  check_config(config_);
  rope_inverse_frequencies_d_ =
      rope_inverse_frequencies(config_.head_dim, config_.rope_theta, config_.rope_scaling)
          .to(context_.device);
  for (UnitSpecs& unit : unit_specs(config_)) {
    units_.push_back(std::make_unique<ParamUnit>(unit.name, std::move(unit.specs), context_));
  }
}

std::vector<ParamSpec> decoder_specs(const ModelConfig& config) {
  std::vector<ParamSpec> specs;
  for (UnitSpecs& unit : unit_specs(config)) {
    std::move(unit.specs.begin(), unit.specs.end(), std::back_inserter(specs));
  }
  return specs;
}

void Decoder::init_random(uint64_t seed, double std) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (ParamUnit* unit : units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      const ParamSpec& spec = unit->specs()[i];
      if (spec.shape.size() > 1) {
        // Drawn in fp64, so that decoders of either master dtype start from the same model, and
        // whole on every rank, so that shards do too.
        unit->assign(i, at::normal(0.0, std, spec.shape, generator, at::kDouble));
      } else {
        unit->assign(i, at::full(spec.shape, spec.name.ends_with("bias") ? 0.0 : 1.0, at::kDouble));
      }
    }
    unit->changed();
  }
}

void Decoder::copy_parameters_from(const Decoder& other) {
  const std::vector<ParamUnit*> mine = units();
  const std::vector<const ParamUnit*> theirs = other.units();
  TORCH_CHECK(mine.size() == theirs.size(), "copy_parameters_from: this decoder has ", mine.size(),
              " parameter units, the other ", theirs.size());
  for (std::size_t u = 0; u < mine.size(); ++u) {
    TORCH_CHECK(mine[u]->specs() == theirs[u]->specs(), "copy_parameters_from: unit ",
                mine[u]->name(), " differs in a parameter's name or shape");
  }
  const at::NoGradGuard no_grad;
  for (std::size_t u = 0; u < mine.size(); ++u) {
    TORCH_CHECK(mine[u]->flat().sizes() == theirs[u]->flat().sizes(), "copy_parameters_from: unit ",
                mine[u]->name(), " is sharded differently");
    mine[u]->flat().copy_(theirs[u]->flat());
    mine[u]->changed();
  }
}

void Decoder::prefetch_layer(int64_t index) const {
  if (index >= 0 && index < config_.num_hidden_layers) {
    layer(index).prefetch(context_.compute);
  }
}

void Decoder::set_activation_options(const ActivationOptions& options) {
  const bool recomputes = options.recompute != Recompute::kNone;
  TORCH_CHECK(recomputes || (!options.offload && options.mlp_tile_tokens == 0),
              "decoder: activations can be offloaded, or the MLP tiled, only when layers are "
              "recomputed");
  TORCH_CHECK(options.mlp_tile_tokens >= 0 && options.logit_chunk_bytes > 0,
              "decoder: MLP tiles of ", options.mlp_tile_tokens, " tokens and logit chunks of ",
              options.logit_chunk_bytes, " bytes; expected at least 0 and 1");
  activations_ = options;
  if (options.offload && !offload_stream_) {
    offload_stream_ = make_side_stream(context_.device);
  }
}

at::Tensor Decoder::run_layer(int64_t index, const at::Tensor& hidden_sE, const RopeTables& rope,
                              AttentionBackend& attention, LayerChain& chain) const {
  const ParamUnit& unit = layer(index);
  const UnitShapes cut = layer_shapes(config_, context_.compute);
  const bool recomputes = activations_.recompute != Recompute::kNone && at::GradMode::is_enabled();
  RecomputeOptions kept{nullptr, chain.offload};
  std::shared_ptr<AttentionBackend> keeping;
  if (recomputes && activations_.recompute == Recompute::kSelective) {
    kept.results = std::make_shared<sp::KeptResults>();
    keeping = attention.keeping(kept.results);
  }
  const auto run = [this, index, rope, &attention, keeping](const std::vector<Weight>& matrices,
                                                            const at::Tensor& hidden) {
    // With tiles there are two runs, and autograd is on in the second.
    const MlpTiles tiles{activations_.mlp_tile_tokens, !at::GradMode::is_enabled()};
    return decoder_layer(config_, layer_weights(config_, matrices), index, hidden, rope,
                         keeping ? *keeping : attention, tiles);
  };
  if (recomputes) {
    const auto segment = [=, this, &unit](const at::Tensor& hidden) {
      const std::vector<Weight> matrices = unit.materialize(cut.dtype, cut.shapes);
      // In the backward, where autograd is on, the layers come in the opposite order.
      prefetch_layer(at::GradMode::is_enabled() ? index - 1 : index + 1);
      return run(matrices, hidden);
    };
    return recompute_in_backward(hidden_sE, unit.flat(), segment, kept);
  }
  const auto run_and_prefetch = [&](const std::vector<Weight>& matrices, const at::Tensor& h) {
    prefetch_layer(index + 1);
    return std::vector<at::Tensor>{run(matrices, h)};
  };
  return run_with_weights(unit, cut, hidden_sE, run_and_prefetch, chain.scopes).front();
}

at::Tensor Decoder::forward(const at::Tensor& ids_s, const at::Tensor& positions_s,
                            AttentionBackend& attention) const {
  check_tokens(ids_s, positions_s);
  OverlappedAttention* overlapped = attention.overlapped();
  const RopeTables rope = rope_tables(
      rope_inverse_frequencies_d_, overlapped != nullptr ? overlapped->positions_S() : positions_s,
      context_.compute);
  at::Tensor hidden_sE = embed(embedding().materialize(context_.compute)[0], ids_s);
  prefetch_layer(0);
  LayerChain chain;
  if (activations_.offload) {
    chain.offload = std::make_shared<ActivationOffload>(offload_stream_);
  }
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    hidden_sE = run_layer(i, hidden_sE, rope, attention, chain);
  }
  return rms_norm(hidden_sE, final_norm().materialize(context_.compute)[0], config_.rms_norm_eps,
                  config_.fp32_norms);
}

at::Tensor Decoder::forward(const DecoderWeights& weights, const at::Tensor& ids_s,
                            const at::Tensor& positions_s, AttentionBackend& attention) const {
  check_tokens(ids_s, positions_s);
  const at::NoGradGuard no_grad;
  const RopeTables rope = rope_tables(rope_inverse_frequencies_d_, positions_s, context_.compute);
  at::Tensor hidden_sE = at::embedding(weights.embedding_VE, ids_s);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    hidden_sE = decoder_layer(config_, weights.layers[i], i, hidden_sE, rope, attention);
  }
  return rms_norm(hidden_sE, weights.final_norm_E, config_.rms_norm_eps, config_.fp32_norms);
}

DecoderWeights Decoder::materialize() const {
  const at::NoGradGuard no_grad;
  DecoderWeights weights;
  weights.embedding_VE = embedding().materialize(context_.compute)[0].value;
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    weights.layers.push_back(materialize_layer(config_, layer(i), context_.compute));
  }
  weights.final_norm_E = final_norm().materialize(context_.compute)[0].value;
  weights.head_VE = config_.tie_word_embeddings ? weights.embedding_VE
                                                : head().materialize(context_.compute)[0].value;
  return weights;
}

TokenScores Decoder::score(const at::Tensor& hidden_nE, const at::Tensor& targets_n,
                           const at::Tensor& temperature_n) const {
  const UnitShapes cut{context_.compute, {head().specs().front().shape}};
  const auto run = [&](const std::vector<Weight>& weights, const at::Tensor& hidden) {
    TokenScores scores = token_scores(
        hidden, weights[0], targets_n, temperature_n,
        token_score_rows(hidden.options(), config_.vocab_size, activations_.logit_chunk_bytes));
    return std::vector<at::Tensor>{std::move(scores.logprobs_n), std::move(scores.entropy_n)};
  };
  ScopeChain chain;
  const auto scores = run_with_weights(head(), cut, hidden_nE, run, chain);
  return {scores[0], scores[1]};
}

at::Tensor Decoder::logits(const at::Tensor& hidden_nE) const {
  const at::NoGradGuard no_grad;
  const at::Tensor logits_nV = at::linear(hidden_nE, head().materialize(context_.compute)[0].value);
  return context_.compute == at::kDouble ? logits_nV : logits_nV.to(at::kFloat);
}

std::vector<ParamUnit*> Decoder::units() {
  std::vector<ParamUnit*> all;
  for (const auto& unit : units_) {
    all.push_back(unit.get());
  }
  return all;
}

std::vector<const ParamUnit*> Decoder::units() const {
  std::vector<const ParamUnit*> all;
  for (const auto& unit : units_) {
    all.push_back(unit.get());
  }
  return all;
}

}  // namespace ringside::engine
