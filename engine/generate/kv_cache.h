// KV cache of generation: an attention backend that keeps the keys and values of every sequence, so
// each new token costs one row. Sequences are aligned at their ends; shorter prompts leave their
// first columns empty. So all sequences write the same column and a step needs no scatter. Layers
// with a window keep its columns, and a few more so that columns are rarely moved.
//
// Shapes: B = sequences, H = query heads, K = key/value heads, g = H / K, D = head dim, T =
// columns. Of latent attention the latents are kept: K = 1, D = kv_rank + rope_dim, and the keys
// are the values too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/generate/recurrent_cache.h"
#include "engine/layers/model_config.h"
#include "engine/nn/attention_backend.h"

namespace ringside::engine {

// Use: one forward over the packed prompts; keep_rows() to repeat prompts for their completions;
// then one forward a token (a row a sequence), each after begin_step(). Not differentiable.
// Thread safety: none.
class KvCache final : public AttentionBackend {
 public:
  // prompt_lengths: tokens of each packed prompt, all positive. context: the decoder's.
  // expected_columns: longest prompt plus new tokens; sizes the first allocation. The cache grows
  // when needed.
  // Throws: c10::Error when there is no prompt or an empty one.
  KvCache(const ModelConfig& config, std::vector<int64_t> prompt_lengths,
          const ComputeContext& context, int64_t expected_columns);

  // Call it before each forward that decodes one token of every sequence.
  void begin_step();

  // Keeps sequences rows_b (int64 on the cache's device, repeats allowed) in that order and drops
  // the others.
  void keep_rows(const at::Tensor& rows_b);

  bool attends_latents() const override { return true; }
  RecurrentBackend* recurrent() override { return &recurrent_; }

  // Bytes of keys and values.
  int64_t bytes() const;

  // The first call for each layer is the prefill (q_sHD over all packed prompts). Later calls
  // decode (q_BHD).
  // Throws: c10::Error when a decoding call has not one row of each sequence, or another window
  // than the layer.
  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override;

 private:
  at::Tensor prefill(const AttentionSpec& spec, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                     const at::Tensor& v_sKD);
  at::Tensor decode(const AttentionSpec& spec, const at::Tensor& q_BHD, const at::Tensor& k_BKD,
                    const at::Tensor& v_BKD);
  // Columns [first, first + T) of one layer. A layer with a window drops those that left it.
  struct LayerColumns {
    // [B, K, T, D]. Values that are the keys are undefined, and with a state both are.
    at::Tensor keys, values;
    int64_t window = 0;
    int64_t first = 0;
    at::Tensor& read_values() { return values.defined() ? values : keys; }
  };
  static void reserve(LayerColumns& layer, int64_t columns);

  std::vector<int64_t> prompt_lengths_;
  RecurrentCache recurrent_;  // of layers that pass a state
  int64_t columns_;           // so far, equal for all live sequences
  bool prefilled_ = false;
  std::vector<LayerColumns> layers_;
  // 0 where a column holds a token, -inf before a sequence's start; undefined when all start at 0.
  at::Tensor mask_B1T_;
};

}  // namespace ringside::engine
