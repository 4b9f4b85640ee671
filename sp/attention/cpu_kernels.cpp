#include <ATen/ATen.h>

#include <limits>
#include <utility>
#include <vector>

#include "sp/attention/block_attention.h"
#include "sp/attention/ring_step_kernels.h"
#include "sp/attention/row_selection.h"

namespace ringside::sp {
namespace {

at::Tensor heads(const at::Tensor& x, Range range) {
  return x.narrow(2, range.begin, range.size());
}

// The k and v slices of a head group, from gathered [B, m, 2c, D] keys and values of a chunk.
std::pair<at::Tensor, at::Tensor> split_kv(const at::Tensor& kv_Bm2cD, const HeadChunk& chunk,
                                           Range kv_heads) {
  const int64_t c = chunk.kv_heads.size();
  const int64_t begin = kv_heads.begin - chunk.kv_heads.begin;
  return {kv_Bm2cD.narrow(2, begin, kv_heads.size()),
          kv_Bm2cD.narrow(2, c + begin, kv_heads.size())};
}

// The mask of a block. mask_nm is added to the scores of kWindowed blocks.
BlockMask mask_of(const BlockBatch& batch, int64_t window, const at::Tensor& like) {
  if (batch.kind != BlockKind::kWindowed) {
    return {batch.kind == BlockKind::kCausal, {}};
  }
  const auto integers = like.options().dtype(at::kLong);
  const at::Tensor distance = at::arange(batch.query_rows, integers).unsqueeze(1) + batch.offset -
                              at::arange(batch.key_rows, integers).unsqueeze(0);
  const at::Tensor hidden = (distance < 0).logical_or_(distance >= window);
  at::Tensor mask = at::zeros({batch.query_rows, batch.key_rows}, like.options());
  mask.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  return {false, mask};
}

class CpuKernels final : public RingStepKernels {
 public:
  at::DeviceType device() const override { return at::kCPU; }

  at::ScalarType compute_dtype(at::ScalarType wire_dtype) const override {
    return accumulation_dtype(wire_dtype);
  }

  void forward(const RingStepCall& call, const at::Tensor& q_ShD, const at::Tensor& kv_m2cD,
               PartialAttention& result) const override {
    for (const BlockBatch& batch : call.step.batches) {
      const at::Tensor q_BnhD = RowSelection(batch.query_begins, batch.query_rows).gather(q_ShD);
      const at::Tensor kv_Bm2cD = RowSelection(batch.key_begins, batch.key_rows).gather(kv_m2cD);
      const BlockMask mask = mask_of(batch, call.window, q_ShD);
      for (const HeadGroup& group : call.chunk.groups) {
        const auto [k, v] = split_kv(kv_Bm2cD, call.chunk, group.kv_heads);
        const auto part =
            block_attention(heads(q_BnhD, group.query_heads), k, v, mask, call.softmax_scale);
        const PartPlace place{batch.query_begins, group.query_heads.begin};
        batch.merge ? merge_rows(result, part, place) : write_rows(result, part, place);
      }
    }
  }

  void backward(const RingStepCall& call, const QuerySide& side, const at::Tensor& kv_m2cD,
                at::Tensor& dq_ShD, at::Tensor& dkv_g2cD) const override {
    for (const BlockBatch& batch : call.step.batches) {
      const RowSelection query(batch.query_begins, batch.query_rows);
      const QuerySide rows{query.gather(side.dout_ShD), query.gather(side.q_ShD),
                           query.gather(side.out_ShD), query.gather(side.lse_Sh)};
      const at::Tensor kv_Bm2cD = RowSelection(batch.key_begins, batch.key_rows).gather(kv_m2cD);
      const BlockMask mask = mask_of(batch, call.window, side.q_ShD);
      std::vector<at::Tensor> dks, dvs;
      for (const HeadGroup& group : call.chunk.groups) {
        const Range h = group.query_heads;
        const auto [k, v] = split_kv(kv_Bm2cD, call.chunk, group.kv_heads);
        const auto grads = block_attention_backward(
            heads(rows.dout_ShD, h), heads(rows.q_ShD, h), k, v, heads(rows.out_ShD, h),
            heads(rows.lse_Sh, h), mask, call.softmax_scale);
        at::Tensor dq = dq_ShD.narrow(1, h.begin, h.size());
        query.add(dq, grads.dq_BnHD);
        dks.push_back(grads.dk_BmKD);
        dvs.push_back(grads.dv_BmKD);
      }
      dks.insert(dks.end(), dvs.begin(), dvs.end());
      RowSelection(batch.key_gradient_begins, batch.key_rows).add(dkv_g2cD, at::cat(dks, 2));
    }
  }
};

}  // namespace

at::ScalarType accumulation_dtype(at::ScalarType wire_dtype) {
  return wire_dtype == at::kDouble ? at::kDouble : at::kFloat;
}

std::shared_ptr<const RingStepKernels> cpu_kernels() { return std::make_shared<CpuKernels>(); }

}  // namespace ringside::sp
