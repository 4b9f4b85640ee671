// Mixers of a decoder layer: the token mixer passes information between tokens, the channel mixer
// computes on each token. A mixer is one class: its parameters, its forward, what it supports, what
// it needs of other tokens, and what it costs. A new one implements the pure functions below and
// has a line in mixer.cpp; nothing outside engine/layers and engine/architectures knows the kinds.
//
// Shapes: s = tokens, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/layers/cost.h"
#include "engine/layers/layer_pass.h"
#include "engine/layers/model_config.h"
#include "engine/layers/param_table.h"
#include "sp/plan/state_plan.h"

namespace ringside::engine {

// What not every mixer can do.
enum class Feature {
  kAdapters,           // low-rank additions to its linear layers
  kPackedBase,         // quantised linear layers
  kAsyncUlysses,       // projections that overlap the exchange of heads
  kRoutes,             // routes of tokens to experts: recorded, replayed, balanced
  kRouterCorrections,  // of the choice of experts, outside the gradient
  kTensorCut,          // matrices cut over the tensor-parallel ranks of its ParamTable
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

// What generation keeps of each token for a mixer that attends: keys and values of some heads.
struct KeptKeys {
  int64_t heads = 0;
  int64_t dim = 0;
  bool are_values = false;  // the keys are the values too

  // Of one token.
  int64_t elements() const { return (are_values ? 1 : 2) * heads * dim; }
};

// What a token mixer needs of other tokens: sequence parallelism moves it, generation keeps it. It
// attends, or it passes a state along the documents.
struct TokenFlow {
  int64_t heads = 0;                         // that ranks can divide between them
  int64_t window = 0;                        // of attention, as BlockSpec::window
  std::optional<KeptKeys> keys = {};         // of a mixer that attends
  std::optional<sp::StateShape> state = {};  // of one that passes a state
};

// A mixer's constructor adds its weights to the layer's table, in the order of the unit. The
// table's place says which part of its matrices this rank has; all numbers of heads and sizes that
// the mixer gives are those of this rank. Thread safety: immutable.
class TokenMixer {
 public:
  virtual ~TokenMixer() = default;

  // What the layer adds to the residual stream. Differentiable.
  // Shapes: normed_sE -> [s, E]; s may be 0. With tensor parallelism s counts this rank's rows.
  // Collective over: the tensor-parallel ranks; the attention backend's group. A rank without a
  // head does not attend, nor do the ranks of that group.
  // Throws: c10::Error on shapes or dtypes that do not fit, and on a backend that lacks what the
  // mixer needs.
  virtual at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const = 0;

  // Yes, or no and why.
  virtual Support supports(Feature feature) const = 0;

  // What it needs from other tokens.
  virtual TokenFlow flow() const = 0;

  // What tensor-parallel ranks exchange for it.
  virtual TensorWidths tensor_widths() const = 0;

  // Its memory in training.
  virtual Cost cost(const MixerShape& shape) const = 0;

  // What a rank computes and sends for it, where there is no plan yet.
  virtual MixerWork work(const RankGrid& grid) const = 0;
};

// Experts that a channel mixer routes tokens to; none: 0.
struct Routing {
  int64_t experts = 0;
  int64_t per_token = 0;
};

// As TokenMixer.
class ChannelMixer {
 public:
  virtual ~ChannelMixer() = default;

  // Shapes, throws: as TokenMixer::forward().
  // Collective over: the tensor-parallel ranks; the ranks of the experts.
  virtual at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const = 0;

  // Yes, or no and why.
  virtual Support supports(Feature feature) const = 0;

  // Where it sends each token.
  virtual Routing routing() const { return {}; }

  // As TokenMixer::tensor_widths().
  virtual TensorWidths tensor_widths() const = 0;

  // Its memory in training.
  virtual Cost cost(const MixerShape& shape) const = 0;
};

// The mixers of layer `layer`, whose weights they add to the table.
std::unique_ptr<TokenMixer> make_token_mixer(const ModelConfig& config, int64_t layer,
                                             ParamTable& table);
std::unique_ptr<ChannelMixer> make_channel_mixer(const ModelConfig& config, int64_t layer,
                                                 ParamTable& table);

}  // namespace ringside::engine
