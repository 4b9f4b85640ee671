// Causal attention of packed documents in one process: what a decoder's tests plug in where
// training plugs in the sequence-parallel backend.
#pragma once

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "engine/nn/attention_backend.h"

namespace ringside::test {

class LocalAttention final : public engine::AttentionBackend {
 public:
  // lengths: tokens of each document, in packed order.
  explicit LocalAttention(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}

  // Shapes: q_sHD [s, H, D], k_sKD and v_sKD [s, K, D], s = sum of the lengths; returns [s, H, D].
  // Throws: c10::Error for a layer with a window or sinks, and for another number of tokens.
  at::Tensor attend(const engine::AttentionSpec& spec, const at::Tensor& q_sHD,
                    const at::Tensor& k_sKD, const at::Tensor& v_sKD) override {
    TORCH_CHECK(spec.window == 0 && !spec.sinks_H.defined(),
                "local attention has no windows and no sinks");
    layers_.push_back(spec.layer);
    std::vector<at::Tensor> outs;
    int64_t begin = 0;
    for (const int64_t n : lengths_) {
      const auto part = [&](const at::Tensor& x) {
        return x.narrow(0, begin, n).transpose(0, 1).unsqueeze(0);
      };
      const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          part(q_sHD), part(k_sKD), part(v_sKD), /*dropout_p=*/0.0, /*is_causal=*/true,
          /*attn_mask=*/{}, spec.softmax_scale);
      outs.push_back(out.squeeze(0).transpose(0, 1));
      begin += n;
    }
    TORCH_CHECK(begin == q_sHD.size(0), "documents of ", begin, " tokens, got ", q_sHD.size(0));
    return outs.empty() ? at::zeros_like(q_sHD) : at::cat(outs);
  }

  // The layers of all calls so far, in order.
  const std::vector<int64_t>& layers() const { return layers_; }

 private:
  std::vector<int64_t> lengths_;
  std::vector<int64_t> layers_;
};

// Positions 0..n-1 of each document, int64 [sum of lengths].
inline at::Tensor packed_positions(const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> parts{at::empty({0}, at::kLong)};
  for (const int64_t n : lengths) {
    parts.push_back(at::arange(n, at::kLong));
  }
  return at::cat(parts);
}

}  // namespace ringside::test
