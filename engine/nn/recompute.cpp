#include "engine/nn/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Segment = std::function<at::Tensor(const at::Tensor&)>;

// Holder of a std::function, because an IValue stores intrusive pointers but no std::function.
struct SegmentHolder : torch::CustomClassHolder {
  explicit SegmentHolder(Segment s) : segment(std::move(s)) {}
  Segment segment;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, at::TensorList leaves,
                            const c10::intrusive_ptr<SegmentHolder>& holder) {
    variable_list saved{input};
    saved.insert(saved.end(), leaves.begin(), leaves.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["segment"] = c10::IValue::make_capsule(holder);
    return holder->segment(input);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto capsule = ctx->saved_data["segment"].toCapsule();
    const auto& segment = static_cast<const SegmentHolder&>(*capsule).segment;
    const at::Tensor input = saved[0].detach().set_requires_grad(true);
    at::Tensor output;
    {
      const at::AutoGradMode enable_grad(true);
      output = segment(input);
    }
    variable_list wanted{input};
    std::copy_if(saved.begin() + 1, saved.end(), std::back_inserter(wanted),
                 [](const at::Tensor& leaf) { return leaf.requires_grad(); });
    const variable_list d =
        torch::autograd::grad({output}, wanted, grads, /*retain_graph=*/std::nullopt,
                              /*create_graph=*/false, /*allow_unused=*/true);
    variable_list results{d[0]};
    std::size_t next = 1;
    for (std::size_t i = 1; i < saved.size(); ++i) {
      results.push_back(saved[i].requires_grad() ? d[next++] : at::Tensor());
    }
    results.emplace_back();  // of the holder
    return results;
  }
};

}  // namespace

at::Tensor recompute_in_backward(const at::Tensor& input, const std::vector<at::Tensor>& leaves,
                                 Segment segment) {
  return Recompute::apply(input, at::TensorList(leaves),
                          c10::make_intrusive<SegmentHolder>(std::move(segment)));
}

}  // namespace ringside::engine
