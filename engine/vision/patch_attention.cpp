#include "engine/vision/patch_attention.h"

#include <ATen/ATen.h>

#include <vector>

namespace ringside::engine {
namespace {

// Rows [begin, begin + count * length) as [count, H, length, D].
at::Tensor segments_of(const at::Tensor& x_pHD, int64_t begin, const SegmentRun& run) {
  return x_pHD.narrow(0, begin, run.count * run.length)
      .unflatten(0, {run.count, run.length})
      .transpose(1, 2);
}

}  // namespace

at::Tensor PatchAttention::attend(const AttentionSpec& spec, const at::Tensor& q_pHD,
                                  const at::Tensor& k_pHD, const at::Tensor& v_pHD) {
  TORCH_CHECK(q_pHD.dim() == 3 && q_pHD.size(0) == tables_.patches, "vision tower: queries of ",
              q_pHD.sizes(), " for ", tables_.patches, " patches");
  std::vector<at::Tensor> outs;
  int64_t begin = 0;
  for (const SegmentRun& run : tables_.segments(config_.is_windowed(spec.layer))) {
    const at::Tensor out_gHlD = at::scaled_dot_product_attention(
        segments_of(q_pHD, begin, run), segments_of(k_pHD, begin, run),
        segments_of(v_pHD, begin, run), /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/false,
        spec.softmax_scale);
    outs.push_back(out_gHlD.transpose(1, 2).flatten(0, 1));
    begin += run.count * run.length;
  }
  // Without patches the values are the result, which keeps it in the graph.
  return outs.empty() ? v_pHD.contiguous() : outs.size() == 1 ? outs.front() : at::cat(outs);
}

}  // namespace ringside::engine
