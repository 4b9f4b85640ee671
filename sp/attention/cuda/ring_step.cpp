// Shapes: S = rows of the ring share, h = this rank's query heads, c = KV heads of the chunk, m =
// rows of the KV buffer, g = rows of the gradient buffer, n/p = packed query/key rows of a varlen
// group, D = head dim.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "sp/attention/cuda/varlen_group_ops.h"

namespace ringside::sp {
namespace {

// Copies a vector to the device without waiting. Uses pinned memory for another device; the caching
// host allocator keeps the block until the stream has passed the copy.
template <class T>
at::Tensor upload(const std::vector<T>& values, at::ScalarType dtype, at::Device device) {
  const at::Tensor host = at::empty({static_cast<int64_t>(values.size())},
                                    at::TensorOptions(dtype).pinned_memory(device.is_cuda()));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return host.to(device, /*non_blocking=*/true);
}

// The moves of a varlen group in one table, uploaded at once.
class MoveTables {
 public:
  std::size_t add(const RowMoves& moves) {
    begins_.push_back(static_cast<int64_t>(values_.size() / 3));
    rows_.push_back(moves.rows);
    for (const RowMove& move : moves.moves) {
      values_.insert(values_.end(), {move.first, move.from, move.to});
    }
    return begins_.size() - 1;
  }

  void upload_to(at::Device device) {
    begins_.push_back(static_cast<int64_t>(values_.size() / 3));
    table_ = upload(values_, at::kLong, device).view({-1, 3});
  }

  DeviceMoves get(std::size_t i) const {
    return {table_.narrow(0, begins_[i], begins_[i + 1] - begins_[i]), rows_[i]};
  }

 private:
  std::vector<int64_t> values_, begins_, rows_;
  at::Tensor table_;
};

// Rows packed for a call; a view when they are already consecutive.
class PackedRows {
 public:
  PackedRows(const std::vector<Range>& ranges, MoveTables& tables) {
    const RowMoves moves = to_packed(ranges);
    first_ = moves.moves.front().from;
    rows_ = moves.rows;
    in_place_ = moves.moves.size() == 1;
    moves_ = in_place_ ? 0 : tables.add(moves);
  }

  // [S, ...] -> [n, ...]
  at::Tensor of(const at::Tensor& share, const MoveTables& tables,
                const VarlenGroupOps& ops) const {
    return in_place_ ? share.narrow(0, first_, rows_) : ops.gather_rows(share, tables.get(moves_));
  }

 private:
  int64_t first_ = 0;
  int64_t rows_ = 0;
  bool in_place_ = false;
  std::size_t moves_ = 0;
};

// The integers of a varlen group on the device.
class DeviceVarlenGroup {
 public:
  DeviceVarlenGroup(const VarlenGroup& varlen_group, double softmax_scale, at::Device device,
                    bool backward)
      : query_(varlen_group.queries, tables_), key_(varlen_group.keys, tables_) {
    results_ = tables_.add(from_packed(varlen_group.queries));
    if (backward) {
      for (const RowMoves& part : gradient_parts(varlen_group)) {
        gradients_.push_back(tables_.add(part));
      }
    }
    tables_.upload_to(device);
    auto cumulative = cumulative_rows(varlen_group.queries);
    const auto boundaries = static_cast<int64_t>(cumulative.size());
    const auto keys = cumulative_rows(varlen_group.keys);
    cumulative.insert(cumulative.end(), keys.begin(), keys.end());
    const at::Tensor both = upload(cumulative, at::kInt, device);
    call_ = {both.narrow(0, 0, boundaries),
             both.narrow(0, boundaries, boundaries),
             longest(varlen_group.queries),
             longest(varlen_group.keys),
             varlen_group.mask,
             softmax_scale};
  }

  const VarlenGroupCall& call() const { return call_; }
  at::Tensor queries(const at::Tensor& share, const VarlenGroupOps& ops) const {
    return query_.of(share, tables_, ops);
  }
  at::Tensor keys(const at::Tensor& buffer, const VarlenGroupOps& ops) const {
    return key_.of(buffer, tables_, ops);
  }
  DeviceMoves results() const { return tables_.get(results_); }

  // Adds dk or dv of the packed keys to heads of the gradient buffer.
  void add_gradient(at::Tensor& sums_g2cD, const at::Tensor& part, int64_t head_begin,
                    const VarlenGroupOps& ops) const {
    for (const std::size_t moves : gradients_) {
      ops.add_rows(sums_g2cD, part, tables_.get(moves), head_begin);
    }
  }

 private:
  MoveTables tables_;
  PackedRows query_;
  PackedRows key_;
  std::size_t results_ = 0;
  std::vector<std::size_t> gradients_;
  VarlenGroupCall call_;
};

at::Tensor heads(const at::Tensor& x, Range range) {
  return x.narrow(1, range.begin, range.size());
}

// The k and v heads of a head group in a chunk's buffer.
struct KvHeads {
  Range k;
  Range v;
};

KvHeads kv_heads(const HeadChunk& chunk, const HeadGroup& group) {
  const int64_t begin = group.kv_heads.begin - chunk.kv_heads.begin;
  const Range k{begin, begin + group.kv_heads.size()};
  return {k, {k.begin + chunk.kv_heads.size(), k.end + chunk.kv_heads.size()}};
}

class VarlenGroupKernels final : public RingStepKernels {
 public:
  explicit VarlenGroupKernels(std::shared_ptr<const VarlenGroupOps> ops) : ops_(std::move(ops)) {}

  at::DeviceType device() const override { return ops_->device(); }
  at::ScalarType compute_dtype(at::ScalarType wire_dtype) const override {
    return ops_->compute_dtype(wire_dtype);
  }

  void forward(const RingStepCall& call, const at::Tensor& q_ShD, const at::Tensor& kv_m2cD,
               PartialAttention& result) const override {
    for (const VarlenGroup& varlen_group : make_varlen_groups(call.step.blocks, call.window)) {
      const DeviceVarlenGroup on_device(varlen_group, call.softmax_scale, q_ShD.device(),
                                        /*backward=*/false);
      const at::Tensor q_nhD = on_device.queries(q_ShD, *ops_);
      const at::Tensor kv_p2cD = on_device.keys(kv_m2cD, *ops_);
      for (const HeadGroup& group : call.chunk.groups) {
        const KvHeads kv = kv_heads(call.chunk, group);
        const auto [out, lse] = ops_->attend(heads(q_nhD, group.query_heads), heads(kv_p2cD, kv.k),
                                             heads(kv_p2cD, kv.v), on_device.call());
        const int64_t head = group.query_heads.begin;
        varlen_group.merge ? ops_->merge_rows(result, {out, lse}, on_device.results(), head)
                           : ops_->write_rows(result, {out, lse}, on_device.results(), head);
      }
    }
  }

  void backward(const RingStepCall& call, const QuerySide& side, const at::Tensor& kv_m2cD,
                at::Tensor& dq_ShD, at::Tensor& dkv_g2cD) const override {
    for (const VarlenGroup& varlen_group : make_varlen_groups(call.step.blocks, call.window)) {
      const DeviceVarlenGroup on_device(varlen_group, call.softmax_scale, side.q_ShD.device(),
                                        /*backward=*/true);
      const QuerySide rows{
          on_device.queries(side.dout_ShD, *ops_), on_device.queries(side.q_ShD, *ops_),
          on_device.queries(side.out_ShD, *ops_), on_device.queries(side.lse_Sh, *ops_)};
      const at::Tensor kv_p2cD = on_device.keys(kv_m2cD, *ops_);
      for (const HeadGroup& group : call.chunk.groups) {
        const Range h = group.query_heads;
        const KvHeads kv = kv_heads(call.chunk, group);
        const auto [dq, dk, dv] = ops_->attend_backward(
            heads(rows.dout_ShD, h), heads(rows.q_ShD, h), heads(kv_p2cD, kv.k),
            heads(kv_p2cD, kv.v), heads(rows.out_ShD, h), heads(rows.lse_Sh, h).t().contiguous(),
            on_device.call());
        ops_->add_rows(dq_ShD, dq, on_device.results(), h.begin);
        on_device.add_gradient(dkv_g2cD, dk, kv.k.begin, *ops_);
        on_device.add_gradient(dkv_g2cD, dv, kv.v.begin, *ops_);
      }
    }
  }

 private:
  std::shared_ptr<const VarlenGroupOps> ops_;
};

}  // namespace

std::shared_ptr<const RingStepKernels> varlen_group_kernels(
    std::shared_ptr<const VarlenGroupOps> ops) {
  return std::make_shared<VarlenGroupKernels>(std::move(ops));
}

}  // namespace ringside::sp
