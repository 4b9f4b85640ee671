// The oracle of attention tests: dense masked softmax with autograd over one document after
// another, a shared token copied into every document that holds it. Written apart from the executor
// and its planner. Shapes: T = packed tokens, n = tokens of a document, H = query heads, K = KV
// heads, D = head dim.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "sp/layout/segment_forest.h"

namespace ringside::test {

struct DenseOptions {
  double scale = 1.0;
  int64_t window = 0;
  at::Tensor sinks_H;  // undefined = none
};

struct DenseResult {
  at::Tensor out_THD;
  at::Tensor lse_TH;
};

// Attention of one document; out_nHD and lse_nH.
inline DenseResult dense_document(const at::Tensor& q_nHD, const at::Tensor& k_nKD,
                                  const at::Tensor& v_nKD, const DenseOptions& options) {
  const int64_t n = q_nHD.size(0), group = q_nHD.size(1) / k_nKD.size(1);
  const auto by_head = [&](const at::Tensor& x, int64_t repeat) {
    return x.repeat_interleave(repeat, 1).transpose(0, 1);
  };
  const at::Tensor q = by_head(q_nHD, 1), k = by_head(k_nKD, group), v = by_head(v_nKD, group);
  at::Tensor hidden = at::ones({n, n}, at::kBool).triu(1);
  if (options.window > 0) {
    hidden = hidden.logical_or(at::ones({n, n}, at::kBool).tril(-options.window));
  }
  at::Tensor scores = (at::matmul(q, k.transpose(1, 2)) * options.scale)
                          .masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (options.sinks_H.defined()) {  // a column of its own whose value is zero
    scores = at::cat({scores, options.sinks_H.view({-1, 1, 1}).expand({-1, n, 1})}, -1);
  }
  const at::Tensor probs = at::softmax(scores, -1).narrow(-1, 0, n);
  return {at::matmul(probs, v).transpose(0, 1), at::logsumexp(scores, {-1}).transpose(0, 1)};
}

// Attention of every packed token of a forest. A document is the path from a root to a segment
// without children; a token's result is taken from the first document that holds it.
// Shapes: q_THD [T, H, D], k_TKD and v_TKD [T, K, D], out_THD [T, H, D], lse_TH [T, H].
inline DenseResult dense_attention(const at::Tensor& q_THD, const at::Tensor& k_TKD,
                                   const at::Tensor& v_TKD, const sp::SegmentForest& forest,
                                   const DenseOptions& options) {
  std::vector<at::Tensor> outs, lses;
  std::vector<int64_t> token_of_row;  // packed token of each row of outs that is used
  std::vector<int64_t> used_rows;
  std::vector<bool> seen(forest.num_tokens(), false);
  int64_t row = 0;
  for (int64_t leaf = 0; leaf < forest.num_segments(); ++leaf) {
    if (forest.subtree_end(leaf) != leaf + 1) {
      continue;
    }
    std::vector<int64_t> path;
    for (int64_t s = leaf; s != -1; s = forest.parent(s)) {
      path.insert(path.begin(), s);
    }
    std::vector<int64_t> tokens;
    for (const int64_t s : path) {
      for (int64_t t = forest.packed(s).begin; t < forest.packed(s).end; ++t) {
        tokens.push_back(t);
      }
    }
    const at::Tensor index = at::tensor(tokens, at::kLong);
    const auto result = dense_document(q_THD.index_select(0, index), k_TKD.index_select(0, index),
                                       v_TKD.index_select(0, index), options);
    outs.push_back(result.out_THD);
    lses.push_back(result.lse_TH);
    for (const int64_t t : tokens) {
      if (!seen[t]) {
        seen[t] = true;
        used_rows.push_back(row);
        token_of_row.push_back(t);
      }
      ++row;
    }
  }
  const at::Tensor used = at::tensor(used_rows, at::kLong);
  const at::Tensor place = at::tensor(token_of_row, at::kLong);
  const at::Tensor out = at::cat(outs).index_select(0, used);
  const at::Tensor lse = at::cat(lses).index_select(0, used);
  return {at::zeros_like(q_THD).index_copy(0, place, out),
          at::zeros({q_THD.size(0), q_THD.size(1)}, lse.options()).index_copy(0, place, lse)};
}

}  // namespace ringside::test
