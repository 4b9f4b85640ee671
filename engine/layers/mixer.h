// Mixers of a decoder layer: the token mixer passes information between tokens, the channel mixer
// computes on each token. A mixer is one class: its parameters, its forward, and what it supports.
//
// Shapes: s = tokens, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/layers/activation_options.h"
#include "engine/layers/layer_pass.h"
#include "engine/layers/model_config.h"
#include "engine/layers/param_table.h"
#include "sp/batch/collator.h"
#include "sp/plan/state_plan.h"

namespace ringside::engine {

// What not every mixer can do.
enum class Feature {
  kAdapters,           // low-rank additions to its linear layers
  kPackedBase,         // quantised linear layers
  kAsyncUlysses,       // a model with asynchronous Ulysses; beside a state nothing overlaps
  kRoutes,             // routes of tokens to experts: recorded, replayed, balanced
  kRouterCorrections,  // of the choice of experts, outside the gradient
};

// Yes, or no and why.
class Support {
 public:
  static Support yes() { return Support(""); }
  // reason: a clause, "experts cannot be quantised".
  static Support no(std::string reason) { return Support(std::move(reason)); }
  explicit operator bool() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }

 private:
  explicit Support(std::string reason) : reason_(std::move(reason)) {}
  std::string reason_;
};

// What sequence parallelism has to move for a token mixer.
struct TokenFlow {
  int64_t heads = 0;   // that ranks can divide between them
  int64_t window = 0;  // of attention, as BlockSpec::window
  // Passed along the documents in place of attention.
  std::optional<sp::StateShape> state = {};
};

// A mixer's constructor adds its weights to the layer's table, in the order of the unit.
// Thread safety: immutable.
class TokenMixer {
 public:
  virtual ~TokenMixer() = default;

  // What the layer adds to the residual stream. Differentiable.
  // Shapes: normed_sE -> [s, E]; s may be 0.
  // Collective over: the attention backend's group.
  // Throws: c10::Error on shapes or dtypes that do not fit, and on a backend that lacks what the
  // mixer needs.
  virtual at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const = 0;

  // Yes, or no and why.
  virtual Support supports(Feature feature) const = 0;

  // What it needs from other tokens.
  virtual TokenFlow flow() const = 0;

  // Bytes that this rank sends for the mixer in one forward and backward of a micro-batch, by its
  // plans. element: of the compute dtype; sums: of partial results.
  virtual int64_t sent_bytes(const sp::MicroBatch& batch, int64_t element, int64_t sums,
                             Recompute recompute) const = 0;
};

// As TokenMixer.
class ChannelMixer {
 public:
  virtual ~ChannelMixer() = default;

  // Shapes, throws: as TokenMixer::forward().
  // Collective over: the ranks of the experts.
  virtual at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const = 0;

  // Yes, or no and why.
  virtual Support supports(Feature feature) const = 0;

  // That it routes tokens to; 0: it has none.
  virtual int64_t num_experts() const { return 0; }
};

// TokenMixer::sent_bytes() of attention with this window. Selective recomputation sends nothing of
// the forward again.
int64_t attention_sent_bytes(const sp::MicroBatch& batch, int64_t window, int64_t element,
                             int64_t sums, Recompute recompute);

// The mixers of layer `layer`, whose weights they add to the table.
std::unique_ptr<TokenMixer> make_token_mixer(const ModelConfig& config, int64_t layer,
                                             ParamTable& table);
std::unique_ptr<ChannelMixer> make_channel_mixer(const ModelConfig& config, int64_t layer,
                                                 ParamTable& table);

}  // namespace ringside::engine
