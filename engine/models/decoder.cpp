#include "engine/models/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include "engine/device/side_stream.h"
#include "engine/layers/decoder_layer.h"
#include "engine/layers/layer_pass.h"
#include "engine/models/random_weights.h"
#include "engine/models/sampling_panels.h"
#include "engine/nn/linear.h"
#include "engine/nn/recompute.h"
#include "engine/ops/rms_norm.h"
#include "engine/params/sharding.h"
#include "sp/layout/range.h"

namespace ringside::engine {
namespace {

ModelConfig checked(ModelConfig c, const WeightStorage& storage) {
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
  TORCH_CHECK(c.blocks.empty() || static_cast<int64_t>(c.blocks.size()) == c.num_hidden_layers,
              "model config: ", c.blocks.size(), " kinds of layers for ", c.num_hidden_layers,
              " layers");
  TORCH_CHECK(c.attention.rotary_dim % 2 == 0 && c.attention.rotary_dim <= c.head_dim,
              "model config: RoPE turns ", c.attention.rotary_dim, " of ", c.head_dim,
              " components");
  TORCH_CHECK(c.rope().head_dim % 2 == 0,
              "model config: rotary embedding needs an even number of components, got ",
              c.rope().head_dim);
  TORCH_CHECK(c.rope_theta > 0, "model config: rope_theta must be positive, got ", c.rope_theta);
  TORCH_CHECK(c.rms_norm_eps >= 0, "model config: rms_norm_eps must not be negative, got ",
              c.rms_norm_eps);
  if (storage.projections) {
    const Support packed = supports(c, Feature::kPackedBase);
    TORCH_CHECK(packed, "decoder: ", packed.reason());
  }
  return c;
}

std::string describe(const Stage& stage) {
  return "decoder: the stage of layers " + std::to_string(stage.layers.begin) + " to " +
         std::to_string(stage.layers.end);
}

// Whether they are int64 and one for each token, or three in a model that takes images.
bool are_positions(const ModelConfig& config, const at::Tensor& positions) {
  return positions.scalar_type() == at::kLong &&
         (positions.dim() == 1 ||
          (config.vision && positions.dim() == 2 && positions.size(0) == 3));
}

void check_input(const Decoder& decoder, const at::Tensor& input, const at::Tensor& positions) {
  const bool is_long = are_positions(decoder.config(), positions);
  if (decoder.stage().embeds) {
    TORCH_CHECK(is_long && input.dim() == 1 && input.size(0) == positions.size(-1) &&
                    input.scalar_type() == at::kLong,
                "decoder: ids and positions must be int64 [s]",
                decoder.config().vision ? ", or positions [3, s]" : "", ", got ", input.sizes(),
                " ", input.scalar_type(), " and ", positions.sizes(), " ", positions.scalar_type());
    return;
  }
  const int64_t hidden = decoder.config().hidden_size;
  const int64_t tokens = is_long ? positions.size(-1) : 0;
  const RowParts parts = row_parts(decoder.context(), tokens);
  const int64_t rows = parts.is_cut() ? parts.own().size() : tokens;
  TORCH_CHECK(is_long && input.dim() == 2 && input.size(0) == rows && input.size(1) == hidden &&
                  input.scalar_type() == decoder.compute_dtype(),
              describe(decoder.stage()), " does not embed; expected hidden states ",
              decoder.compute_dtype(), " [", rows, ", ", hidden, "] and positions int64 [s], got ",
              input.sizes(), " ", input.scalar_type(), " and ", positions.sizes(), " ",
              positions.scalar_type());
}

void check_scores(const Stage& stage) {
  TORCH_CHECK(stage.scores, describe(stage), " has no head");
}

// Hidden states before the first layer, of embeddings. transformers holds the factor in fp32 and
// rounds it to the compute dtype.
at::Tensor scaled(const ModelConfig& config, at::ScalarType compute,
                  const at::Tensor& embedded_sE) {
  if (config.multipliers.embedding != 1.0) {
    return embedded_sE * config.multipliers.embedding;
  }
  if (!config.scaled_embedding) {
    return embedded_sE;
  }
  const double root = std::sqrt(static_cast<double>(config.hidden_size));
  const double factor = at::scalar_tensor(root, at::kFloat).to(compute).item<double>();
  return embedded_sE * factor;
}

// The adapters' leaf of each layer of the stage, undefined ones without adapters.
std::vector<at::Tensor> leaves_of_adapters(const Adapters* adapters, const Stage& stage) {
  return adapters != nullptr ? adapters->split_layers()
                             : std::vector<at::Tensor>(stage.layers.size());
}

// Layers with experts before the stage.
int64_t expert_layers_before(const ModelConfig& config, const Stage& stage) {
  return std::ranges::count_if(expert_layers(config),
                               [&](int64_t layer) { return layer < stage.layers.begin; });
}

// What the gradients of a layer's parameters arrive at.
std::vector<at::Tensor> leaves_of_layer(const DecoderUnits& units, int64_t index,
                                        const at::Tensor& adapter_leaf) {
  if (adapter_leaf.defined()) {
    return {adapter_leaf};
  }
  std::vector<at::Tensor> leaves;
  for (const ParamUnit* unit : units.layer_units(index)) {
    leaves.push_back(unit->flat());
  }
  for (const ParamUnit* experts : units.experts(index)) {
    leaves.push_back(experts->flat());
  }
  return leaves;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const ComputeContext& context,
                 const WeightStorage& storage, const FillUnit& fill)
    : Decoder(config, whole_stage(config), context, storage, fill) {}

Decoder::Decoder(ModelConfig config, const Stage& stage, const ComputeContext& context,
                 const WeightStorage& storage, const FillUnit& fill)
    : config_(checked(std::move(config), storage)),
      stage_(stage),
      context_(context),
      units_(config_, stage_, context_, storage, [&](ParamUnit& unit, const DecoderLayer* layer) {
        if (fill) {
          fill(unit);
        }
        unit.changed();
        if (storage.projections && layer != nullptr) {
          quantised_.push_back(
              std::make_shared<const QuantisedLayer>(*layer, unit, *storage.projections, context_));
          unit.release();
        }
      }) {
  rope_frequencies_ = rope_frequencies(config_.rope());
  local_rope_frequencies_ = rope_frequencies(local_rope(config_));
  for (RopeFrequencies* one : {&rope_frequencies_, &local_rope_frequencies_}) {
    one->inverse_d = one->inverse_d.to(context_.device);
  }
  if (config_.vision) {
    rope_frequencies_.component_d =
        section_components(config_.vision->rope, rope_frequencies_.inverse_d.numel())
            .to(context_.device);
  }
}

Decoder::Decoder(const Decoder& other, ParametersOf /*tag*/)
    : config_(other.config_),
      stage_(other.stage_),
      context_(other.context_),
      activations_(other.activations_),
      offload_stream_(other.offload_stream_),
      rope_frequencies_(other.rope_frequencies_),
      local_rope_frequencies_(other.local_rope_frequencies_),
      quantised_(other.quantised_),
      units_(other.units_) {}

void Decoder::init_random(uint64_t seed, double std) {
  RandomWeights draw(config_, seed, std);
  for (ParamUnit* unit : units()) {
    draw(*unit);
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

Adapters& Decoder::add_adapters(AdapterOptions options) {
  TORCH_CHECK(adapters_ == nullptr, "decoder: it has adapters already");
  ComputeContext whole = unsharded_context(context_);
  whole.experts = context_.experts;
  adapters_ = std::make_unique<Adapters>(config_, stage_, std::move(options), whole);
  for (const auto& unit : units_.all()) {
    if (!unit->flat().is_meta()) {
      unit->freeze(context_.compute);
    }
  }
  return *adapters_;
}

std::unique_ptr<Decoder> Decoder::without_adapters() const {
  TORCH_CHECK(adapters_ != nullptr, "decoder: without adapters its parameters are not frozen");
  return std::unique_ptr<Decoder>(new Decoder(*this, ParametersOf{}));
}

namespace {

// All weights of a layer but adapters. quantised: null for one that is not.
std::vector<Weight> weights_of(const DecoderUnits& units, const QuantisedLayer* quantised,
                               int64_t index) {
  return quantised == nullptr ? units.layer_weights(index) : quantised->weights();
}

}  // namespace

struct Decoder::ForwardPass {
  Ropes ropes;
  AttentionBackend& attention;
  RowParts rows = {};
  ExpertNotes* experts = nullptr;
  ScopeChain scopes = {};
  std::shared_ptr<ActivationOffload> offload = nullptr;  // null without
  std::vector<at::Tensor> adapter_leaves = {};  // of each layer of the stage; undefined without
  int64_t expert_layer = 0;                     // the next one among the model's with experts
};

LayerPass Decoder::layer_pass(int64_t index, ForwardPass& pass, AttentionBackend& attention,
                              const std::shared_ptr<sp::KeptResults>& kept) const {
  LayerPass of_layer{{}, pass.ropes, attention};
  of_layer.rows = pass.rows;
  if (layer(index).channel_mixer().routing().experts > 0) {
    of_layer.experts = {context_.experts ? context_.experts->ranks : nullptr,
                        kept,
                        pass.experts,
                        index,
                        pass.expert_layer++,
                        units_.router_correction(index)};
  }
  return of_layer;
}

at::Tensor Decoder::run_layer(int64_t index, const at::Tensor& hidden_sE, ForwardPass& pass) const {
  const bool recomputes = activations_.recompute != Recompute::kNone && at::GradMode::is_enabled();
  const bool selective = activations_.recompute == Recompute::kSelective;
  RecomputeOptions kept{nullptr, pass.offload};
  std::shared_ptr<AttentionBackend> keeping;
  if (recomputes && (selective || layer(index).channel_mixer().routing().experts > 0)) {
    kept.results = std::make_shared<sp::KeptResults>();
    keeping = selective ? pass.attention.keeping(kept.results) : nullptr;
  }
  const at::Tensor adapter_leaf = pass.adapter_leaves[stage_.place(index)];
  // Copied, because a recomputed layer runs again when the forward is over.
  const LayerPass of_layer =
      layer_pass(index, pass, keeping ? *keeping : pass.attention, kept.results);
  const auto run = [this, index, adapter_leaf, keeping, of_layer](std::vector<Weight> weights,
                                                                  const at::Tensor& hidden) {
    if (adapter_leaf.defined()) {
      adapters_->attach(index, weights, adapter_leaf, context_.compute);
    }
    LayerPass now = of_layer;
    now.weights = weights;
    // With tiles there are two runs, and autograd is on in the second.
    now.tiles = {activations_.mlp_tile_tokens, !at::GradMode::is_enabled()};
    return layer(index).forward(hidden, now);
  };
  if (recomputes) {
    const auto segment = [this, run, index](const at::Tensor& hidden) {
      std::vector<Weight> weights = weights_of(units_, quantised(index), index);
      // In the backward, where autograd is on, the layers come in the opposite order.
      units_.prefetch_layer(at::GradMode::is_enabled() ? index - 1 : index + 1);
      return run(std::move(weights), hidden);
    };
    return recompute_in_backward(hidden_sE, leaves_of_layer(units_, index, adapter_leaf), segment,
                                 kept);
  }
  if (!quantised_.empty()) {
    return run(weights_of(units_, quantised(index), index), hidden_sE);
  }
  const auto segment = [&](const std::vector<Weight>& matrices, const at::Tensor& hidden) {
    units_.prefetch_layer(index + 1);
    return std::vector<at::Tensor>{run(layer(index).weights_of(matrices), hidden)};
  };
  return run_in_scopes(units_.scoped_units(index), hidden_sE, segment, pass.scopes).front();
}

Decoder::ForwardPass Decoder::forward_pass(const at::Tensor& positions, AttentionBackend& attention,
                                           ExpertNotes* experts) const {
  Ropes ropes{rope_tables(rope_frequencies_, positions, context_.compute)};
  if (std::ranges::any_of(config_.blocks, &BlockSpec::local_rope)) {
    ropes.local = rope_tables(local_rope_frequencies_, positions, context_.compute);
  }
  if (std::ranges::any_of(config_.blocks, &BlockSpec::no_rope)) {
    ropes.none = {at::ones_like(ropes.global.cos_s1d), at::zeros_like(ropes.global.sin_s1d)};
  }
  return {.ropes = std::move(ropes),
          .attention = attention,
          .rows = row_parts(context_, positions.size(-1)),
          .experts = experts,
          .expert_layer = expert_layers_before(config_, stage_)};
}

at::Tensor Decoder::forward(const at::Tensor& input, const at::Tensor& positions,
                            AttentionBackend& attention, ExpertNotes* experts,
                            const ImageRows& images) const {
  check_input(*this, input, positions);
  OverlappedAttention* overlapped = attention.overlapped();
  ForwardPass pass = forward_pass(overlapped != nullptr ? overlapped->positions_S() : positions,
                                  attention, experts);
  at::Tensor hidden_sE = input;
  if (stage_.embeds) {
    const Weight table = units_.embedding().gathered().materialize(context_.compute)[0];
    const VocabularyPart words = vocabulary_part(*this);
    hidden_sE = scaled(config_, context_.compute,
                       words.is_cut() ? scatter_rows(embed_part(table, input, words), pass.rows)
                                      : embed(table, input));
  }
  hidden_sE = put_images(hidden_sE, images, config_);
  units_.prefetch_layer(stage_.layers.begin);
  pass.adapter_leaves = leaves_of_adapters(adapters(), stage_);
  if (activations_.offload) {
    pass.offload = std::make_shared<ActivationOffload>(offload_stream_);
  }
  for (int64_t i = stage_.layers.begin; i < stage_.layers.end; ++i) {
    hidden_sE = add_deepstack(run_layer(i, hidden_sE, pass), images, i);
  }
  return stage_.scores
             ? rms_norm(hidden_sE, units_.final_norm().gathered().materialize(context_.compute)[0],
                        config_.norm_options())
             : hidden_sE;
}

at::Tensor Decoder::forward(const DecoderWeights& weights, const at::Tensor& input,
                            const at::Tensor& positions, AttentionBackend& attention,
                            ExpertNotes* experts, const ImageRows& images) const {
  check_input(*this, input, positions);
  const at::NoGradGuard no_grad;
  ForwardPass pass = forward_pass(positions, attention, experts);
  at::Tensor hidden_sE =
      stage_.embeds ? scaled(config_, context_.compute, at::embedding(weights.embedding_VE, input))
                    : input;
  hidden_sE = put_images(hidden_sE, images, config_);
  for (int64_t i = stage_.layers.begin; i < stage_.layers.end; ++i) {
    LayerPass of_layer = layer_pass(i, pass, attention, nullptr);
    of_layer.weights = weights.layers[stage_.place(i)];
    hidden_sE = add_deepstack(layer(i).forward(hidden_sE, of_layer), images, i);
  }
  return stage_.scores ? rms_norm(hidden_sE, weights.final_norm_E, config_.norm_options())
                       : hidden_sE;
}

DecoderWeights Decoder::materialize() const {
  const at::NoGradGuard no_grad;
  DecoderWeights weights;
  if (stage_.embeds) {
    weights.embedding_VE = units_.embedding().gathered().materialize(context_.compute)[0].value;
  }
  const std::vector<at::Tensor> leaves = leaves_of_adapters(adapters(), stage_);
  for (int64_t i = stage_.layers.begin; i < stage_.layers.end; ++i) {
    std::vector<Weight> of_layer = weights_of(units_, quantised(i), i);
    if (const at::Tensor& leaf = leaves[stage_.place(i)]; leaf.defined()) {
      adapters_->attach(i, of_layer, leaf, context_.compute);
    }
    for (const LinearSpec& linear : layer(i).table().linears()) {
      pack_for_sampling(of_layer[linear.weight], context_);
    }
    weights.layers.push_back(std::move(of_layer));
  }
  if (stage_.scores) {
    weights.final_norm_E = units_.final_norm().gathered().materialize(context_.compute)[0].value;
    weights.head_VE = config_.tie_word_embeddings && stage_.embeds
                          ? Weight(weights.embedding_VE)
                          : units_.head().gathered().materialize(context_.compute)[0];
    pack_for_sampling(weights.head_VE, context_);
  }
  return weights;
}

void Decoder::move_router_corrections(const at::Tensor& routes_LX, double rate) {
  TORCH_CHECK(units_.router_corrections() != nullptr, "decoder: its routers have no corrections");
  const at::NoGradGuard no_grad;
  // Whole numbers, so that an expert with exactly the mean stays.
  const at::Tensor direction_LX =
      at::sign(routes_LX.sum(1, /*keepdim=*/true) - routes_LX * routes_LX.size(1));
  int64_t row = expert_layers_before(config_, stage_);
  for (int64_t i = stage_.layers.begin; i < stage_.layers.end; ++i) {
    if (const at::Tensor correction = units_.router_correction(i); correction.defined()) {
      correction.add_(direction_LX[row++].to(correction.scalar_type()), rate);
    }
  }
  units_.router_corrections()->changed();
}

TokenScores Decoder::score(const at::Tensor& hidden_nE, const at::Tensor& targets_n,
                           const at::Tensor& temperature_n, const EntryParts& entries,
                           const KeptSets& kept, WeightGradient gradient) const {
  const VocabularyPart part = vocabulary_part(*this);
  const at::Tensor divisor_n = logits_divisor(*this, temperature_n);
  const auto run = [&](const std::vector<Weight>& weights, const at::Tensor& hidden) {
    TokenScores scores = token_scores(
        hidden, weights[0], entries.gathered_order(targets_n), entries.gathered_order(divisor_n),
        token_score_rows(hidden.options(), part.words.size(), activations_.logit_chunk_bytes), part,
        kept);
    return std::vector<at::Tensor>{std::move(scores.logprobs_n), std::move(scores.entropy_n)};
  };
  const auto scores = run_head(*this, hidden_nE, run, gradient);
  return {entries.entry_order(scores[0]), entries.entry_order(scores[1])};
}

namespace {

// The input of the layer that predicts a further token, from embeddings and hidden states side by
// side.
at::Tensor join_further(const Decoder& decoder, const FurtherInput& input, ScopeChain& scopes) {
  const ModelConfig& config = decoder.config();
  const at::ScalarType compute = decoder.compute_dtype();
  const DecoderUnits& units = decoder.parameters();
  at::Tensor embedded_sE;
  {
    const at::AutoGradMode mode(at::GradMode::is_enabled() && !input.detach);
    const Weight table = units.embedding().gathered().materialize(compute)[0];
    embedded_sE = scaled(config, compute, embed(table, input.next_s));
  }
  const int64_t width = config.hidden_size;
  const auto join = [&](const std::vector<Weight>& weights, const at::Tensor& both) {
    const NormOptions norm = config.norm_options();
    const at::Tensor normed =
        at::cat({rms_norm(both.narrow(1, 0, width).contiguous(), weights[0], norm),
                 rms_norm(both.narrow(1, width, width).contiguous(), weights[1], norm)},
                1);
    return std::vector<at::Tensor>{apply_linear(normed, weights[2])};
  };
  // One input of the scope, so that its backward ends behind everything that reads the weights.
  const at::Tensor both_sE =
      at::cat({embedded_sE, input.detach ? input.hidden_sE.detach() : input.hidden_sE}, 1);
  const UnitShapes cut{compute, {{width}, {width}, {width, 2 * width}}};
  return run_with_weights(units.further().gathered(), cut, both_sE, join, scopes).front();
}

}  // namespace

at::Tensor Decoder::further_logprobs(const FurtherInput& input, AttentionBackend& attention) const {
  TORCH_CHECK(stage_.predicts_further(config_),
              "decoder: it has no layer that predicts further tokens");
  OverlappedAttention* overlapped = attention.overlapped();
  ForwardPass pass = forward_pass(
      overlapped != nullptr ? overlapped->positions_S() : input.positions, attention, nullptr);
  pass.adapter_leaves.resize(stage_.layers.size() + 1);  // it has none
  if (activations_.offload) {
    pass.offload = std::make_shared<ActivationOffload>(offload_stream_);
  }
  const at::Tensor hidden_sE =
      run_layer(further_layer(config_), join_further(*this, input, pass.scopes), pass);
  const at::Tensor scored_mE = rms_norm(
      at::embedding(hidden_sE, input.source_m),
      units_.further_norm().gathered().materialize(context_.compute)[0], config_.norm_options());
  const at::Tensor ones_m = at::ones(
      input.target_m.sizes(), scored_mE.options()
                                  .dtype(at::kDouble == context_.compute ? at::kDouble : at::kFloat)
                                  .requires_grad(false));
  return score(scored_mE, input.target_m, ones_m, {}, {},
               input.detach ? WeightGradient::kNone : WeightGradient::kFlows)
      .logprobs_n;
}

std::vector<ParamUnit*> Decoder::trained_units() {
  std::vector<ParamUnit*> trained =
      adapters_ != nullptr ? std::vector<ParamUnit*>{&adapters_->unit()} : units();
  std::erase_if(trained, [&](const ParamUnit* unit) { return units_.is_constant_part(*unit); });
  return trained;
}

std::vector<const ParamUnit*> Decoder::trained_units() const {
  std::vector<const ParamUnit*> trained =
      adapters_ != nullptr ? std::vector<const ParamUnit*>{&adapters_->unit()} : units();
  std::erase_if(trained, [&](const ParamUnit* unit) { return units_.is_constant_part(*unit); });
  return trained;
}

std::vector<ParamUnit*> Decoder::units() {
  std::vector<ParamUnit*> all;
  for (const auto& unit : units_.all()) {
    all.push_back(unit.get());
  }
  return all;
}

std::vector<const ParamUnit*> Decoder::units() const {
  std::vector<const ParamUnit*> all;
  for (const auto& unit : units_.all()) {
    all.push_back(unit.get());
  }
  return all;
}

std::vector<at::Tensor> run_head(const Decoder& decoder, const at::Tensor& hidden_nE,
                                 const WeightSegment& run, WeightGradient gradient) {
  check_scores(decoder.stage());
  const ModelConfig& config = decoder.config();
  const int64_t words = vocabulary_part(decoder).words.size();
  const UnitShapes cut{decoder.compute_dtype(), {{words, config.hidden_size}}};
  ScopeChain chain;
  return run_with_weights(decoder.parameters().head().gathered(), cut, hidden_nE, run, chain,
                          gradient);
}

VocabularyPart vocabulary_part(const Decoder& decoder) {
  const ComputeContext& context = decoder.context();
  const TensorPlace place = tensor_place(context);
  const int64_t words = decoder.config().vocab_size;
  return {context.tensor == nullptr ? nullptr : context.tensor->ranks,
          sp::even_part(words, place.ranks, place.rank), words};
}

at::Tensor logits_divisor(const Decoder& decoder, const at::Tensor& temperature_n) {
  const double divisor = decoder.config().multipliers.logits_divisor;
  return divisor == 1.0 ? temperature_n : temperature_n * divisor;
}

ExpertLoad no_expert_load(const Decoder& decoder) {
  ExpertLoad load(decoder.config().num_hidden_layers);
  const sp::Range& layers = decoder.stage().layers;
  for (int64_t i = layers.begin; i < layers.end; ++i) {
    load[i].resize(decoder.layer(i).channel_mixer().routing().experts);
  }
  return load;
}

}  // namespace ringside::engine
