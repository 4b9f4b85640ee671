#include "sp/attention/ring.h"

#include <ATen/ATen.h>

#include <utility>

#include "sp/attention/block_attention.h"
#include "sp/attention/row_selection.h"

namespace ringside::sp {
namespace {

// Keys and values going round: holds the buffer of the current step and fetches the next one meanwhile.
class KvRing {
 public:
  KvRing(at::Tensor own_kv, const AttentionPlan& plan, Communicator& ring)
      : current_(std::move(own_kv)), plan_(plan), ring_(ring) {}

  // Starts the transfer of step + 1's buffer, unless step is the last.
  void prefetch(int64_t step) {
    if (step + 1 == plan_.ring_size()) {
      return;
    }
    const int64_t size = plan_.ring_size();
    const int64_t next_owner = plan_.steps[step + 1].kv_owner;
    next_ = at::empty({plan_.ring_share_rows[next_owner], current_.size(1), current_.size(2)},
                      current_.options());
    transfer_ = ring_.send_recv(current_, (plan_.ring_rank + 1) % size, next_,
                                (plan_.ring_rank - 1 + size) % size, "ring_kv");
  }

  // The buffer of the current step in the accumulation dtype.
  at::Tensor keys_and_values() const { return current_.to(accumulation_dtype(current_.scalar_type())); }

  void advance() {
    if (transfer_) {
      transfer_->wait();
      transfer_.reset();
      current_ = std::move(next_);
    }
  }

 private:
  at::Tensor current_;
  at::Tensor next_;
  std::unique_ptr<Transfer> transfer_;
  const AttentionPlan& plan_;
  Communicator& ring_;
};

at::Tensor heads(const at::Tensor& x, Range range) {
  return x.narrow(2, range.begin, range.size());
}

// The k and v slices of a head group out of gathered [B, m, 2k, D] keys and values.
std::pair<at::Tensor, at::Tensor> split_kv(const at::Tensor& kv_Bm2kD, Range kv_heads) {
  const int64_t k = kv_Bm2kD.size(2) / 2;
  return {heads(kv_Bm2kD, kv_heads), heads(kv_Bm2kD, {k + kv_heads.begin, k + kv_heads.end})};
}

PartialAttention run_batch(const BlockBatch& batch, const std::vector<HeadGroup>& groups,
                           const at::Tensor& q_BnhD, const at::Tensor& kv_Bm2kD, double scale) {
  std::vector<at::Tensor> outs;
  std::vector<at::Tensor> lses;
  for (const HeadGroup& group : groups) {
    const auto [k, v] = split_kv(kv_Bm2kD, group.kv_heads);
    const auto part = block_attention(heads(q_BnhD, group.query_heads), k, v,
                                      batch.kind == BlockKind::kCausal, scale);
    outs.push_back(part.out);
    lses.push_back(part.lse);
  }
  return groups.size() == 1 ? PartialAttention{outs[0], lses[0]}
                            : PartialAttention{at::cat(outs, 2), at::cat(lses, 2)};
}

// One batch's contribution to dq (of this rank's rows) and dkv (of the KV owner's rows).
void run_batch_backward(const BlockBatch& batch, const std::vector<HeadGroup>& groups,
                        const at::Tensor& dout, const at::Tensor& q, const at::Tensor& kv,
                        const at::Tensor& out, const at::Tensor& lse, double scale, at::Tensor& dq,
                        at::Tensor& dkv) {
  const RowSelection query(batch.query_begins, batch.query_rows);
  const RowSelection key(batch.key_begins, batch.key_rows);
  const at::Tensor kv_Bm2kD = key.gather(kv);
  const at::Tensor dout_B = query.gather(dout);
  const at::Tensor q_B = query.gather(q);
  const at::Tensor out_B = query.gather(out);
  const at::Tensor lse_B = query.gather(lse);
  std::vector<at::Tensor> dqs;
  std::vector<at::Tensor> dks;
  std::vector<at::Tensor> dvs;
  for (const HeadGroup& group : groups) {
    const auto [k, v] = split_kv(kv_Bm2kD, group.kv_heads);
    const Range h = group.query_heads;
    auto grads = block_attention_backward(heads(dout_B, h), heads(q_B, h), k, v, heads(out_B, h),
                                          heads(lse_B, h), batch.kind == BlockKind::kCausal, scale);
    dqs.push_back(std::move(grads.dq_BnHD));
    dks.push_back(std::move(grads.dk_BmKD));
    dvs.push_back(std::move(grads.dv_BmKD));
  }
  query.add(dq, groups.size() == 1 ? dqs[0] : at::cat(dqs, 2));
  dks.insert(dks.end(), dvs.begin(), dvs.end());
  key.add(dkv, at::cat(dks, 2));
}

}  // namespace

at::ScalarType accumulation_dtype(at::ScalarType wire_dtype) {
  return wire_dtype == at::kDouble ? at::kDouble : at::kFloat;
}

PartialAttention ring_forward(const at::Tensor& q_ShD, const at::Tensor& kv_S2kD,
                              const AttentionPlan& plan, Communicator& ring, double softmax_scale) {
  const at::Tensor q = q_ShD.to(accumulation_dtype(q_ShD.scalar_type()));
  // Every row's own diagonal block initialises it, so nothing here is read before it is written.
  PartialAttention result{at::empty(q.sizes(), q.options()),
                          at::empty({q.size(0), q.size(1)}, q.options())};
  KvRing kv_ring(kv_S2kD.contiguous(), plan, ring);
  for (int64_t step = 0; step < plan.ring_size(); ++step) {
    kv_ring.prefetch(step);
    const at::Tensor kv = kv_ring.keys_and_values();
    for (const BlockBatch& batch : plan.steps[step].batches) {
      const RowSelection query(batch.query_begins, batch.query_rows);
      const RowSelection key(batch.key_begins, batch.key_rows);
      auto part = run_batch(batch, plan.head_groups, query.gather(q), key.gather(kv), softmax_scale);
      if (batch.merge) {
        part = merge_partials({query.gather(result.out), query.gather(result.lse)}, part);
      }
      query.write(result.out, part.out);
      query.write(result.lse, part.lse);
    }
    kv_ring.advance();
  }
  return result;
}

RingGradients ring_backward(const at::Tensor& dout_ShD, const at::Tensor& q_ShD,
                            const at::Tensor& kv_S2kD, const at::Tensor& out_ShD,
                            const at::Tensor& lse_Sh, const AttentionPlan& plan, Communicator& ring,
                            double softmax_scale) {
  const auto dtype = accumulation_dtype(q_ShD.scalar_type());
  const at::Tensor dout = dout_ShD.to(dtype);
  const at::Tensor q = q_ShD.to(dtype);
  const at::Tensor out = out_ShD.to(dtype);
  at::Tensor dq = at::zeros(q.sizes(), q.options());
  at::Tensor own_dkv = at::zeros(kv_S2kD.sizes(), q.options());
  const int64_t size = plan.ring_size();
  const int64_t to = (plan.ring_rank + 1) % size;
  const int64_t from = (plan.ring_rank - 1 + size) % size;
  KvRing kv_ring(kv_S2kD.contiguous(), plan, ring);
  std::unique_ptr<Transfer> gradient_transfer;  // of the gradient that this rank passed on last
  at::Tensor incoming;
  for (int64_t step = 0; step < size; ++step) {
    kv_ring.prefetch(step);
    const at::Tensor kv = kv_ring.keys_and_values();
    at::Tensor dkv = step == 0 ? own_dkv : at::zeros(kv.sizes(), q.options());
    for (const BlockBatch& batch : plan.steps[step].batches) {
      run_batch_backward(batch, plan.head_groups, dout, q, kv, out, lse_Sh, softmax_scale, dq, dkv);
    }
    if (step >= 1) {
      if (gradient_transfer) {  // the sum of the ranks that held this KV before
        gradient_transfer->wait();
        dkv.add_(incoming);
      }
      const int64_t next_owner = step + 1 < size ? plan.steps[step + 1].kv_owner : plan.ring_rank;
      incoming = at::empty({plan.ring_share_rows[next_owner], kv.size(1), kv.size(2)}, q.options());
      gradient_transfer = ring.send_recv(dkv, to, incoming, from, "ring_kv_grad");
    }
    kv_ring.advance();
  }
  if (gradient_transfer) {
    gradient_transfer->wait();
    own_dkv.add_(incoming);
  }
  return {dq, own_dkv};
}

}  // namespace ringside::sp
