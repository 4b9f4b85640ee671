// Shapes: N = rows of an entry with its padding; the others as in the header.
#include "sp/attention/cuda/cudnn_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

namespace ringside::sp {
namespace {

constexpr int64_t kLeastStep = 256;  // rows
constexpr int64_t kMaxHeadDim = 128;

// The rows of an entry with its padding: at most a 32nd more than it has, or kLeastStep.
int64_t padded_rows(int64_t rows) {
  const auto octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows)));
  const int64_t step = std::max(kLeastStep, octave / 32);
  return (rows + step - 1) / step * step;
}

std::vector<Range> entries_of(const VarlenGroupCall& call) {
  std::vector<Range> entries;
  for (std::size_t e = 0; e + 1 < call.query_begins.size(); ++e) {
    if (call.query_begins[e] < call.query_begins[e + 1]) {
      entries.push_back({call.query_begins[e], call.query_begins[e + 1]});
    }
  }
  return entries;
}

// Rows of x_nhD, padded with zeros to [1, h, N, D].
at::Tensor padded(const at::Tensor& x_nhD, Range rows) {
  const int64_t wanted = padded_rows(rows.size());
  at::Tensor entry = x_nhD.narrow(0, rows.begin, rows.size());
  if (wanted > rows.size() || !entry.is_contiguous()) {
    const at::Tensor wider = at::empty({wanted, x_nhD.size(1), x_nhD.size(2)}, x_nhD.options());
    wider.narrow(0, 0, rows.size()).copy_(entry);
    wider.narrow(0, rows.size(), wanted - rows.size()).zero_();
    entry = wider;
  }
  return entry.unsqueeze(0).transpose(1, 2);
}

// [1, h, N, D] -> [n, h, D].
at::Tensor own_rows(const at::Tensor& padded_1hND, int64_t rows) {
  return padded_1hND.squeeze(0).transpose(0, 1).narrow(0, 0, rows);
}

at::Tensor joined(const std::vector<at::Tensor>& parts, int64_t dim) {
  return parts.size() == 1 ? parts.front().contiguous() : at::cat(parts, dim);
}

}  // namespace

bool is_for_cudnn(const at::Tensor& q_nhD, const VarlenGroupCall& call, int64_t least_rows) {
  const auto dtype = q_nhD.scalar_type();
  if ((dtype != at::kBFloat16 && dtype != at::kHalf) || q_nhD.size(2) % 8 != 0 ||
      q_nhD.size(2) > kMaxHeadDim || !call.mask.causal() || call.query_begins != call.key_begins ||
      at::globalContext().deterministicAlgorithms() ||
      at::cuda::getDeviceProperties(q_nhD.get_device())->major < 9) {
    return false;
  }
  double rows = 0, pairs = 0;
  for (const Range& entry : entries_of(call)) {
    const auto size = static_cast<double>(entry.size());
    rows += size;
    pairs += size * size;
  }
  return rows > 0 && pairs / rows >= static_cast<double>(least_rows);
}

std::tuple<at::Tensor, at::Tensor> cudnn_attention(const at::Tensor& q_nhD, const at::Tensor& k_nKD,
                                                   const at::Tensor& v_nKD,
                                                   const VarlenGroupCall& call,
                                                   double softmax_scale) {
  std::vector<at::Tensor> outs_nhD, lses_hn;
  for (const Range& entry : entries_of(call)) {
    const at::Tensor q = padded(q_nhD, entry);
    const int64_t rows = q.size(2);
    const auto results = at::_cudnn_attention_forward(
        q, padded(k_nKD, entry), padded(v_nKD, entry), /*attn_bias=*/std::nullopt,
        /*cum_seq_q=*/std::nullopt, /*cum_seq_k=*/std::nullopt, rows, rows,
        /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, /*is_causal=*/true,
        /*return_debug_mask=*/false, softmax_scale);
    outs_nhD.push_back(own_rows(std::get<0>(results), entry.size()));
    lses_hn.push_back(std::get<1>(results).view({q.size(1), rows}).narrow(1, 0, entry.size()));
  }
  return {joined(outs_nhD, 0), joined(lses_hn, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_attention_backward(
    const at::Tensor& dout_nhD, const at::Tensor& q_nhD, const at::Tensor& k_nKD,
    const at::Tensor& v_nKD, const at::Tensor& out_nhD, const at::Tensor& lse_hn,
    const VarlenGroupCall& call, double softmax_scale) {
  std::vector<at::Tensor> dqs, dks, dvs;
  // Used only with dropout.
  const at::Tensor seed = at::empty({1}, q_nhD.options().dtype(at::kLong));
  const at::Tensor none;
  for (const Range& entry : entries_of(call)) {
    const at::Tensor q = padded(q_nhD, entry);
    const int64_t rows = q.size(2);
    // Of a row of padding every score is 0, and so is every gradient: its dout and out are 0.
    const at::Tensor lse = at::zeros({1, q.size(1), rows, 1}, lse_hn.options());
    lse.view({q.size(1), rows})
        .narrow(1, 0, entry.size())
        .copy_(lse_hn.narrow(1, entry.begin, entry.size()));
    const auto [dq, dk, dv] = at::_cudnn_attention_backward(
        padded(dout_nhD, entry), q, padded(k_nKD, entry), padded(v_nKD, entry),
        padded(out_nhD, entry), lse, seed, seed, /*attn_bias=*/none, /*cum_seq_q=*/none,
        /*cum_seq_k=*/none, rows, rows, /*dropout_p=*/0.0, /*is_causal=*/true, softmax_scale);
    dqs.push_back(own_rows(dq, entry.size()));
    dks.push_back(own_rows(dk, entry.size()));
    dvs.push_back(own_rows(dv, entry.size()));
  }
  return {joined(dqs, 0), joined(dks, 0), joined(dvs, 0)};
}

}  // namespace ringside::sp
