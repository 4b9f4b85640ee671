// Shapes: t = query rows of a tile, u = key rows that they may see, g = query heads of a KV head;
// the others as in the header.
#include "sp/attention/cuda/exact_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace ringside::sp {
namespace {

constexpr double kNoScore = -std::numeric_limits<double>::infinity();

// Query rows of one entry, and the keys that some of them see.
struct Tile {
  Range query;  // packed rows
  Range key;
  int64_t diagonal = 0;  // query row i of the tile sees keys up to diagonal + i + right
  bool masked = false;   // some row does not see some key
};

// The kernel's reading of a mask: a bound of max_k or more is none, and none beside a bound is
// max_k.
struct Bounds {
  explicit Bounds(const VarlenGroupCall& call)
      : left(call.mask.left < 0 ? call.max_key : std::min(call.mask.left, call.max_key)),
        right(call.mask.right < 0 ? call.max_key : std::min(call.mask.right, call.max_key)) {
    none = left == call.max_key && right == call.max_key;
  }
  int64_t left;
  int64_t right;
  bool none;
};

std::vector<Tile> tiles_of(const VarlenGroupCall& call, int64_t query_heads, int64_t max_scores) {
  const Bounds bounds(call);
  std::vector<Tile> tiles;
  for (std::size_t e = 0; e + 1 < call.query_begins.size(); ++e) {
    const Range query{call.query_begins[e], call.query_begins[e + 1]};
    const Range key{call.key_begins[e], call.key_begins[e + 1]};
    const int64_t offset = key.size() - query.size();
    const int64_t scores_of_row = std::max<int64_t>(1, query_heads * key.size());
    const int64_t rows = std::max<int64_t>(1, max_scores / scores_of_row);
    for (int64_t begin = 0; begin < query.size(); begin += rows) {
      const int64_t end = std::min(begin + rows, query.size());
      Range seen{0, key.size()};
      if (!bounds.none) {
        seen.begin = std::clamp<int64_t>(begin + offset - bounds.left, 0, key.size());
        seen.end = std::clamp<int64_t>(end + offset + bounds.right, seen.begin, key.size());
      }
      tiles.push_back({{query.begin + begin, query.begin + end},
                       {key.begin + seen.begin, key.begin + seen.end},
                       begin + offset - seen.begin,
                       !bounds.none});
    }
  }
  return tiles;
}

// [t, h, D] -> [K, g * t, D].
at::Tensor by_kv_head(const at::Tensor& x_nhD, Range rows, int64_t kv_heads) {
  const at::Tensor tile = x_nhD.narrow(0, rows.begin, rows.size());
  return tile.unflatten(1, {kv_heads, tile.size(1) / kv_heads}).permute({1, 2, 0, 3}).flatten(1, 2);
}

// [K, g * t, D] -> [t, h, D].
at::Tensor by_row(const at::Tensor& x, int64_t rows) {
  return x.unflatten(1, {x.size(1) / rows, rows}).permute({2, 0, 1, 3}).flatten(1, 2);
}

// [u, K, D] -> [K, u, D].
at::Tensor keys(const at::Tensor& x_mKD, const Tile& tile) {
  return x_mKD.narrow(0, tile.key.begin, tile.key.size()).transpose(0, 1);
}

// q k^T of a tile, scaled and masked: [K, g * t, u].
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, const Tile& tile,
                     const Bounds& bounds, double softmax_scale) {
  at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(softmax_scale);
  if (tile.masked) {
    const auto integers = q.options().dtype(at::kLong);
    const at::Tensor last = (at::arange(tile.query.size(), integers) + tile.diagonal).unsqueeze(1);
    const at::Tensor key = at::arange(tile.key.size(), integers).unsqueeze(0);
    const at::Tensor hidden = (key > last + bounds.right).logical_or_(key < last - bounds.left);
    scores.unflatten(1, {-1, tile.query.size()}).masked_fill_(hidden, kNoScore);
  }
  return scores;
}

// Rows [K, g * t] of lse_hn's columns of a tile.
at::Tensor lse_of(const at::Tensor& lse_hn, const Tile& tile, int64_t kv_heads) {
  return lse_hn.narrow(1, tile.query.begin, tile.query.size()).reshape({kv_heads, -1});
}

// exp(scores - lse), 0 where lse is -inf. Overwrites the scores.
at::Tensor probabilities(at::Tensor scores, const at::Tensor& lse) {
  return scores.sub_(lse.masked_fill(lse == kNoScore, 0).unsqueeze(2)).exp_();
}

void check_exact(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const VarlenGroupCall& call) {
  const auto dtype = q.scalar_type();
  TORCH_CHECK((dtype == at::kFloat || dtype == at::kDouble) && k.scalar_type() == dtype &&
                  v.scalar_type() == dtype,
              "exact attention: q, k and v in one of fp32 and fp64, got ", dtype, ", ",
              k.scalar_type(), " and ", v.scalar_type());
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && k.sizes() == v.sizes() && q.size(2) == k.size(2) &&
                  k.size(1) > 0 && q.size(1) % k.size(1) == 0,
              "exact attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  TORCH_CHECK(call.query_begins.size() == call.key_begins.size() && !call.query_begins.empty() &&
                  call.query_begins.back() == q.size(0) && call.key_begins.back() == k.size(0),
              "exact attention: a call of ", call.query_begins.size(), " and ",
              call.key_begins.size(), " boundaries for ", q.size(0), " and ", k.size(0), " rows");
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> exact_attention(const at::Tensor& q_nhD, const at::Tensor& k_mKD,
                                                   const at::Tensor& v_mKD,
                                                   const VarlenGroupCall& call,
                                                   double softmax_scale, int64_t max_scores) {
  check_exact(q_nhD, k_mKD, v_mKD, call);
  const int64_t kv_heads = k_mKD.size(1);
  at::Tensor out_nhD = at::empty(q_nhD.sizes(), q_nhD.options());
  at::Tensor lse_hn = at::empty({q_nhD.size(1), q_nhD.size(0)}, q_nhD.options());
  for (const Tile& tile : tiles_of(call, q_nhD.size(1), max_scores)) {
    const at::Tensor q = by_kv_head(q_nhD, tile.query, kv_heads);
    const at::Tensor scores = scores_of(q, keys(k_mKD, tile), tile, Bounds(call), softmax_scale);
    const at::Tensor lse = at::logsumexp(scores, {2});
    const at::Tensor out = at::bmm(probabilities(scores, lse), keys(v_mKD, tile));
    out_nhD.narrow(0, tile.query.begin, tile.query.size()).copy_(by_row(out, tile.query.size()));
    lse_hn.narrow(1, tile.query.begin, tile.query.size())
        .copy_(lse.view({q_nhD.size(1), tile.query.size()}));
  }
  return {out_nhD, lse_hn};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> exact_attention_backward(
    const at::Tensor& dout_nhD, const at::Tensor& q_nhD, const at::Tensor& k_mKD,
    const at::Tensor& v_mKD, const at::Tensor& out_nhD, const at::Tensor& lse_hn,
    const VarlenGroupCall& call, double softmax_scale, int64_t max_scores) {
  check_exact(q_nhD, k_mKD, v_mKD, call);
  const int64_t kv_heads = k_mKD.size(1);
  at::Tensor dq_nhD = at::empty(q_nhD.sizes(), q_nhD.options());
  at::Tensor dk_mKD = at::zeros(k_mKD.sizes(), k_mKD.options());
  at::Tensor dv_mKD = at::zeros(v_mKD.sizes(), v_mKD.options());
  for (const Tile& tile : tiles_of(call, q_nhD.size(1), max_scores)) {
    const at::Tensor q = by_kv_head(q_nhD, tile.query, kv_heads);
    const at::Tensor dout = by_kv_head(dout_nhD, tile.query, kv_heads);
    const at::Tensor out = by_kv_head(out_nhD, tile.query, kv_heads);
    const at::Tensor k = keys(k_mKD, tile);
    const at::Tensor v = keys(v_mKD, tile);
    const at::Tensor probs = probabilities(scores_of(q, k, tile, Bounds(call), softmax_scale),
                                           lse_of(lse_hn, tile, kv_heads));
    const at::Tensor delta = (dout * out).sum(2, /*keepdim=*/true);
    const at::Tensor dscores =
        at::bmm(dout, v.transpose(1, 2)).sub_(delta).mul_(probs).mul_(softmax_scale);
    dq_nhD.narrow(0, tile.query.begin, tile.query.size())
        .copy_(by_row(at::bmm(dscores, k), tile.query.size()));
    keys(dk_mKD, tile).add_(at::bmm(dscores.transpose(1, 2), q));
    keys(dv_mKD, tile).add_(at::bmm(probs.transpose(1, 2), dout));
  }
  return {dq_nhD, dk_mKD, dv_mKD};
}

}  // namespace ringside::sp
