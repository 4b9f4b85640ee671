#include "engine/params/unit_scope.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace ringside::engine {

// The gathered buffer of one scope. It lives until the scope's backward is done.
class ScopeChain::Buffer {
 public:
  Buffer(GatheredUnit& unit, std::weak_ptr<Buffer> before)
      : unit_(unit), before_(std::move(before)) {}

  void release_after_forward(at::Tensor whole) {
    whole_ = std::move(whole);
    release_storage(whole_);
  }
  void prefetch() {
    if (unit_.gather()->sharding().prefetch) {
      start_refill();
    }
  }
  void start_refill() {
    if (!refill_ && whole_.defined()) {
      refill_ = unit_.gather()->start_refill(unit_.storage().flat(), whole_);
    }
  }
  void enter_backward() {
    start_refill();
    std::exchange(refill_, nullptr)->wait();
    if (const auto before = before_.lock()) {
      before->prefetch();
    }
  }
  void leave_backward() {
    release_storage(whole_);
    whole_.reset();
  }

 private:
  GatheredUnit& unit_;
  std::weak_ptr<Buffer> before_;  // of the scope whose backward comes next
  at::Tensor whole_;
  std::unique_ptr<sp::Transfer> refill_;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct BufferHolder : torch::CustomClassHolder {
  explicit BufferHolder(std::shared_ptr<ScopeChain::Buffer> b) : buffer(std::move(b)) {}
  std::shared_ptr<ScopeChain::Buffer> buffer;
};

using Holder = c10::intrusive_ptr<BufferHolder>;

constexpr const char* kBuffer = "buffer";

ScopeChain::Buffer& buffer_of(AutogradContext& ctx) {
  const auto capsule = ctx.saved_data[kBuffer].toCapsule();
  return *static_cast<const BufferHolder&>(*capsule).buffer;
}

// Its backward is the last of the scope.
struct EnterScope : torch::autograd::Function<EnterScope> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const Holder& holder) {
    ctx->saved_data[kBuffer] = c10::IValue::make_capsule(holder);
    return input;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    buffer_of(*ctx).leave_backward();
    return {grads[0], at::Tensor()};
  }
};

// Its backward is the first of the scope.
struct LeaveScope : torch::autograd::Function<LeaveScope> {
  static variable_list forward(AutogradContext* ctx, at::TensorList outputs, const Holder& holder) {
    ctx->saved_data[kBuffer] = c10::IValue::make_capsule(holder);
    ctx->set_materialize_grads(false);
    return outputs.vec();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    buffer_of(*ctx).enter_backward();
    grads.emplace_back();
    return grads;
  }
};

std::vector<Weight> materialized(GatheredUnit& unit, const UnitShapes& cut,
                                 WeightGradient gradient) {
  const at::AutoGradMode mode(at::GradMode::is_enabled() && gradient == WeightGradient::kFlows);
  return unit.materialize(cut);
}

}  // namespace

std::vector<at::Tensor> run_with_weights(GatheredUnit& unit, const UnitShapes& cut,
                                         const at::Tensor& input, const WeightSegment& segment,
                                         ScopeChain& chain, WeightGradient gradient) {
  const bool releases = unit.gather() != nullptr && !unit.gather()->keeps_whole() &&
                        at::GradMode::is_enabled() && input.requires_grad();
  if (!releases) {
    return segment(materialized(unit, cut, gradient), input);
  }
  const auto buffer = std::make_shared<ScopeChain::Buffer>(unit, chain.last_);
  const auto holder = c10::make_intrusive<BufferHolder>(buffer);
  const at::Tensor entered = EnterScope::apply(input, holder);
  const std::vector<Weight> weights = materialized(unit, cut, gradient);
  const std::vector<at::Tensor> outputs = segment(weights, entered);
  const std::vector<at::Tensor> left = LeaveScope::apply(at::TensorList(outputs), holder);
  buffer->release_after_forward(weights.front().value);  // all of them share one storage
  chain.last_ = buffer;
  return left;
}

namespace {

// Runs the segment in the scopes of the units from number `next` on.
std::vector<at::Tensor> enter_scopes(const std::vector<ScopedUnit>& units, std::size_t next,
                                     std::vector<Weight>& entered, const at::Tensor& input,
                                     const WeightSegment& segment, ScopeChain& chain) {
  if (next == units.size()) {
    return segment(entered, input);
  }
  const auto inside = [&](const std::vector<Weight>& weights, const at::Tensor& inner) {
    entered.insert(entered.end(), weights.begin(), weights.end());
    return enter_scopes(units, next + 1, entered, inner, segment, chain);
  };
  return run_with_weights(*units[next].unit, units[next].cut, input, inside, chain);
}

}  // namespace

std::vector<at::Tensor> run_in_scopes(const std::vector<ScopedUnit>& units, const at::Tensor& input,
                                      const WeightSegment& segment, ScopeChain& chain) {
  std::vector<Weight> entered;
  return enter_scopes(units, 0, entered, input, segment, chain);
}

}  // namespace ringside::engine
