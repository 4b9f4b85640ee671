#include "engine/runner/gradient_sync.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <optional>
#include <utility>

#include "engine/device/device_event.h"
#include "engine/params/sharding.h"
#include "engine/runner/scattered_sum.h"

namespace ringside::engine {
namespace {

constexpr const char* kTag = "gradients";

// Calls a function when a leaf's gradient has been accumulated.
class AfterGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterGradient(std::function<void()> run) : run_(std::move(run)) {}
  void operator()(const torch::autograd::Variable&) override { run_(); }

 private:
  std::function<void()> run_;
};

}  // namespace

class GradientSync::State {
 public:
  State(const std::vector<ParamUnit*>& units, std::shared_ptr<sp::Communicator> world,
        const ComputeContext& context)
      : units_(units), world_(std::move(world)), wire_(context.reduce), parts_(units.size()) {}

  bool is_last_backward() const { return last_backward_; }
  void set_last_backward(bool last) { last_backward_ = last; }

  // The local gradient of a whole unit is complete.
  void start_sum(std::size_t unit) {
    sp::Communicator* holders = units_[unit]->storage().holders();
    at::Tensor gradient = local_gradient(unit);
    parts_[unit].sum =
        (holders != nullptr ? *holders : *world_).start_all_reduce_sum(gradient, kTag);
  }

  // A gradient [n] of a sharded unit. last: of this backward; a tied embedding has two.
  void add_gradient(std::size_t unit, at::Tensor gradient_n, bool last) {
    const at::NoGradGuard no_grad;
    at::Tensor& whole = parts_[unit].whole;
    if (units_[unit]->gathered().gather()->sharding().stage == 1) {
      whole = whole.defined() ? whole.add_(gradient_n) : std::move(gradient_n);
      if (!last_backward_ || !last) {
        return;
      }
      gradient_n = std::exchange(whole, at::Tensor());
    }
    finish_scatter();  // at most one whole gradient is on its way
    scattered_unit_ = unit;
    completes_ = last_backward_ && last;
    scattered_.emplace(*units_[unit]->gathered().gather(), gradient_n, wire_);
  }

  void finish_scatter() {
    if (!scattered_) {
      return;
    }
    const at::NoGradGuard no_grad;
    const std::size_t unit = scattered_unit_;
    const at::Tensor sum = scattered_->wait();
    scattered_.reset();
    local_gradient(unit).narrow(0, 0, sum.numel()).add_(sum);
    if (completes_) {
      start_sum(unit);
    }
  }

  void finish() {
    last_backward_ = true;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (parts_[u].whole.defined()) {
        add_gradient(u, at::zeros_like(parts_[u].whole), /*last=*/true);
      }
    }
    finish_scatter();
    last_backward_ = false;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (parts_[u].sum == nullptr) {
        start_sum(u);
      }
    }
    for (Part& part : parts_) {
      std::exchange(part.sum, nullptr)->wait();
    }
    move_to_host();
  }

 private:
  struct Part {
    at::Tensor whole;      // stage 1: the gradient so far
    at::Tensor on_device;  // of a unit whose gradient lives in host memory
    std::unique_ptr<sp::Transfer> sum;
  };

  // This rank's gradient of the unit, on the device.
  at::Tensor local_gradient(std::size_t unit) {
    if (!units_[unit]->storage().context().host_master) {
      return units_[unit]->grad();
    }
    at::Tensor& gradient = parts_[unit].on_device;
    if (!gradient.defined()) {
      const at::Tensor& flat = units_[unit]->flat();
      gradient = at::zeros(flat.sizes(), at::TensorOptions()
                                             .dtype(flat.scalar_type())
                                             .device(units_[unit]->storage().context().device));
    }
    return gradient;
  }

  // Blocks: until the gradients are in host memory, if any live there.
  void move_to_host() {
    const at::NoGradGuard no_grad;
    const c10::Device device = units_.front()->storage().context().device;
    bool moved = false;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (const at::Tensor from = std::exchange(parts_[u].on_device, at::Tensor());
          from.defined()) {
        units_[u]->grad().copy_(from, /*non_blocking=*/true);
        moved = true;
      }
    }
    if (moved && !device.is_cpu()) {
      DeviceEvent arrived(device.type());
      arrived.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
      arrived.synchronize();
    }
  }

  std::vector<ParamUnit*> units_;
  std::shared_ptr<sp::Communicator> world_;
  at::ScalarType wire_;
  std::vector<Part> parts_;
  std::optional<ScatteredSum> scattered_;
  std::size_t scattered_unit_ = 0;
  bool completes_ = false;  // no later gradient of that unit follows
  bool last_backward_ = false;
};

GradientSync::GradientSync(const std::vector<ParamUnit*>& units,
                           std::shared_ptr<sp::Communicator> world, const ComputeContext& context)
    : state_(std::make_shared<State>(units, std::move(world), context)) {
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (units[u]->storage().is_gathered()) {
      units[u]->gathered().on_gradient(
          [state = std::weak_ptr<State>(state_), u](at::Tensor gradient, bool last) {
            if (const auto alive = state.lock()) {
              alive->add_gradient(u, std::move(gradient), last);
            }
          });
      continue;
    }
    auto start = [state = std::weak_ptr<State>(state_), u] {
      if (const auto alive = state.lock(); alive && alive->is_last_backward()) {
        alive->start_sum(u);
      }
    };
    torch::autograd::impl::set_post_acc_grad_hooks(
        units[u]->flat(), std::make_unique<AfterGradient>(std::move(start)));
  }
}

GradientSync::~GradientSync() = default;

void GradientSync::expect_last_backward() { state_->set_last_backward(true); }

void GradientSync::end_backward() {
  state_->finish_scatter();
  state_->set_last_backward(false);
}

void GradientSync::finish() { state_->finish(); }

}  // namespace ringside::engine
