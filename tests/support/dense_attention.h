// The oracle of attention tests: dense masked softmax with autograd, one document after another, written apart from
// the executor.
// Shapes: T = packed tokens, H = query heads, K = KV heads, D = head dim.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <vector>

namespace ringside::test {

inline at::Tensor dense_attention(const at::Tensor& q_THD, const at::Tensor& k_TKD,
                                  const at::Tensor& v_TKD, const std::vector<int64_t>& lengths,
                                  double scale) {
  const int64_t group = q_THD.size(1) / k_TKD.size(1);
  std::vector<at::Tensor> outs;
  int64_t begin = 0;
  for (const int64_t n : lengths) {
    const auto part = [&](const at::Tensor& x, int64_t repeat) {
      return x.narrow(0, begin, n).repeat_interleave(repeat, 1).transpose(0, 1);
    };
    const at::Tensor q = part(q_THD, 1), k = part(k_TKD, group), v = part(v_TKD, group);
    const at::Tensor future = at::ones({n, n}, at::kBool).triu(1);
    const at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * scale;
    const at::Tensor probs =
        at::softmax(scores.masked_fill(future, -std::numeric_limits<double>::infinity()), -1);
    outs.push_back(at::matmul(probs, v).transpose(0, 1));
    begin += n;
  }
  return at::cat(outs);
}

}  // namespace ringside::test
