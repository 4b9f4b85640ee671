// VarlenGroupOps on the CPU, in plain ATen: the twin that the CUDA kernels are compared with, and
// what the varlen_groups run on where there is no GPU. attend and attend_backward read masks as the
// flash kernel does, its surprises included. In bf16 and fp16 they round what the kernel rounds
// (probabilities, score gradients, results), so their errors are of its size. Shapes: n/m =
// query/key rows of a block, h = query heads, K = KV heads, D = head dim.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <tuple>
#include <vector>

#include "sp/attention/cuda/exact_attention.h"
#include "sp/attention/cuda/varlen_group_ops.h"

namespace ringside::test {

class CpuVarlenGroupOps : public sp::VarlenGroupOps {
 public:
  at::DeviceType device() const override { return at::kCPU; }
  at::ScalarType compute_dtype(at::ScalarType wire_dtype) const override { return wire_dtype; }

  std::tuple<at::Tensor, at::Tensor> attend(const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v, const sp::VarlenGroupCall& call,
                                            double softmax_scale) const override {
    const auto accumulated = sp::accumulation_dtype(q.scalar_type());
    at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
    at::Tensor lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(accumulated));
    for (const Rows& rows : blocks_of(call)) {
      const at::Tensor scores_hnm = scores(rows.query(q), rows.key(k), call, softmax_scale);
      const at::Tensor lse_hn = at::logsumexp(scores_hnm, {2});
      const at::Tensor empty = lse_hn == -kInfinity;
      const at::Tensor probs = at::exp(scores_hnm - lse_hn.masked_fill(empty, 0).unsqueeze(2));
      const at::Tensor wide =
          at::matmul(round(probs, q.scalar_type()), by_head(rows.key(v), q.size(1)));
      rows.query(out).copy_(wide.transpose(0, 1));
      // The kernel's LSE of a row without keys is +inf: a plan that has such rows must show.
      lse.narrow(1, rows.query_begin, rows.queries).copy_(lse_hn.masked_fill(empty, kInfinity));
    }
    return {out, lse};
  }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
      const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
      const at::Tensor& out, const at::Tensor& lse_hn, const sp::VarlenGroupCall& call,
      double softmax_scale) const override {
    const auto dtype = q.scalar_type();
    const int64_t h = q.size(1), K = k.size(1);
    at::Tensor dq = at::zeros_like(q, at::MemoryFormat::Contiguous),
               dk = at::zeros_like(k, at::MemoryFormat::Contiguous),
               dv = at::zeros_like(k, at::MemoryFormat::Contiguous);
    const auto to_rows = [](const at::Tensor& x_hnD) { return x_hnD.transpose(0, 1); };
    const auto sum_groups = [&](const at::Tensor& x_hmD) {
      return to_rows(x_hmD.view({K, h / K, x_hmD.size(1), x_hmD.size(2)}).sum(1));
    };
    for (const Rows& rows : blocks_of(call)) {
      const at::Tensor dout_hnD = by_head(rows.query(dout), h), q_hnD = by_head(rows.query(q), h);
      const at::Tensor k_hmD = by_head(rows.key(k), h), v_hmD = by_head(rows.key(v), h);
      const at::Tensor lse = lse_hn.narrow(1, rows.query_begin, rows.queries).unsqueeze(2);
      const at::Tensor probs =
          at::exp(scores(rows.query(q), rows.key(k), call, softmax_scale) - lse);
      const at::Tensor delta = (dout_hnD * by_head(rows.query(out), h)).sum(2, /*keepdim=*/true);
      const at::Tensor dscores =
          round(probs * (at::matmul(dout_hnD, v_hmD.transpose(1, 2)) - delta), dtype);
      rows.query(dq).copy_(to_rows(at::matmul(dscores, k_hmD) * softmax_scale));
      rows.key(dk).copy_(sum_groups(at::matmul(dscores.transpose(1, 2), q_hnD) * softmax_scale));
      rows.key(dv).copy_(sum_groups(at::matmul(round(probs, dtype).transpose(1, 2), dout_hnD)));
    }
    return {dq, dk, dv};
  }

  at::Tensor gather_rows(const at::Tensor& rows, const sp::DeviceMoves& moves) const override {
    const auto [from, to] = indices(moves);
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[0] = moves.rows;
    return at::empty(sizes, rows.options()).index_copy(0, to, rows.index_select(0, from));
  }

  void add_rows(at::Tensor& whole, const at::Tensor& part, const sp::DeviceSums& sums,
                int64_t head_begin) const override {
    std::vector<int64_t> from, to;
    const auto table = sums.sums.accessor<int64_t, 2>();
    const auto sources = sums.sources.accessor<int64_t, 1>();
    for (int64_t i = 0; i < table.size(0); ++i) {
      const int64_t end = i + 1 < table.size(0) ? table[i + 1][0] : sums.rows;
      for (int64_t source = table[i][2]; source < table[i][3]; ++source) {
        for (int64_t r = 0; r < end - table[i][0]; ++r) {
          from.push_back(sources[source] + r);
          to.push_back(table[i][1] + r);
        }
      }
    }
    whole.narrow(1, head_begin, part.size(1))
        .index_add_(0, at::tensor(to, at::kLong),
                    part.index_select(0, at::tensor(from, at::kLong)).to(whole.scalar_type()));
  }

  void merge_rows(sp::PartialAttention& whole, const sp::PartialAttention& part,
                  const sp::DeviceMoves& moves, int64_t head_begin) const override {
    place(whole, part, moves, head_begin, sp::merge_rows);
  }

  void write_rows(sp::PartialAttention& whole, const sp::PartialAttention& part,
                  const sp::DeviceMoves& moves, int64_t head_begin) const override {
    place(whole, part, moves, head_begin, sp::write_rows);
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  struct Rows {
    int64_t query_begin, queries, key_begin, keys;
    at::Tensor query(const at::Tensor& x) const { return x.narrow(0, query_begin, queries); }
    at::Tensor key(const at::Tensor& x) const { return x.narrow(0, key_begin, keys); }
  };

  static std::vector<Rows> blocks_of(const sp::VarlenGroupCall& call) {
    std::vector<Rows> blocks;
    const auto q = call.cumulative_query.accessor<int32_t, 1>(),
               k = call.cumulative_key.accessor<int32_t, 1>();
    for (int64_t b = 0; b + 1 < q.size(0); ++b) {
      TORCH_CHECK(q[b + 1] - q[b] <= call.max_query && k[b + 1] - k[b] <= call.max_key,
                  "a block is above the maximum");
      blocks.push_back({q[b], q[b + 1] - q[b], k[b], k[b + 1] - k[b]});
    }
    return blocks;
  }

  static at::Tensor round(const at::Tensor& x, at::ScalarType dtype) {
    return x.to(dtype).to(x.scalar_type());
  }

  // [n, K, D] -> [h, n, D] in the accumulation dtype, KV heads repeated.
  static at::Tensor by_head(const at::Tensor& x, int64_t heads) {
    return x.to(sp::accumulation_dtype(x.scalar_type()))
        .repeat_interleave(heads / x.size(1), 1)
        .transpose(0, 1);
  }

  static at::Tensor scores(const at::Tensor& q, const at::Tensor& k,
                           const sp::VarlenGroupCall& call, double softmax_scale) {
    const int64_t n = q.size(0), m = k.size(0), h = q.size(1);
    const at::Tensor scores_hnm =
        at::matmul(by_head(q, h), by_head(k, h).transpose(1, 2)) * softmax_scale;
    int64_t left = call.mask.left >= call.max_key ? -1 : call.mask.left;
    int64_t right = call.mask.right >= call.max_key ? -1 : call.mask.right;
    if (left < 0 && right < 0) {
      return scores_hnm;
    }
    left = left < 0 ? call.max_key : left;
    right = right < 0 ? call.max_key : right;
    const at::Tensor last = at::arange(n).unsqueeze(1) + (m - n);
    const at::Tensor key = at::arange(m).unsqueeze(0);
    return scores_hnm.masked_fill((key < last - left).logical_or(key > last + right), -kInfinity);
  }

  static std::tuple<at::Tensor, at::Tensor> indices(const sp::DeviceMoves& moves) {
    std::vector<int64_t> from, to;
    const auto table = moves.table.accessor<int64_t, 2>();
    for (int64_t i = 0; i < table.size(0); ++i) {
      const int64_t end = i + 1 < table.size(0) ? table[i + 1][0] : moves.rows;
      for (int64_t r = 0; r < end - table[i][0]; ++r) {
        from.push_back(table[i][1] + r);
        to.push_back(table[i][2] + r);
      }
    }
    return {at::tensor(from, at::kLong), at::tensor(to, at::kLong)};
  }

  template <class Place>
  static void place(sp::PartialAttention& whole, const sp::PartialAttention& part,
                    const sp::DeviceMoves& moves, int64_t head_begin, Place each) {
    const auto dtype = whole.out.scalar_type();
    const auto [from, to] = indices(moves);
    const at::Tensor out = part.out.index_select(0, from).to(dtype),
                     lse = part.lse.t().index_select(0, from).to(dtype);
    const std::vector<int64_t> begins(to.data_ptr<int64_t>(), to.data_ptr<int64_t>() + to.numel());
    each(whole, {out.unsqueeze(1), lse.unsqueeze(1)}, {begins, head_begin});
  }
};

// The same with exact attention in fp32 or fp64, in small tiles.
class ExactOps final : public CpuVarlenGroupOps {
 public:
  std::tuple<at::Tensor, at::Tensor> attend(const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v, const sp::VarlenGroupCall& call,
                                            double softmax_scale) const override {
    return sp::exact_attention(q, k, v, call, softmax_scale, kScores);
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
      const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
      const at::Tensor& out, const at::Tensor& lse_hn, const sp::VarlenGroupCall& call,
      double softmax_scale) const override {
    return sp::exact_attention_backward(dout, q, k, v, out, lse_hn, call, softmax_scale, kScores);
  }

 private:
  static constexpr int64_t kScores = 200;
};

}  // namespace ringside::test
