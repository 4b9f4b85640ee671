#include "engine/generate/prompt_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/generate/cached_products.h"

namespace ringside::engine {
namespace {

// Query rows of a prompt whose scores exist at once.
constexpr int64_t kRowsAtOnce = 256;

// Rows `begin` and following of a prompt, each over the keys of its window.
// Shapes: q [H, n, D], k and v [K, n, D]; returns [H, rows, D].
at::Tensor attend_rows(const AttentionSpec& spec, const at::Tensor& q_HnD, const at::Tensor& k_KnD,
                       const at::Tensor& v_KnD, int64_t begin, int64_t rows) {
  const int64_t heads = q_HnD.size(0), kv_heads = k_KnD.size(0), d = q_HnD.size(2);
  const int64_t first = spec.window > 0 ? std::max<int64_t>(0, begin - spec.window + 1) : 0;
  const int64_t keys = begin + rows - first;
  // The g queries of a key/value head form one matrix.
  const at::Tensor q = q_HnD.narrow(1, begin, rows).reshape({kv_heads, -1, d});
  const at::Tensor scores =
      scaled_products(q, k_KnD.narrow(1, first, keys).transpose(1, 2), spec.softmax_scale)
          .view({heads, rows, keys});
  // By how much a query is behind a key.
  const at::Tensor behind = at::arange(begin, begin + rows, q.options().dtype(at::kLong))
                                .unsqueeze(1)
                                .sub(at::arange(first, begin + rows, q.options().dtype(at::kLong)));
  at::Tensor hidden = behind < 0;
  if (spec.window > 0) {
    hidden.logical_or_(behind >= spec.window);
  }
  scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor probs = softmax_with_sinks(scores.transpose(0, 1), spec.sinks_H).transpose(0, 1);
  return weighted_values(probs.reshape({kv_heads, -1, keys}), v_KnD.narrow(1, first, keys))
      .view({heads, rows, d});
}

}  // namespace

at::Tensor attend_prompt(const AttentionSpec& spec, const at::Tensor& q_HnD,
                         const at::Tensor& k_KnD, const at::Tensor& v_KnD) {
  const int64_t n = q_HnD.size(1);
  const bool hides_nothing = spec.window == 0 || n <= spec.window;
  if (hides_nothing && !spec.sinks_H.defined()) {
    // CUDA's kernels sum in fp32 themselves.
    const at::ScalarType dtype = q_HnD.is_cuda() ? q_HnD.scalar_type() : sum_dtype(q_HnD);
    const auto one = [dtype](const at::Tensor& x) { return x.to(dtype).unsqueeze(0); };
    return at::scaled_dot_product_attention(one(q_HnD), one(k_KnD), one(v_KnD), /*attn_mask=*/{},
                                            /*dropout_p=*/0.0, /*is_causal=*/true,
                                            spec.softmax_scale, /*enable_gqa=*/true)
        .squeeze(0)
        .to(q_HnD.scalar_type());
  }
  std::vector<at::Tensor> outs;
  for (int64_t begin = 0; begin < n; begin += kRowsAtOnce) {
    outs.push_back(attend_rows(spec, q_HnD, k_KnD, v_KnD, begin, std::min(kRowsAtOnce, n - begin)));
  }
  return at::cat(outs, 1);
}

}  // namespace ringside::engine
