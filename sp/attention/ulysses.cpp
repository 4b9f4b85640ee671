#include "sp/attention/ulysses.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace ringside::sp {
namespace {

at::Tensor heads(const at::Tensor& x_sHD, Range range) {
  return x_sHD.narrow(1, range.begin, range.size());
}

// Sends pieces[u] (any shape) to rank u and returns what the others sent, one flat tensor in rank order.
at::Tensor exchange(const std::vector<at::Tensor>& pieces, const std::vector<int64_t>& recv_counts,
                    Communicator& ulysses, const char* tag) {
  std::vector<at::Tensor> flat;
  std::vector<int64_t> send_counts;
  for (const at::Tensor& piece : pieces) {
    flat.push_back(piece.reshape({-1}));
    send_counts.push_back(piece.numel());
  }
  return ulysses.all_to_all(at::cat(flat), send_counts, recv_counts, tag);
}

// Elements received when every rank u sends its own run of tokens with row_elements elements each.
std::vector<int64_t> counts_by_rows(const AttentionPlan& plan, int64_t row_elements) {
  std::vector<int64_t> counts;
  for (const int64_t rows : plan.ulysses_rows) {
    counts.push_back(rows * row_elements);
  }
  return counts;
}

// Sends each rank its rows of x_ShD; returns one [s, heads of u, D] piece per source rank.
std::vector<at::Tensor> scatter_rows(const at::Tensor& x_ShD, const AttentionPlan& plan,
                                     const std::vector<int64_t>& heads_of, Communicator& ulysses,
                                     const char* tag) {
  const int64_t d = x_ShD.size(2);
  std::vector<int64_t> recv_counts;
  for (const int64_t h : heads_of) {
    recv_counts.push_back(plan.local_rows() * h * d);
  }
  const at::Tensor received =
      ulysses.all_to_all(x_ShD.contiguous().view({-1}), counts_by_rows(plan, x_ShD.size(1) * d),
                         recv_counts, tag);
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (std::size_t u = 0; u < heads_of.size(); ++u) {
    pieces.push_back(received.narrow(0, begin, recv_counts[u]).view({plan.local_rows(), heads_of[u], d}));
    begin += recv_counts[u];
  }
  return pieces;
}

}  // namespace

at::Tensor sequence_to_heads(const at::Tensor& q_sHD, const AttentionPlan& plan, Communicator& ulysses) {
  if (plan.ulysses_size() == 1) {
    return q_sHD;
  }
  std::vector<at::Tensor> pieces;
  for (const Range& range : plan.head_split.query_heads_of) {
    pieces.push_back(heads(q_sHD, range));
  }
  const int64_t d = plan.heads.head_dim;
  const int64_t h = plan.local_query_heads();
  return exchange(pieces, counts_by_rows(plan, h * d), ulysses, "ulysses_query")
      .view({plan.share_rows, h, d});
}

at::Tensor heads_to_sequence(const at::Tensor& out_ShD, const AttentionPlan& plan, Communicator& ulysses) {
  if (plan.ulysses_size() == 1) {
    return out_ShD;
  }
  std::vector<int64_t> heads_of;
  for (const Range& range : plan.head_split.query_heads_of) {
    heads_of.push_back(range.size());
  }
  return at::cat(scatter_rows(out_ShD, plan, heads_of, ulysses, "ulysses_output"), /*dim=*/1);
}

at::Tensor kv_sequence_to_heads(const at::Tensor& k_sKD, const at::Tensor& v_sKD,
                                const AttentionPlan& plan, Communicator& ulysses) {
  if (plan.ulysses_size() == 1) {
    return at::cat({k_sKD, v_sKD}, /*dim=*/1);
  }
  std::vector<at::Tensor> pieces;
  for (const Range& range : plan.head_split.kv_heads_of) {
    pieces.push_back(at::cat({heads(k_sKD, range), heads(v_sKD, range)}, /*dim=*/1));
  }
  const int64_t d = plan.heads.head_dim;
  const int64_t k = plan.local_kv_heads();
  return exchange(pieces, counts_by_rows(plan, 2 * k * d), ulysses, "ulysses_kv")
      .view({plan.share_rows, 2 * k, d});
}

std::pair<at::Tensor, at::Tensor> kv_heads_to_sequence(const at::Tensor& dkv_S2kD,
                                                       const AttentionPlan& plan,
                                                       Communicator& ulysses) {
  if (plan.ulysses_size() == 1) {
    const int64_t k = plan.local_kv_heads();
    return {dkv_S2kD.narrow(1, 0, k), dkv_S2kD.narrow(1, k, k)};
  }
  std::vector<int64_t> heads_of;
  for (const Range& range : plan.head_split.kv_heads_of) {
    heads_of.push_back(2 * range.size());
  }
  const auto pieces = scatter_rows(dkv_S2kD, plan, heads_of, ulysses, "ulysses_kv_grad");
  at::Tensor dk = at::zeros({plan.local_rows(), plan.heads.num_kv_heads, plan.heads.head_dim},
                            dkv_S2kD.options());
  at::Tensor dv = at::zeros_like(dk);
  for (std::size_t u = 0; u < pieces.size(); ++u) {
    const Range range = plan.head_split.kv_heads_of[u];
    heads(dk, range).add_(pieces[u].narrow(1, 0, range.size()));
    heads(dv, range).add_(pieces[u].narrow(1, range.size(), range.size()));
  }
  return {dk, dv};
}

}  // namespace ringside::sp
