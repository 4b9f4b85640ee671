// Shapes: S = rows of the ring share, h = this rank's query heads, c = KV heads of the chunk, m =
// rows of the KV buffer, g = rows of the gradient buffer, n/p = packed query/key rows of a varlen
// group, D = head dim.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "sp/attention/cuda/varlen_group_ops.h"

namespace ringside::sp {
namespace {

// Row moves whose table is among a plan's tables.
class PlannedMoves {
 public:
  PlannedMoves() = default;
  PlannedMoves(const RowMoves& moves, IndexTables<int64_t>& tables) : rows_(moves.rows) {
    std::vector<int64_t> values;
    for (const RowMove& move : moves.moves) {
      values.insert(values.end(), {move.first, move.from, move.to});
    }
    number_ = tables.add(values);
  }

  // After the upload.
  DeviceMoves get(const IndexTables<int64_t>& tables) const {
    return {tables.table(number_).view({-1, 3}), rows_};
  }

 private:
  std::size_t number_ = 0;
  int64_t rows_ = 0;
};

// Row sums whose tables are among a plan's tables.
class PlannedSums {
 public:
  PlannedSums(const RowSums& sums, IndexTables<int64_t>& tables)
      : rows_(sums.rows), identity_(sums.identity(sums.rows)) {
    std::vector<int64_t> values;
    for (const RowSum& sum : sums.sums) {
      values.insert(values.end(), {sum.first, sum.to, sum.sources_begin, sum.sources_end});
    }
    sums_ = tables.add(values);
    sources_ = tables.add(sums.sources);
  }

  // After the upload.
  DeviceSums get(const IndexTables<int64_t>& tables) const {
    return {tables.table(sums_).view({-1, 4}), tables.table(sources_), rows_};
  }

  // True when the sums are all `count` rows of the source as they are.
  bool all_of(int64_t count) const { return identity_ && rows_ == count; }

 private:
  std::size_t sums_ = 0;
  std::size_t sources_ = 0;
  int64_t rows_ = 0;
  bool identity_ = false;
};

// Rows packed for a call; a view when they are already consecutive.
class PackedRows {
 public:
  PackedRows(const RowMoves& moves, IndexTables<int64_t>& tables) {
    in_place_ = moves.moves.size() == 1;
    if (in_place_) {
      rows_ = {moves.moves.front().from, moves.moves.front().from + moves.rows};
    } else {
      planned_ = PlannedMoves(moves, tables);
    }
  }
  void finish(const IndexTables<int64_t>& tables) {
    if (!in_place_) {
      moves_ = planned_.get(tables);
    }
  }

  // True when the packed rows are all `count` rows as they are.
  bool all_of(int64_t count) const { return in_place_ && rows_ == Range{0, count}; }

  // [S, ...] -> [n, ...]
  at::Tensor of(const at::Tensor& share, const VarlenGroupOps& ops) const {
    return in_place_ ? share.narrow(0, rows_.begin, rows_.size()) : ops.gather_rows(share, moves_);
  }

 private:
  bool in_place_ = false;
  Range rows_;
  PlannedMoves planned_;
  DeviceMoves moves_;
};

// Tables of a plan's varlen groups on their way to the device.
struct GroupTables {
  IndexTables<int64_t>& rows;
  IndexTables<int32_t> cumulative;
};

// A varlen group with its tables on the device.
class PreparedGroup {
 public:
  PreparedGroup(const VarlenGroup& group, int64_t gradient_rows, GroupTables& tables)
      : query_(to_packed(query_rows(group)), tables.rows),
        key_(keys_to_packed(group), tables.rows),
        planned_results_(from_packed(query_rows(group)), tables.rows),
        planned_dq_(as_sums(from_packed(query_rows(group))), tables.rows),
        planned_dkv_(gradient_sums(group), tables.rows),
        merge_(group.merge),
        dkv_in_place_(planned_dkv_.all_of(gradient_rows)) {
    call_.query_begins = cumulative_rows(query_rows(group));
    call_.key_begins = cumulative_rows(packed_keys(group));
    call_.max_query = longest(query_rows(group));
    call_.max_key = longest(packed_keys(group));
    call_.mask = group.mask;
    planned_query_ = tables.cumulative.add(call_.query_begins);
    planned_key_ = tables.cumulative.add(call_.key_begins);
  }

  // Takes the tables. Call it once, after the upload.
  void finish(const GroupTables& tables) {
    query_.finish(tables.rows);
    key_.finish(tables.rows);
    results_ = planned_results_.get(tables.rows);
    dq_ = planned_dq_.get(tables.rows);
    dkv_ = planned_dkv_.get(tables.rows);
    call_.cumulative_query = tables.cumulative.table(planned_query_);
    call_.cumulative_key = tables.cumulative.table(planned_key_);
  }

  bool merge() const { return merge_; }
  const VarlenGroupCall& call() const { return call_; }
  const PackedRows& query() const { return query_; }
  const PackedRows& key() const { return key_; }
  const DeviceMoves& results() const { return results_; }
  // Places of the call's dq, and of its dk and dv.
  const DeviceSums& dq() const { return dq_; }
  const DeviceSums& dkv() const { return dkv_; }
  // True when dk and dv of the call are those of the gradient buffer.
  bool dkv_in_place() const { return dkv_in_place_; }

 private:
  PackedRows query_;
  PackedRows key_;
  PlannedMoves planned_results_;
  PlannedSums planned_dq_;
  PlannedSums planned_dkv_;
  std::size_t planned_query_ = 0;
  std::size_t planned_key_ = 0;
  bool merge_;
  bool dkv_in_place_;
  DeviceMoves results_;
  DeviceSums dq_;
  DeviceSums dkv_;
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

class VarlenPreparedPlan final : public PreparedPlan {
 public:
  VarlenPreparedPlan(std::shared_ptr<const AttentionPlan> plan, const at::TensorOptions& wire,
                     std::shared_ptr<const VarlenGroupOps> ops)
      : PreparedPlan(std::move(plan), wire),
        ops_(std::move(ops)),
        compute_dtype_(ops_->compute_dtype(wire_dtype())) {
    GroupTables tables{tables_, {}};
    for (const RingStep& step : this->plan().steps) {
      std::vector<PreparedGroup>& groups = steps_.emplace_back();
      for (const VarlenGroup& group :
           make_varlen_groups(step.blocks, this->plan().options.window)) {
        groups.emplace_back(group, step.gradient_rows, tables);
      }
    }
    upload_tables();
    tables.cumulative.upload(device());
    for (std::vector<PreparedGroup>& groups : steps_) {
      for (PreparedGroup& group : groups) {
        group.finish(tables);
      }
    }
    one_call_ = is_one_call();
  }

  at::ScalarType compute_dtype() const override { return compute_dtype_; }

  void forward(const RingStepCall& call, const at::Tensor& q_ShD, const at::Tensor& kv_m2cD,
               PartialAttention& result) const override {
    if (!result.out.defined() && !one_call_) {
      const auto accumulated = q_ShD.options().dtype(accumulation_dtype(wire_dtype()));
      // Uninitialised: every row's diagonal block initialises it before it is read.
      result = {at::empty(q_ShD.sizes(), accumulated),
                at::empty(q_ShD.sizes().slice(0, 2), accumulated)};
    }
    for (const PreparedGroup& varlen_group : steps_[call.step]) {
      const at::Tensor q_nhD = varlen_group.query().of(q_ShD, *ops_);
      const at::Tensor kv_p2cD = varlen_group.key().of(kv_m2cD, *ops_);
      for (const HeadGroup& group : call.chunk.groups) {
        const KvHeads kv = kv_heads(call.chunk, group);
        const auto [out, lse] =
            ops_->attend(heads(q_nhD, group.query_heads), heads(kv_p2cD, kv.k),
                         heads(kv_p2cD, kv.v), varlen_group.call(), call.softmax_scale);
        place(result, {out, lse}, varlen_group, group.query_heads.begin);
      }
    }
  }

  at::Tensor backward(const RingStepCall& call, const QuerySide& side, const at::Tensor& kv_m2cD,
                      at::Tensor& dq_ShD) const override {
    if (!dq_ShD.defined() && !one_call_) {
      dq_ShD = at::zeros(side.q_ShD.sizes(), side.lse_Sh.options());
    }
    at::Tensor dkv_g2cD;
    for (const PreparedGroup& varlen_group : steps_[call.step]) {
      const PackedRows& query = varlen_group.query();
      const QuerySide rows{query.of(side.dout_ShD, *ops_), query.of(side.q_ShD, *ops_),
                           query.of(side.out_ShD, *ops_), query.of(side.lse_Sh, *ops_)};
      const at::Tensor kv_p2cD = varlen_group.key().of(kv_m2cD, *ops_);
      for (const HeadGroup& group : call.chunk.groups) {
        const Range h = group.query_heads;
        const KvHeads kv = kv_heads(call.chunk, group);
        const auto [dq, dk, dv] = ops_->attend_backward(
            heads(rows.dout_ShD, h), heads(rows.q_ShD, h), heads(kv_p2cD, kv.k),
            heads(kv_p2cD, kv.v), heads(rows.out_ShD, h), heads(rows.lse_Sh, h).t().contiguous(),
            varlen_group.call(), call.softmax_scale);
        if (one_call_) {
          dq_ShD = dq;
        } else {
          ops_->add_rows(dq_ShD, dq, varlen_group.dq(), h.begin);
        }
        if (one_call_ && plan().ring_size() == 1 && varlen_group.dkv_in_place()) {
          return at::cat({dk, dv}, 1);
        }
        if (!dkv_g2cD.defined()) {
          dkv_g2cD = zero_gradient(call, side, kv_m2cD);
        }
        ops_->add_rows(dkv_g2cD, dk, varlen_group.dkv(), kv.k.begin);
        ops_->add_rows(dkv_g2cD, dv, varlen_group.dkv(), kv.v.begin);
      }
    }
    return dkv_g2cD.defined() ? dkv_g2cD : zero_gradient(call, side, kv_m2cD);
  }

 private:
  // True when one varlen call covers all rows and heads of all steps, in place.
  bool is_one_call() const {
    const auto& chunks = plan().head_chunks;
    if (chunks.size() != 1 || chunks.front().groups.size() != 1) {
      return false;
    }
    int64_t num_groups = 0;
    bool covers = false;
    for (const std::vector<PreparedGroup>& groups : steps_) {
      for (const PreparedGroup& group : groups) {
        ++num_groups;
        covers = !group.merge() && group.query().all_of(plan().share_rows);
      }
    }
    return num_groups == 1 && covers;
  }

  void place(PartialAttention& result, const PartialAttention& part, const PreparedGroup& group,
             int64_t head_begin) const {
    if (one_call_) {
      result = {part.out, part.lse.t()};
    } else if (group.merge()) {
      ops_->merge_rows(result, part, group.results(), head_begin);
    } else {
      ops_->write_rows(result, part, group.results(), head_begin);
    }
  }

  at::Tensor zero_gradient(const RingStepCall& call, const QuerySide& side,
                           const at::Tensor& kv_m2cD) const {
    return at::zeros({plan().steps[call.step].gradient_rows, kv_m2cD.size(1), kv_m2cD.size(2)},
                     side.lse_Sh.options());
  }

  std::shared_ptr<const VarlenGroupOps> ops_;
  at::ScalarType compute_dtype_;
  std::vector<std::vector<PreparedGroup>> steps_;  // [steps][groups]
  bool one_call_ = false;
};

class VarlenGroupKernels final : public RingStepKernels {
 public:
  explicit VarlenGroupKernels(std::shared_ptr<const VarlenGroupOps> ops) : ops_(std::move(ops)) {}

  at::DeviceType device() const override { return ops_->device(); }

  std::shared_ptr<const PreparedPlan> prepare(std::shared_ptr<const AttentionPlan> plan,
                                              const at::TensorOptions& wire) const override {
    TORCH_CHECK(wire.device().type() == device(), "attention kernels for ", device(),
                ": tensors on ", wire.device());
    return std::make_shared<VarlenPreparedPlan>(std::move(plan), wire, ops_);
  }

 private:
  std::shared_ptr<const VarlenGroupOps> ops_;
};

}  // namespace

VarlenGroupCall make_varlen_call(const std::vector<Range>& queries, const std::vector<Range>& keys,
                                 VarlenGroupMask mask, at::Device device) {
  VarlenGroupCall call{
      {},  {}, cumulative_rows(queries), cumulative_rows(keys), longest(queries), longest(keys),
      mask};
  call.cumulative_query = at::tensor(call.query_begins, at::kInt).to(device);
  call.cumulative_key = at::tensor(call.key_begins, at::kInt).to(device);
  return call;
}

std::shared_ptr<const RingStepKernels> varlen_group_kernels(
    std::shared_ptr<const VarlenGroupOps> ops) {
  return std::make_shared<VarlenGroupKernels>(std::move(ops));
}

}  // namespace ringside::sp
