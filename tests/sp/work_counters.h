// Counters of what an attention pass does: device operations by name, and integer tensors that ATen
// makes.
#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/sp/cuda_twins.h"

namespace ringside::test {

using OpCounts = std::map<std::string, int64_t>;

inline int64_t total(const OpCounts& counts) {
  int64_t sum = 0;
  for (const auto& [name, count] : counts) {
    sum += count;
  }
  return sum;
}

// The CPU's operations, counted.
class CountingOps final : public sp::VarlenGroupOps {
 public:
  OpCounts take() const { return std::exchange(counts_, {}); }

  at::DeviceType device() const override { return ops_.device(); }
  at::ScalarType compute_dtype(at::ScalarType wire) const override {
    return ops_.compute_dtype(wire);
  }
  std::tuple<at::Tensor, at::Tensor> attend(const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v, const sp::VarlenGroupCall& call,
                                            double softmax_scale) const override {
    ++counts_["attend"];
    return ops_.attend(q, k, v, call, softmax_scale);
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
      const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
      const at::Tensor& out, const at::Tensor& lse, const sp::VarlenGroupCall& call,
      double softmax_scale) const override {
    ++counts_["attend_backward"];
    return ops_.attend_backward(dout, q, k, v, out, lse, call, softmax_scale);
  }
  at::Tensor gather_rows(const at::Tensor& rows, const sp::DeviceMoves& moves) const override {
    ++counts_["gather_rows"];
    return ops_.gather_rows(rows, moves);
  }
  void add_rows(at::Tensor& whole, const at::Tensor& part, const sp::DeviceSums& sums,
                int64_t head_begin) const override {
    ++counts_["add_rows"];
    ops_.add_rows(whole, part, sums, head_begin);
  }
  void merge_rows(sp::PartialAttention& whole, const sp::PartialAttention& part,
                  const sp::DeviceMoves& moves, int64_t head_begin) const override {
    ++counts_["merge_rows"];
    ops_.merge_rows(whole, part, moves, head_begin);
  }
  void write_rows(sp::PartialAttention& whole, const sp::PartialAttention& part,
                  const sp::DeviceMoves& moves, int64_t head_begin) const override {
    ++counts_["write_rows"];
    ops_.write_rows(whole, part, moves, head_begin);
  }

 private:
  CpuVarlenGroupOps ops_;
  mutable OpCounts counts_;
};

// Operations that compute nothing and make only floating-point tensors.
class IdleOps final : public sp::VarlenGroupOps {
 public:
  at::DeviceType device() const override { return at::kCPU; }
  at::ScalarType compute_dtype(at::ScalarType wire) const override { return wire; }
  std::tuple<at::Tensor, at::Tensor> attend(const at::Tensor& q, const at::Tensor&,
                                            const at::Tensor&, const sp::VarlenGroupCall&,
                                            double) const override {
    return {at::empty_like(q), at::empty({q.size(1), q.size(0)}, q.options())};
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
      const at::Tensor&, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
      const at::Tensor&, const at::Tensor&, const sp::VarlenGroupCall&, double) const override {
    return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  }
  at::Tensor gather_rows(const at::Tensor& rows, const sp::DeviceMoves& moves) const override {
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[0] = moves.rows;
    return at::empty(sizes, rows.options());
  }
  void add_rows(at::Tensor&, const at::Tensor&, const sp::DeviceSums&, int64_t) const override {}
  void merge_rows(sp::PartialAttention&, const sp::PartialAttention&, const sp::DeviceMoves&,
                  int64_t) const override {}
  void write_rows(sp::PartialAttention&, const sp::PartialAttention&, const sp::DeviceMoves&,
                  int64_t) const override {}
};

// Counts the integer tensors with memory of their own that operators return on this thread while it
// lives: index tables, on their way to an operator or a device.
class IntegerTensorWatch {
 public:
  IntegerTensorWatch() {
    made() = 0;
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback(nullptr, &IntegerTensorWatch::count)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  }
  ~IntegerTensorWatch() { at::removeCallback(handle_); }
  IntegerTensorWatch(const IntegerTensorWatch&) = delete;
  IntegerTensorWatch& operator=(const IntegerTensorWatch&) = delete;

  int64_t count() const { return made(); }

 private:
  static int64_t& made() {
    thread_local int64_t number = 0;
    return number;
  }
  static void count(const at::RecordFunction& fn, at::ObserverContext*) {
    for (const c10::IValue& value : fn.outputs()) {
      if (value.isTensor() && value.toTensor().defined()) {
        const at::Tensor& tensor = value.toTensor();
        const bool view = tensor.storage().use_count() > 1;
        made() += !view && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
      }
    }
  }
  at::CallbackHandle handle_ = 0;
};

}  // namespace ringside::test
