// Trainable model: a decoder and a head that reads its hidden states at the loss entries.
//
// Shapes: n = loss entries of this rank, E = hidden size, s = tokens, L = layers with experts,
// K = experts a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/models/decoder.h"

namespace ringside::engine {

// What a head scores, on the model's device.
// Shapes: n may be 0.
struct HeadInput {
  at::Tensor hidden_nE;      // the trunk's output at the entries' source tokens
  at::Tensor target_n;       // int64
  at::Tensor temperature_n;  // divides the logits; a value head ignores it
};

// Output of a head for the loss entries. A head fills its own fields; the others are undefined.
struct HeadOutput {
  at::Tensor logprobs_n;  // of the targets
  at::Tensor entropy_n;   // of the distributions
  at::Tensor values_n;
  // Of the trunk, if the input asks: the experts that each token used, and how many replayed ids
  // were not the router's own choice (ExpertNotes).
  at::Tensor routes_sLK = {};
  at::Tensor changed_routes = {};
};

// Thread safety: as Decoder.
class HeadedModel {
 public:
  virtual ~HeadedModel() = default;

  // The decoder below the head.
  virtual Decoder& trunk() = 0;
  virtual const Decoder& trunk() const = 0;

  // Head outputs. Differentiable.
  // Collective over: the shard of a sharded model, also in the backward.
  // Throws: c10::Error on shapes or dtypes that do not fit.
  virtual HeadOutput apply_head(const HeadInput& input) const = 0;

  // All trained units: the trunk's in order, then the head's own.
  virtual std::vector<ParamUnit*> units() = 0;
};

// Decoder with its language-model head: log-probs and entropies.
class LanguageModel final : public HeadedModel {
 public:
  // Takes the decoder, whose head it uses.
  explicit LanguageModel(std::unique_ptr<Decoder> decoder) : decoder_(std::move(decoder)) {}

  Decoder& trunk() override { return *decoder_; }
  const Decoder& trunk() const override { return *decoder_; }
  HeadOutput apply_head(const HeadInput& input) const override {
    TokenScores scores = decoder_->score(input.hidden_nE, input.target_n, input.temperature_n);
    return {std::move(scores.logprobs_n), std::move(scores.entropy_n), {}};
  }
  std::vector<ParamUnit*> units() override { return decoder_->trained_units(); }

 private:
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace ringside::engine
