#include "sp/attention/block_attention.h"

#include <ATen/ATen.h>

#include <optional>

namespace ringside::sp {
namespace {

void check_block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const BlockMask& mask) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                  q.size(3) == k.size(3),
              "block attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  TORCH_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "block attention: ", q.size(2),
              " query heads are not a multiple of ", k.size(2), " key/value heads");
  TORCH_CHECK(!mask.causal || q.size(1) == k.size(1), "causal block attention is square, got ",
              q.size(1), " query rows and ", k.size(1), " key rows");
  TORCH_CHECK(q.scalar_type() == at::kFloat || q.scalar_type() == at::kDouble,
              "block attention computes in fp32 or fp64, got ", q.scalar_type());
}

std::optional<at::Tensor> if_defined(const at::Tensor& mask) {
  return mask.defined() ? std::make_optional(mask) : std::nullopt;
}

}  // namespace

PartialAttention block_attention(const at::Tensor& q_BnHD, const at::Tensor& k_BmKD,
                                 const at::Tensor& v_BmKD, const BlockMask& mask,
                                 double softmax_scale) {
  check_block(q_BnHD, k_BmKD, v_BmKD, mask);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      q_BnHD.transpose(1, 2), k_BmKD.transpose(1, 2), v_BmKD.transpose(1, 2), /*dropout_p=*/0.0,
      mask.causal, if_defined(mask.additive_nm), softmax_scale);
  return {out.transpose(1, 2), lse.transpose(1, 2)};
}

BlockGradients block_attention_backward(const at::Tensor& dout_BnHD, const at::Tensor& q_BnHD,
                                        const at::Tensor& k_BmKD, const at::Tensor& v_BmKD,
                                        const at::Tensor& out_BnHD, const at::Tensor& lse_BnH,
                                        const BlockMask& mask, double softmax_scale) {
  check_block(q_BnHD, k_BmKD, v_BmKD, mask);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      dout_BnHD.transpose(1, 2), q_BnHD.transpose(1, 2), k_BmKD.transpose(1, 2),
      v_BmKD.transpose(1, 2), out_BnHD.transpose(1, 2), lse_BnH.transpose(1, 2).contiguous(),
      /*dropout_p=*/0.0, mask.causal, if_defined(mask.additive_nm), softmax_scale);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

}  // namespace ringside::sp
