// A decoder-only transformer (Qwen3, Qwen2.5, Llama) over a packed run of tokens. It knows neither
// batches nor sharding: tokens are rows, positions say where each stands in its document, and an
// AttentionBackend decides which keys a query may see. Shapes: s = tokens given, n = entries to
// score, E = hidden size, V = vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/models/decoder_layer.h"
#include "engine/models/model_config.h"
#include "engine/nn/attention_backend.h"
#include "engine/nn/token_scores.h"
#include "engine/params/param_unit.h"

namespace ringside::engine {

// Every parameter in compute dtype, cut for use. For fp32 and fp64 these are views of the master
// buffers.
struct DecoderWeights {
  at::Tensor embedding_VE;
  std::vector<LayerWeights> layers;
  at::Tensor final_norm_E;
  at::Tensor head_VE;
};

// Name and shape of every parameter of a model, in the order of Decoder::units(). Allocates no
// parameter.
std::vector<ParamSpec> decoder_specs(const ModelConfig& config);

// Not thread-safe for writing; any number of threads may call the const functions while no one
// writes parameters.
class Decoder {
 public:
  // Parameters are made with the context: in its master dtype, on its device.
  // Throws: c10::Error on a shape that cannot be (heads not a multiple of key/value heads, zero
  // sizes).
  Decoder(ModelConfig config, const ComputeContext& context);

  // Normal(0, std) matrices and embeddings, ones for norms, zeros for biases; the same values for
  // the same seed, up to rounding to the master dtype.
  void init_random(uint64_t seed, double std);

  // Copies every parameter of `other`, which must have the same parameters by name and shape, else
  // c10::Error. Keeps this decoder's compute dtype.
  void copy_parameters_from(const Decoder& other);

  // ids_s, positions_s: int64 [s], s may be 0. Returns hidden_sE after the final norm, in compute
  // dtype. Collective exactly when the backend is: num_hidden_layers calls of attend(), once more
  // per layer in the backward when activations are recomputed. The backend must outlive the
  // backward. Throws c10::Error on a shape or dtype mismatch; an id outside the vocabulary throws
  // too.
  at::Tensor forward(const at::Tensor& ids_s, const at::Tensor& positions_s,
                     AttentionBackend& attention) const;

  // The same without autograd, from weights that materialize() cut once: for many small forwards,
  // as in sampling.
  at::Tensor forward(const DecoderWeights& weights, const at::Tensor& ids_s,
                     const at::Tensor& positions_s, AttentionBackend& attention) const;

  // All weights, outside autograd. In bf16 a snapshot, else views that follow the master values.
  DecoderWeights materialize() const;

  // Log-probs and entropies of targets_n (int64) under softmax(lm_head(hidden_nE) / temperature_n),
  // computed a chunk of rows at a time, never [n, V] at once. Not collective. n may be 0.
  TokenScores score(const at::Tensor& hidden_nE, const at::Tensor& targets_n,
                    const at::Tensor& temperature_n) const;

  // Logits of a few rows, [n, V] in fp32 (fp64 for doubles), without autograd: for sampling.
  at::Tensor logits(const at::Tensor& hidden_nE) const;

  // Recompute each layer's activations in the backward instead of keeping them.
  void set_recompute_activations(bool on) { recompute_activations_ = on; }
  bool recompute_activations() const { return recompute_activations_; }

  const ModelConfig& config() const { return config_; }
  const ComputeContext& context() const { return context_; }
  at::ScalarType compute_dtype() const { return context_.compute; }

  // Embedding, layers in order, final norm, and an untied head last. The order in which weights are
  // streamed.
  std::vector<ParamUnit*> units();
  std::vector<const ParamUnit*> units() const;

 private:
  const ParamUnit& embedding() const { return *units_.front(); }
  const ParamUnit& layer(int64_t i) const { return *units_[1 + i]; }
  const ParamUnit& final_norm() const { return *units_[1 + config_.num_hidden_layers]; }
  // With tied embeddings the embedding's unit, else the last.
  const ParamUnit& head() const {
    return config_.tie_word_embeddings ? embedding() : *units_.back();
  }
  at::Tensor run_layer(int64_t index, const at::Tensor& hidden_sE, const RopeTables& rope,
                       AttentionBackend& attention) const;

  ModelConfig config_;
  ComputeContext context_;
  bool recompute_activations_ = false;
  at::Tensor rope_inverse_frequencies_d_;
  std::vector<std::unique_ptr<ParamUnit>> units_;  // in the order of units()
};

}  // namespace ringside::engine
