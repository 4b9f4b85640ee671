// Decoder-only transformer over a packed run of tokens, or a stage of one. It has no notion of
// batches or shards: tokens are rows, positions give each token's place in its document, and an
// AttentionBackend decides the keys that a query attends to.
//
// Stages of one model, run one after another, compute what the whole decoder does, to the bit: each
// takes the hidden states of the one before it, and the gradient of its input is that of the
// former's output.
//
// Images enter as rows in place of embeddings. Who encodes them is not the decoder's business:
// parameters().tower(), or another rank.
//
// Shapes: s = tokens given, n = entries to score, E = hidden size, V = vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/device/activation_offload.h"
#include "engine/layers/activation_options.h"
#include "engine/layers/model_config.h"
#include "engine/models/adapters.h"
#include "engine/models/decoder_units.h"
#include "engine/models/image_rows.h"
#include "engine/models/quantised_layer.h"
#include "engine/models/stage.h"
#include "engine/nn/attention_backend.h"
#include "engine/nn/expert_pass.h"
#include "engine/nn/rope.h"
#include "engine/nn/tensor_rows.h"
#include "engine/ops/token_scores.h"
#include "engine/params/param_unit.h"
#include "engine/params/unit_scope.h"

namespace ringside::engine {

struct LayerPass;

// Every parameter in compute dtype, split for use. For fp32 and fp64 these are views of the master
// buffers. Linear layers and the head have packed copies beside them, as ProductPlan says.
// Undefined where the decoder is a stage without them.
struct DecoderWeights {
  at::Tensor embedding_VE;
  std::vector<std::vector<Weight>> layers;  // of the stage's layers, by slot
  at::Tensor final_norm_E;
  Weight head_VE;
};

// Input of the layer that predicts a further token (multi-token prediction), and its targets.
// Shapes: m = entries to score.
struct FurtherInput {
  at::Tensor hidden_sE;  // what forward() returned
  at::Tensor next_s;     // int64, the id behind each token
  at::Tensor positions;  // as of forward()
  at::Tensor source_m;   // int64, the tokens whose next but one is scored; m may be 0
  at::Tensor target_m;   // int64, that one
  // Whether no gradient flows to what the model shares with the layer: hidden states, embedding and
  // head.
  bool detach = true;
};

// Thread safety: const functions from any thread while no thread writes parameters.
class Decoder {
 public:
  // Writes a unit's starting values, through its slices.
  using FillUnit = std::function<void(ParamUnit& unit)>;

  // Creates and fills the units of a stage one after another, so that beside what `storage` keeps
  // there is at most one layer in the master dtype. The parameters are in the context's master
  // dtype on its device, sharded as it says; zero without `fill`. Not collective; but all functions
  // that use weights are collective over the shard. Throws: c10::Error on an impossible shape
  // (heads not a multiple of key/value heads, zero sizes), and when projections shall be packed and
  // the model has experts, latent attention or gated delta nets; as check_stage(); what `fill`
  // throws.
  Decoder(ModelConfig config, const Stage& stage, const ComputeContext& context,
          const WeightStorage& storage = {}, const FillUnit& fill = {});
  // The same for the whole model.
  Decoder(const ModelConfig& config, const ComputeContext& context,
          const WeightStorage& storage = {}, const FillUnit& fill = {});

  // Sets all parameters as RandomWeights draws them; a stage's are those of the whole model. Not
  // collective: every rank draws all values and keeps its own.
  void init_random(uint64_t seed, double std);

  // Copies every parameter of `other`. Keeps this decoder's compute dtype. Not collective.
  // Throws: c10::Error unless names, shapes and sharding of all parameters are equal.
  void copy_parameters_from(const Decoder& other);

  // Freezes the parameters, in the compute dtype, and adds trainable adapters. Call it once, after
  // loading, before anything takes the leaves of units().
  // Throws: as Adapters; c10::Error when it has adapters already.
  Adapters& add_adapters(AdapterOptions options);
  // The adapters; nullptr: none.
  Adapters* adapters() { return adapters_.get(); }
  const Adapters* adapters() const { return adapters_.get(); }

  // The same model without its adapters. Shares the parameters, which are frozen.
  // Throws: c10::Error without adapters.
  std::unique_ptr<Decoder> without_adapters() const;

  // Hidden states in the compute dtype: after the final norm where the stage scores, otherwise
  // behind its last layer. The backend must outlive the backward.
  // input: token ids of a stage that embeds, otherwise the hidden states that the stage before it
  // returned; these require a gradient where that stage is trained. experts: of the whole model.
  // images: rows in place of the embeddings of some tokens, whose gradient is then 0. Their
  // deepstack rows are added behind the layers, outside of what is recomputed: the sum keeps
  // nothing but the tokens' indices.
  // Shapes: ids, positions: int64 [s], s may be 0; with a vision tower positions may be [3, s], of
  // time, height and width; hidden states [s, E], in and out. With tensor
  // parallelism every tensor rank has the same ids and positions, hidden states are those of its
  // own rows (row_parts()), and so are the routes of `experts` and the rows of images.
  // Collective over: the tensor-parallel ranks; the ranks of the experts; the backend's group, if
  // it has one: one call of
  // attend() or mix() for each layer. The backward calls attend() once more per layer with
  // Recompute::kFull, and mix() with any recomputation.
  // Throws: c10::Error on a shape or dtype mismatch and on an id outside the vocabulary.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& positions,
                     AttentionBackend& attention, ExpertNotes* experts = nullptr,
                     const ImageRows& images = {}) const;

  // forward() without autograd, from weights that materialize() returned. For many small forwards,
  // as in sampling. This rank must hold all experts.
  // Shapes, throws: as forward().
  // Collective over: the backend's group, if it has one.
  at::Tensor forward(const DecoderWeights& weights, const at::Tensor& input,
                     const at::Tensor& positions, AttentionBackend& attention,
                     ExpertNotes* experts = nullptr, const ImageRows& images = {}) const;

  // All weights, outside autograd, for as long as the parameters stay as they are.
  // Collective over: the shard of a sharded decoder.
  DecoderWeights materialize() const;

  // Adds `rate` to a router's correction for the experts with fewer routes than the mean of their
  // layer, and subtracts it for those with more. routes_LX: of each of the model's layers with
  // experts, whole numbers in fp64 on the device, the same on every rank.
  // Source: DeepSeek-V3 (section 2.1.2, load balancing without auxiliary loss).
  // Throws: c10::Error when the routers have no corrections.
  void move_router_corrections(const at::Tensor& routes_LX, double rate);

  // Log-probs and entropies of targets_n (int64) under softmax(lm_head(hidden_nE) / temperature_n).
  // Computed in chunks of rows, never [n, V] at once. Differentiable. n may be 0. entries: with
  // tensor parallelism every rank has all entries: hidden_nE in the gathered order, all else in
  // the entries' own.
  // Collective over: the tensor-parallel ranks and the shard of a sharded decoder, also in the
  // backward.
  // gradient: whether the head has one.
  // Throws: as token_scores(); c10::Error for a stage that does not score.
  TokenScores score(const at::Tensor& hidden_nE, const at::Tensor& targets_n,
                    const at::Tensor& temperature_n, const EntryParts& entries = {},
                    const KeptSets& kept = {},
                    WeightGradient gradient = WeightGradient::kFlows) const;

  // Log-probs [m] of the targets, at temperature 1, of the layer that predicts a further token: for
  // token i of a document h' = W [norm(embedding of token i + 1); norm(hidden state i)], then a
  // decoder layer at position i, its norm, and the model's head. Differentiable. Expert layers note
  // nothing.
  // Collective over: as forward() of one layer, and score().
  // Throws: c10::Error for a model without that layer; as forward() and score().
  // Source: DeepSeek-V3 (section 2.2); for position and order of the halves Megatron-LM's
  // multi_token_prediction.py and vLLM's deepseek_mtp.py and qwen3_next_mtp.py. vLLM alone sets the
  // embedding at position 0 to zero for DeepSeek and GLM.
  at::Tensor further_logprobs(const FurtherInput& input, AttentionBackend& attention) const;

  // How later forwards with autograd treat activations.
  // Throws: c10::Error on an offload or tiles without recomputation, and on sizes below their
  // range.
  void set_activation_options(const ActivationOptions& options);
  const ActivationOptions& activation_options() const { return activations_; }

  // Of the whole model.
  const ModelConfig& config() const { return config_; }
  // The part of it that this decoder is.
  const Stage& stage() const { return stage_; }
  // Layer i of the model, one of the stage's.
  const DecoderLayer& layer(int64_t i) const { return units_.layer(i); }
  const ComputeContext& context() const { return context_; }
  at::ScalarType compute_dtype() const { return context_.compute; }

  // What is trained: the adapters' unit, or else units() without the constant part of a vision
  // tower.
  std::vector<ParamUnit*> trained_units();
  std::vector<const ParamUnit*> trained_units() const;

  // The parameters without adapters, in the order of DecoderUnits::all(). Weights are streamed in
  // this order. A stage has its part of the model's, by the same names. The corrections of routers
  // receive no gradient: move_router_corrections() alone changes them.
  std::vector<ParamUnit*> units();
  std::vector<const ParamUnit*> units() const;
  // All of them: which unit holds which part, and the units of an export.
  const DecoderUnits& parameters() const { return units_; }
  // Layer i of the stage where it is quantised; null otherwise.
  const QuantisedLayer* quantised(int64_t i) const {
    return quantised_.empty() ? nullptr : quantised_[stage_.place(i)].get();
  }

 private:
  struct ParametersOf {};
  // Shares the parameters of `other`, without its adapters.
  Decoder(const Decoder& other, ParametersOf);
  // What the layers of one forward share.
  struct ForwardPass;
  // A layer's own part of the pass. kept: the results that it keeps if it is recomputed.
  LayerPass layer_pass(int64_t index, ForwardPass& pass, AttentionBackend& attention,
                       const std::shared_ptr<sp::KeptResults>& kept) const;
  at::Tensor run_layer(int64_t index, const at::Tensor& hidden_sE, ForwardPass& pass) const;
  ForwardPass forward_pass(const at::Tensor& positions, AttentionBackend& attention,
                           ExpertNotes* experts) const;

  ModelConfig config_;
  Stage stage_;
  ComputeContext context_;
  ActivationOptions activations_;
  std::optional<c10::Stream> offload_stream_;  // kept for the whole run
  RopeFrequencies rope_frequencies_, local_rope_frequencies_;
  // Of each layer of the stage; empty: none. Before units_, whose making fills it.
  std::vector<std::shared_ptr<const QuantisedLayer>> quantised_;
  DecoderUnits units_;  // shared once frozen
  std::unique_ptr<Adapters> adapters_;
};

// Outputs of run(the head's matrix alone, hidden states) of a stage that scores. The matrix exists
// while they are computed, and again in their backward. With tensor parallelism it is this rank's
// part. gradient: whether the matrix has one.
// Shapes: hidden_nE as `run` takes it; n may be 0.
// Collective over: the shard of a sharded decoder, also in the backward.
// Throws: c10::Error for a stage that does not score; what `run` throws.
std::vector<at::Tensor> run_head(const Decoder& decoder, const at::Tensor& hidden_nE,
                                 const WeightSegment& run,
                                 WeightGradient gradient = WeightGradient::kFlows);

// Whether layers compute with the values of units() alone. A stage's layers are all quantised, or
// none is.
inline bool has_plain_weights(const Decoder& decoder) {
  const sp::Range layers = decoder.stage().layers;
  return decoder.adapters() == nullptr &&
         (layers.empty() || decoder.quantised(layers.begin) == nullptr);
}

// The words of the vocabulary that this tensor-parallel rank has.
VocabularyPart vocabulary_part(const Decoder& decoder);

// What divides the decoder's logits: a temperature, and the model's own divisor. Shapes: [n] both.
at::Tensor logits_divisor(const Decoder& decoder, const at::Tensor& temperature_n);

// Zeros for all experts of the decoder; a row for each layer of the model.
ExpertLoad no_expert_load(const Decoder& decoder);

}  // namespace ringside::engine
