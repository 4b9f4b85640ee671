#include <ATen/ATen.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "sp/attention/bf16_tiles.h"
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

// Masks of the plan's blocks, one for each kind and shape.
class BlockMasks {
 public:
  BlockMasks(int64_t window, at::ScalarType dtype) : window_(window), dtype_(dtype) {}

  BlockMask of(const BlockBatch& batch) {
    const auto key = std::tuple(batch.kind, batch.query_rows, batch.key_rows, batch.offset);
    const auto found = masks_.find(key);
    if (found != masks_.end()) {
      return found->second;
    }
    const BlockMask mask = block_mask(visible(batch), batch.query_rows, batch.key_rows, dtype_);
    return masks_.emplace(key, mask).first->second;
  }

 private:
  VisibleKeys visible(const BlockBatch& batch) const {
    switch (batch.kind) {
      case BlockKind::kFull:
        return {};
      case BlockKind::kCausal:
        return kEarlierKeys;
      case BlockKind::kWindowed:
        return {-batch.offset, window_ - batch.offset};
    }
    TORCH_INTERNAL_ASSERT(false, "unknown kind of block");
  }

  int64_t window_;
  at::ScalarType dtype_;
  std::map<std::tuple<BlockKind, int64_t, int64_t, int64_t>, BlockMask> masks_;
};

struct PreparedBatch {
  const BlockBatch& blocks;
  RowSelection query;
  RowSelection key;
  RowSelection key_gradient;
  BlockMask mask;
};

class CpuPreparedPlan final : public PreparedPlan {
 public:
  CpuPreparedPlan(std::shared_ptr<const AttentionPlan> plan, const at::TensorOptions& wire,
                  bool multiplies_bf16)
      : PreparedPlan(std::move(plan), wire), multiplies_bf16_(multiplies_bf16) {
    BlockMasks masks(this->plan().options.window, compute_dtype());
    for (const RingStep& step : this->plan().steps) {
      std::vector<PreparedBatch>& prepared = steps_.emplace_back();
      for (const BlockBatch& batch : step.batches) {
        prepared.push_back({batch,
                            {batch.query_begins, batch.query_rows},
                            {batch.key_begins, batch.key_rows},
                            {batch.key_gradient_begins, batch.key_rows},
                            masks.of(batch)});
      }
    }
    upload_tables();
  }

  at::ScalarType compute_dtype() const override {
    return multiplies_bf16_ && wire_dtype() == at::kBFloat16 &&
                   has_bf16_tiles(plan().heads.head_dim)
               ? at::kBFloat16
               : accumulation_dtype(wire_dtype());
  }

  void forward(const RingStepCall& call, const at::Tensor& q_ShD, const at::Tensor& kv_m2cD,
               PartialAttention& result) const override {
    if (!result.out.defined()) {
      // Uninitialised: every row's diagonal block initialises it before it is read.
      const at::TensorOptions sums = q_ShD.options().dtype(accumulation_dtype(wire_dtype()));
      result = {at::empty(q_ShD.sizes(), sums), at::empty(q_ShD.sizes().slice(0, 2), sums)};
    }
    for (const PreparedBatch& batch : steps_[call.step]) {
      const at::Tensor q_BnhD = batch.query.gather(q_ShD);
      const at::Tensor kv_Bm2cD = batch.key.gather(kv_m2cD);
      for (const HeadGroup& group : call.chunk.groups) {
        const auto [k, v] = split_kv(kv_Bm2cD, call.chunk, group.kv_heads);
        const auto part =
            block_attention(heads(q_BnhD, group.query_heads), k, v, batch.mask, call.softmax_scale);
        const PartPlace place{batch.blocks.query_begins, group.query_heads.begin};
        batch.blocks.merge ? merge_rows(result, part, place) : write_rows(result, part, place);
      }
    }
  }

  at::Tensor backward(const RingStepCall& call, const QuerySide& side, const at::Tensor& kv_m2cD,
                      at::Tensor& dq_ShD) const override {
    if (!dq_ShD.defined()) {
      dq_ShD = at::zeros(side.q_ShD.sizes(), side.lse_Sh.options());
    }
    at::Tensor dkv_g2cD =
        at::zeros({plan().steps[call.step].gradient_rows, kv_m2cD.size(1), kv_m2cD.size(2)},
                  side.lse_Sh.options());
    for (const PreparedBatch& batch : steps_[call.step]) {
      const QuerySide rows{batch.query.gather(side.dout_ShD), batch.query.gather(side.q_ShD),
                           batch.query.gather(side.out_ShD), batch.query.gather(side.lse_Sh)};
      const at::Tensor kv_Bm2cD = batch.key.gather(kv_m2cD);
      std::vector<at::Tensor> dks, dvs;
      for (const HeadGroup& group : call.chunk.groups) {
        const Range h = group.query_heads;
        const auto [k, v] = split_kv(kv_Bm2cD, call.chunk, group.kv_heads);
        const auto grads = block_attention_backward(
            heads(rows.dout_ShD, h), heads(rows.q_ShD, h), k, v, heads(rows.out_ShD, h),
            heads(rows.lse_Sh, h), batch.mask, call.softmax_scale);
        at::Tensor dq = dq_ShD.narrow(1, h.begin, h.size());
        batch.query.add(dq, grads.dq_BnHD);
        dks.push_back(grads.dk_BmKD);
        dvs.push_back(grads.dv_BmKD);
      }
      dks.insert(dks.end(), dvs.begin(), dvs.end());
      batch.key_gradient.add(dkv_g2cD, at::cat(dks, 2));
    }
    return dkv_g2cD;
  }

 private:
  bool multiplies_bf16_;
  std::vector<std::vector<PreparedBatch>> steps_;
};

class CpuKernels final : public RingStepKernels {
 public:
  explicit CpuKernels(bool multiplies_bf16) : multiplies_bf16_(multiplies_bf16) {}

  at::DeviceType device() const override { return at::kCPU; }

  std::shared_ptr<const PreparedPlan> prepare(std::shared_ptr<const AttentionPlan> plan,
                                              const at::TensorOptions& wire) const override {
    TORCH_CHECK(wire.device().is_cpu(), "the CPU's attention kernels: tensors on ", wire.device());
    return std::make_shared<CpuPreparedPlan>(std::move(plan), wire, multiplies_bf16_);
  }

 private:
  bool multiplies_bf16_;
};

}  // namespace

std::shared_ptr<const RingStepKernels> cpu_kernels(bool multiplies_bf16) {
  return std::make_shared<CpuKernels>(multiplies_bf16);
}

}  // namespace ringside::sp
