// Trainable model: a decoder and a head that reads its hidden states at the loss entries. In a
// pipeline it is this rank's stages of the model, of which only the last one has a head.
//
// Shapes: n = loss entries of this rank, E = hidden size, s = tokens, L = layers with experts,
// K = experts a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/models/decoder.h"

namespace ringside::engine {

// What a head scores, on the model's device.
// Shapes: n may be 0.
struct HeadInput {
  at::Tensor hidden_nE;      // the trunk's output at the source tokens: of entries on own rows
  at::Tensor target_n;       // int64
  at::Tensor temperature_n;  // divides the logits; a value head ignores it
  EntryParts entries = {};   // of tensor-parallel ranks
  // Of the entries, in the gathered order of tensor-parallel ranks. With any() log-probs and
  // entropies are over each entry's set; a value head ignores it.
  KeptSets kept = {};
  bool scores_whole = false;  // beside those over sets: log-probs over the whole vocabulary
};

// Output of a head for the loss entries. A head fills its own fields; the others are undefined.
struct HeadOutput {
  at::Tensor logprobs_n;  // of the targets
  at::Tensor entropy_n;   // of the distributions
  at::Tensor values_n;
  // Of the trunk, if the input asks: the experts that each token used; 0 in layers of other ranks.
  at::Tensor routes_sLK = {};
  // What a language-model head scored: the input's hidden states, gathered over tensor-parallel
  // ranks, and its entries.
  at::Tensor hidden_nE = {};
  EntryParts entries = {};
  at::Tensor whole_logprobs_n = {};  // with HeadInput::scores_whole
};

// Entries of an input by tensor-parallel ranks: of this one, and of all.
struct EntryCounts {
  int64_t ranks = 1;
  int64_t own = 0;
  int64_t all = 0;
};

// Thread safety: as Decoder.
class HeadedModel {
 public:
  virtual ~HeadedModel() = default;

  // The decoders below the head: this rank's stages of the model, in order. At least one.
  virtual std::vector<Decoder*> stages() = 0;
  virtual std::vector<const Decoder*> stages() const = 0;
  // The first of them, for what all have in common; the whole decoder without a pipeline.
  Decoder& trunk() { return *stages().front(); }
  const Decoder& trunk() const { return *stages().front(); }
  // Whether this rank has the last stage, and so the head.
  bool scores() const { return stages().back()->stage().scores; }

  // Whether its head is the matrix of the vocabulary, which may be the embedding.
  virtual bool has_vocabulary() const { return false; }

  // Head outputs, of a model that scores. Differentiable.
  // Collective over: the shard of a sharded model, also in the backward.
  // Throws: c10::Error on shapes or dtypes that do not fit.
  virtual HeadOutput apply_head(const HeadInput& input) const = 0;

  // Bytes that this tensor-parallel rank sends for the head in a forward and a backward.
  virtual int64_t tensor_bytes(const EntryCounts& entries) const = 0;

  // All trained units: the stages' in order, then the head's own.
  virtual std::vector<ParamUnit*> units() = 0;
};

// Decoder with its language-model head: log-probs and entropies.
class LanguageModel final : public HeadedModel {
 public:
  // Takes the decoder, whose head it uses; or this rank's stages of one, in order.
  explicit LanguageModel(std::unique_ptr<Decoder> decoder) {
    decoders_.push_back(std::move(decoder));
  }
  explicit LanguageModel(std::vector<std::unique_ptr<Decoder>> stages)
      : decoders_(std::move(stages)) {}

  std::vector<Decoder*> stages() override { return pointers<Decoder>(); }
  std::vector<const Decoder*> stages() const override { return pointers<const Decoder>(); }
  bool has_vocabulary() const override { return true; }
  HeadOutput apply_head(const HeadInput& input) const override {
    const at::Tensor hidden_nE = gather_rows(input.hidden_nE, input.entries.ranks);
    const auto score = [&](const KeptSets& kept) {
      return decoders_.back()->score(hidden_nE, input.target_n, input.temperature_n, input.entries,
                                     kept);
    };
    TokenScores scores = score(input.kept);
    at::Tensor whole_n = input.scores_whole ? score({}).logprobs_n : at::Tensor();
    return {std::move(scores.logprobs_n),
            std::move(scores.entropy_n),
            {},
            {},
            hidden_nE,
            input.entries,
            std::move(whole_n)};
  }
  int64_t tensor_bytes(const EntryCounts& entries) const override {
    const int64_t element = at::elementSize(decoders_.back()->compute_dtype());
    const int64_t row = decoders_.back()->config().hidden_size * element;
    // Gathered rows and the sums of their gradients; the four numbers of merge_scores().
    return (entries.ranks - 1) *
               (entries.own * row + entries.all * 4 * std::max<int64_t>(4, element)) +
           (entries.all - entries.own) * row;
  }
  std::vector<ParamUnit*> units() override;

 private:
  template <class T>
  std::vector<T*> pointers() const {
    std::vector<T*> all;
    for (const auto& decoder : decoders_) {
      all.push_back(decoder.get());
    }
    return all;
  }

  std::vector<std::unique_ptr<Decoder>> decoders_;
};
// Those that are trained of all stages, in order.
inline std::vector<ParamUnit*> LanguageModel::units() {
  std::vector<ParamUnit*> all;
  for (const auto& decoder : decoders_) {
    const std::vector<ParamUnit*> of_stage = decoder->trained_units();
    all.insert(all.end(), of_stage.begin(), of_stage.end());
  }
  return all;
}

}  // namespace ringside::engine
