// What the layers of a model keep for their backward, and what is there while it runs: the costs of
// their mixers, added up for the way that activations are treated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/layers/decoder_layer.h"
#include "engine/layers/model_config.h"
#include "engine/runner/memory_shapes.h"

namespace ringside::engine {

// Elements of all the parameters.
int64_t elements(const std::vector<ParamSpec>& specs);

// What tensor rank 0, which has the most, has of such parameters: parts, and those that every
// tensor rank uses whole. Where there is one rank, they all count as parts.
struct OwnElements {
  int64_t cut = 0;
  int64_t whole = 0;
  int64_t all() const { return cut + whole; }
};
// Counts them by their cuts.
OwnElements own_elements(const std::vector<ParamSpec>& specs, int64_t tensor_ranks);

// The largest part when `whole` is divided over ranks.
int64_t share(int64_t whole, int64_t ranks);

// A layer whose projections are packed, as tensor rank 0 keeps it; its other parameters take
// `compute` bytes an element.
int64_t packed_layer_bytes(const std::vector<ParamSpec>& specs, QuantisedFormat format,
                           int64_t compute);

// Bytes.
struct AdapterMemory {
  int64_t masters = 0;  // values of all adapters, which every rank has whole
  int64_t saved_by_layer =
      0;  // what those of a layer add: x A^T of each, casts and copies of factors
  // The layers' parameters but their experts', the projections as they are stored. Empty: the base
  // is not packed.
  std::optional<int64_t> packed_layers = {};
};

// Of a stage's layers, of the adapters of the pass. compute, master: bytes of a number.
// Throws: c10::Error on adapters that the model cannot have.
AdapterMemory adapter_memory(const ModelConfig& config, const Stage& stage, const PassShape& pass,
                             int64_t compute, int64_t master);

// The first layer with experts, if there is one; otherwise the first.
std::size_t largest_layer(const std::vector<DecoderLayer>& layers);

// Bytes. Every layer counts as having the largest one's channel mixer.
class LayersMemory {
 public:
  // layers: of the model. adapters: null without. shape and adapters outlive this.
  LayersMemory(const ModelConfig& config, const std::vector<DecoderLayer>& layers,
               const PassShape& shape, const ComputeContext& context,
               const AdapterMemory* adapters);

  // Whether the layers' forwards run again before their backwards.
  bool recomputes() const { return p_.activations.recompute != Recompute::kNone; }

  // What layers [begin, end) keep from the forward to their backwards.
  int64_t kept(int64_t begin, int64_t end) const;

  // Results of the linear layers of layers [begin, end): between the parts of a backward in two
  // their gradients are kept.
  int64_t linear_results(int64_t begin, int64_t end) const;

  // On the device, of layers up to `last`: with an offload, of the `with_offload` last ones.
  int64_t kept_on_device(int64_t last, int64_t with_offload) const;

  // Tables that the layers share.
  int64_t tables() const;

  // While the channel mixer's backward runs.
  int64_t channels_moment(int64_t layer) const;

  // While the token mixer's backward runs: the channel mixer's activations are gone, its gradients
  // exist. buffers(): of communication, beside it.
  int64_t tokens_moment(int64_t layer) const;
  int64_t buffers(int64_t layer) const { return tokens_[layer].buffers; }

 private:
  // What a recomputed layer saves beside what it kept. Its input is the residual that its first
  // norm saves; the gradient of its output stays until all of its backward is done.
  int64_t recomputed(int64_t layer, int64_t saved) const;
  int64_t kept_by(int64_t layer) const;

  const PassShape& p_;
  const AdapterMemory* adapters_;
  int64_t compute_, master_;             // bytes of a number
  int64_t stream_;                       // of the residual stream
  std::vector<Cost> tokens_;             // of each layer's token mixer, with norms and adapters
  Cost channels_;                        // of the largest layer's channel mixer
  std::vector<int64_t> linear_results_;  // of each layer
};

}  // namespace ringside::engine
