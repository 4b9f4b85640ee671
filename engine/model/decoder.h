// A decoder-only transformer (Qwen3, Qwen2.5, Llama) over a packed run of tokens. It knows neither batches nor
// sharding: tokens are rows, positions say where each stands in its document, and an AttentionBackend decides
// which keys a query may see.
// Shapes: s = tokens given, n = entries to score, E = hidden size, V = vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model/attention_backend.h"
#include "engine/model/model_config.h"
#include "engine/model/token_scores.h"
#include "engine/parallel/param_unit.h"

namespace ringside::engine {

class Decoder {
 public:
  // compute_dtype: kFloat, kBFloat16 or kDouble. Master parameters are kDouble for kDouble, else kFloat.
  // Throws c10::Error on a shape that cannot be (heads not a multiple of key/value heads, zero sizes).
  Decoder(ModelConfig config, at::ScalarType compute_dtype);

  // Normal(0, std) matrices and embeddings, ones for norms, zeros for biases; the same values for the same seed.
  void init_random(uint64_t seed, double std);

  // Copies every parameter of `other`, whose configuration must be the same. Keeps this decoder's compute dtype.
  void copy_parameters_from(const Decoder& other);

  // ids_s, positions_s: int64 [s], s may be 0. Returns hidden_sE after the final norm, in compute dtype. Collective
  // exactly when the backend is: num_hidden_layers calls of attend(), once more per layer in the backward
  // when activations are recomputed.
  at::Tensor forward(const at::Tensor& ids_s, const at::Tensor& positions_s,
                     AttentionBackend& attention) const;

  // Log-probs and entropies of targets_n (int64) under softmax(lm_head(hidden_nE) / temperature_n), computed a
  // chunk of rows at a time, never [n, V] at once. Not collective. n may be 0.
  TokenScores score(const at::Tensor& hidden_nE, const at::Tensor& targets_n,
                    const at::Tensor& temperature_n) const;

  // Logits of a few rows, [n, V] in fp32 (fp64 for doubles), without autograd: for sampling.
  at::Tensor logits(const at::Tensor& hidden_nE) const;

  // Recompute each layer's activations in the backward instead of keeping them.
  void set_recompute_activations(bool on) { recompute_activations_ = on; }

  const ModelConfig& config() const { return config_; }
  at::ScalarType compute_dtype() const { return compute_dtype_; }

  // Embedding, layers in order, final norm with an untied head last. The order in which weights are streamed.
  std::vector<ParamUnit*> units();
  std::vector<const ParamUnit*> units() const;

 private:
  ModelConfig config_;
  at::ScalarType compute_dtype_;
  bool recompute_activations_ = false;
  std::unique_ptr<ParamUnit> embedding_;
  std::vector<std::unique_ptr<ParamUnit>> layers_;
  std::unique_ptr<ParamUnit> final_;
};

}  // namespace ringside::engine
