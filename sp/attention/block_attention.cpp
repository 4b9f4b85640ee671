#include "sp/attention/block_attention.h"

#include <ATen/ATen.h>

#include <limits>
#include <optional>

#include "sp/attention/bf16_tiles.h"

namespace ringside::sp {
namespace {

bool is_causal(const VisibleKeys& visible, int64_t n, int64_t m) {
  return visible == kEarlierKeys && n == m;
}

void check_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const BlockMask& mask) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                  q.size(3) == k.size(3),
              "block attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  TORCH_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "block attention: ", q.size(2),
              " query heads are not a multiple of ", k.size(2), " key/value heads");
  for (const at::Tensor* x : {&k, &v}) {
    TORCH_CHECK(x->scalar_type() == q.scalar_type(), "block attention: keys or values in ",
                x->scalar_type(), " beside queries in ", q.scalar_type());
  }
  const bool tiles = q.scalar_type() == at::kBFloat16 && has_bf16_tiles(q.size(3));
  TORCH_CHECK(
      q.scalar_type() == at::kFloat || q.scalar_type() == at::kDouble || tiles,
      "block attention computes in fp32 or fp64, and in bf16 where the processor multiplies "
      "it, got ",
      q.scalar_type(), " with heads of ", q.size(3));
  const bool plain = mask.visible == VisibleKeys{} || is_causal(mask.visible, q.size(1), k.size(1));
  TORCH_CHECK(plain || q.scalar_type() != at::kDouble || mask.additive_nm.defined(),
              "block attention in fp64 needs the mask of block_mask() for a window");
}

std::optional<at::Tensor> if_defined(const at::Tensor& mask) {
  return mask.defined() ? std::make_optional(mask) : std::nullopt;
}

}  // namespace

BlockMask block_mask(const VisibleKeys& visible, int64_t n, int64_t m, at::ScalarType dtype) {
  if (dtype != at::kDouble || visible == VisibleKeys{} || is_causal(visible, n, m)) {
    return {visible, {}};
  }
  const at::Tensor distance =
      at::arange(n, at::kLong).unsqueeze(1) - at::arange(m, at::kLong).unsqueeze(0);
  const at::Tensor hidden = (distance < visible.low).logical_or_(distance >= visible.high);
  const at::Tensor additive = at::zeros({n, m}, dtype);
  additive.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  return {visible, additive};
}

PartialAttention block_attention(const at::Tensor& q_BnHD, const at::Tensor& k_BmKD,
                                 const at::Tensor& v_BmKD, const BlockMask& mask,
                                 double softmax_scale) {
  check_block(q_BnHD, k_BmKD, v_BmKD, mask);
  if (q_BnHD.scalar_type() == at::kBFloat16) {
    return tiled_attention_bf16(q_BnHD, k_BmKD, v_BmKD, mask.visible, softmax_scale);
  }
  if (q_BnHD.scalar_type() == at::kFloat) {
    return tiled_attention(q_BnHD, k_BmKD, v_BmKD, mask.visible, softmax_scale);
  }
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      q_BnHD.transpose(1, 2), k_BmKD.transpose(1, 2), v_BmKD.transpose(1, 2), /*dropout_p=*/0.0,
      is_causal(mask.visible, q_BnHD.size(1), k_BmKD.size(1)), if_defined(mask.additive_nm),
      softmax_scale);
  return {out.transpose(1, 2), lse.transpose(1, 2)};
}

BlockGradients block_attention_backward(const at::Tensor& dout_BnHD, const at::Tensor& q_BnHD,
                                        const at::Tensor& k_BmKD, const at::Tensor& v_BmKD,
                                        const at::Tensor& out_BnHD, const at::Tensor& lse_BnH,
                                        const BlockMask& mask, double softmax_scale) {
  check_block(q_BnHD, k_BmKD, v_BmKD, mask);
  if (q_BnHD.scalar_type() == at::kBFloat16) {
    return tiled_attention_bf16_backward(dout_BnHD, q_BnHD, k_BmKD, v_BmKD, out_BnHD, lse_BnH,
                                         mask.visible, softmax_scale);
  }
  if (q_BnHD.scalar_type() == at::kFloat) {
    return tiled_attention_backward(dout_BnHD, q_BnHD, k_BmKD, v_BmKD, out_BnHD, lse_BnH,
                                    mask.visible, softmax_scale);
  }
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      dout_BnHD.transpose(1, 2), q_BnHD.transpose(1, 2), k_BmKD.transpose(1, 2),
      v_BmKD.transpose(1, 2), out_BnHD.transpose(1, 2), lse_BnH.transpose(1, 2).contiguous(),
      /*dropout_p=*/0.0, is_causal(mask.visible, q_BnHD.size(1), k_BmKD.size(1)),
      if_defined(mask.additive_nm), softmax_scale);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

}  // namespace ringside::sp
