#include "engine/runner/gradient_sync.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace ringside::engine {

struct GradientSync::State {
  std::vector<ParamUnit*> units;
  std::shared_ptr<sp::Communicator> group;
  std::vector<std::unique_ptr<sp::Transfer>> sums;  // one a unit; null: not started
  bool last_backward = false;

  void start(std::size_t unit) {
    at::Tensor gradient = units[unit]->grad();
    sums[unit] = group->start_all_reduce_sum(gradient, "gradients");
  }
};

namespace {

// Calls a function when a leaf's gradient has been accumulated.
class AfterGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterGradient(std::function<void()> run) : run_(std::move(run)) {}
  void operator()(const torch::autograd::Variable&) override { run_(); }

 private:
  std::function<void()> run_;
};

}  // namespace

GradientSync::GradientSync(const std::vector<ParamUnit*>& units,
                           std::shared_ptr<sp::Communicator> group)
    : state_(std::make_shared<State>()) {
  state_->units = units;
  state_->group = std::move(group);
  state_->sums.resize(units.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    auto start = [state = std::weak_ptr<State>(state_), u] {
      if (const auto alive = state.lock(); alive && alive->last_backward) {
        alive->start(u);
      }
    };
    torch::autograd::impl::set_post_acc_grad_hooks(
        units[u]->flat(), std::make_unique<AfterGradient>(std::move(start)));
  }
}

GradientSync::~GradientSync() = default;

void GradientSync::expect_last_backward() { state_->last_backward = true; }

void GradientSync::finish() {
  state_->last_backward = false;
  for (std::size_t u = 0; u < state_->units.size(); ++u) {
    if (state_->sums[u] == nullptr) {
      state_->start(u);
    }
  }
  for (auto& sum : state_->sums) {
    std::exchange(sum, nullptr)->wait();
  }
}

}  // namespace ringside::engine
