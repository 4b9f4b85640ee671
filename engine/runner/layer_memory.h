// What the layers of a model keep for their backward, and what is there while it runs, predicted
// from shapes: the parts of a memory estimate. Pure functions.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/models/decoder.h"
#include "engine/runner/memory_shapes.h"

namespace ringside::engine {

// Elements of all the parameters.
int64_t elements(const std::vector<ParamSpec>& specs);

// A layer whose projections are packed; its other parameters take `compute` bytes an element.
int64_t packed_layer_bytes(const std::vector<ParamSpec>& specs, QuantisedFormat format,
                           int64_t compute);

// The largest part when `whole` is divided over ranks.
int64_t share(int64_t whole, int64_t ranks);

// Adapters and the base that they are trained beside. Bytes.
class AdapterSizes {
 public:
  // config: of the model. compute, master: bytes of a number.
  AdapterSizes(const ModelConfig& config, const AdapterShape& shape, int64_t compute,
               int64_t master);

  // Master values of all adapters. Every rank has them whole.
  int64_t masters() const;

  // What those of a layer add to what it saves: x A^T of each, and the factors' casts.
  int64_t saved_by_layer(int64_t tokens) const;

  // Whether the base is NF4 or INT8.
  bool is_packed() const;

  // The parameters of layers but their experts in a packed base, the projections as they are
  // stored.
  int64_t packed_layers() const;

  // A packed gate and up projection while a product uses them: each unpacked, and joined. matrix:
  // elements of one.
  int64_t unpacked(int64_t matrix) const;

 private:
  const ModelConfig& c_;
  std::optional<QuantisedFormat> base_;
  std::vector<ParamSpec> factors_;
  int64_t compute_, master_;
};

// A gated delta net's tensors, without the norm before it. Bytes.
class DeltaNetMemory {
 public:
  // compute, sums: bytes of a number.
  DeltaNetMemory(const ModelConfig& config, const PassShape& shape, int64_t compute, int64_t sums,
                 c10::DeviceType device);

  // What the forward saves.
  int64_t saved() const;

  // What the backward of the rule has beside what the forward saved and is not freed by then.
  int64_t rule_backward() const;

  // The same of the convolution.
  int64_t conv_backward() const;

  // Index tables of the micro-batch, which all layers share.
  int64_t tables() const;

 private:
  bool is_wide() const;
  int64_t out() const;  // elements
  int64_t conv_in() const;
  // The convolution's result, or q and k of it cast for their lengths; inverse lengths; gates.
  int64_t of_rows() const;
  // Its inputs, and the states at the starts of chunks. The same again for the maps, whose values
  // are as wide as the state and its transition.
  int64_t of_rule() const;
  // The rule's result, its norm, the gate before and after SiLU, and their product.
  int64_t after_rule() const;
  int64_t gate_gradient() const;
  // Matrices of the chunks that are computed together, with their gradients.
  int64_t block() const;

  const DeltaNetConfig& net_;
  const sp::StateShape& shape_;
  const DeltaShape& d_;
  int64_t tokens_, share_;  // rows of this rank and of its ring share
  int64_t heads_;           // value heads of this rank
  int64_t compute_, sums_;
  c10::DeviceType device_;
};

// What one layer keeps for its backward, and what flows through that. Bytes.
class LayerActivations {
 public:
  // compute, sums: bytes of a number. adapters: nullptr without.
  LayerActivations(const ModelConfig& config, const PassShape& shape, int64_t compute, int64_t sums,
                   c10::DeviceType device, const AdapterSizes* adapters, bool has_experts,
                   bool has_delta_net);

  // Whether the layer's MLP is one of experts, and whether its mixer is a delta net.
  bool has_experts() const { return has_experts_; }
  bool has_delta_net() const { return has_delta_net_; }

  // That delta net's memory.
  DeltaNetMemory delta_net() const;

  // Whether the layer's forward runs again before its backward.
  bool recomputes() const;

  // gate, up and their product. With experts of each token's every route, beside the routed rows,
  // the results, and where they belong.
  int64_t mlp_saved(int64_t rows) const;

  // What flows through the MLP's backward beside the residual.
  int64_t mlp_flowing(int64_t rows) const;

  // What one layer saves without recomputation, but for its MLP: DecoderLayer and the operators
  // that it calls, in their order.
  int64_t saved_before_mlp() const;

  // What one layer keeps from the forward to its backward.
  int64_t kept_by_layer() const;

  // What a recomputed layer saves beside what it kept. Its input is the residual that its first
  // norm saves; the gradient of its output stays until all of its backward is done.
  int64_t recomputed(int64_t saved) const;

 private:
  bool exchanges() const;
  // What attention's node saves beyond its inputs in this rank's own layout.
  int64_t attention_results() const;
  int64_t exchanged_inputs() const;
  int64_t exchanged_output() const;
  // Of latent attention: each latent before and after its norm, what RoPE turned, and the inputs of
  // attention and of the output projection. The tensors between are freed.
  int64_t latent_saved() const;
  // What the selective recomputation keeps. A delta net keeps nothing for its second run.
  int64_t kept_attention() const;

  const ModelConfig& c_;
  const PassShape& p_;
  int64_t compute_, sums_;
  c10::DeviceType device_;
  const AdapterSizes* adapters_;
  bool has_experts_, has_delta_net_;
};

// What all layers keep. Layers with attention count as the largest of them. Bytes.
class KeptByLayers {
 public:
  // attention, delta: of a layer of that kind.
  KeptByLayers(const ModelConfig& config, const ActivationOptions& options,
               LayerActivations attention, LayerActivations delta);

  // Layer i.
  const LayerActivations& at(int64_t i) const;

  // Whether the layers' forwards run again before their backwards.
  bool recomputes() const;

  // Of layers [begin, end).
  int64_t sum(int64_t begin, int64_t end) const;

  // On the device, of layers up to `last`: with an offload, of the `with_offload` last ones.
  int64_t on_device(int64_t last, int64_t with_offload) const;

  // Tables that the layers share.
  int64_t tables() const;

 private:
  const ModelConfig& c_;
  const ActivationOptions& options_;
  LayerActivations attention_, delta_;
};

}  // namespace ringside::engine
