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

// A segment, and the tensors that its second run starts from.
struct SegmentHolder : torch::CustomClassHolder {
  SegmentHolder(Segment s, RecomputeOptions o) : segment(std::move(s)), options(std::move(o)) {}

  // After the first run.
  void keep(const at::Tensor& input) {
    tensors = {input.detach()};
    if (options.results) {
      auto results = options.results->release();
      tensors.insert(tensors.end(), std::make_move_iterator(results.begin()),
                     std::make_move_iterator(results.end()));
    }
    if (options.offload) {
      ticket = options.offload->put(std::exchange(tensors, {}));
    }
  }
  // Before the second run: its input.
  at::Tensor fetch() {
    std::vector<at::Tensor> all =
        options.offload ? options.offload->take(ticket) : std::exchange(tensors, {});
    TORCH_CHECK(!all.empty(), "recompute: a second backward through a recomputed segment");
    if (options.results) {
      options.results->restore(
          {std::make_move_iterator(all.begin() + 1), std::make_move_iterator(all.end())});
    }
    return all.front();
  }

  Segment segment;
  RecomputeOptions options;
  std::vector<at::Tensor> tensors;  // input, kept results; empty with an offload
  std::size_t ticket = 0;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, at::TensorList leaves,
                            const c10::intrusive_ptr<SegmentHolder>& holder) {
    ctx->save_for_backward(variable_list(leaves.begin(), leaves.end()));
    ctx->saved_data["segment"] = c10::IValue::make_capsule(holder);
    const at::Tensor output = holder->segment(input);
    holder->keep(input);
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list leaves = ctx->get_saved_variables();
    const auto holder =
        c10::static_intrusive_pointer_cast<SegmentHolder>(ctx->saved_data["segment"].toCapsule());
    const at::Tensor input = holder->fetch().set_requires_grad(true);
    at::Tensor output;
    {
      const at::AutoGradMode enable_grad(true);
      output = holder->segment(input);
    }
    variable_list wanted{input};
    std::copy_if(leaves.begin(), leaves.end(), std::back_inserter(wanted),
                 [](const at::Tensor& leaf) { return leaf.requires_grad(); });
    const variable_list d =
        torch::autograd::grad({output}, wanted, grads, /*retain_graph=*/std::nullopt,
                              /*create_graph=*/false, /*allow_unused=*/true);
    variable_list results{d[0]};
    std::size_t next = 1;
    for (const at::Tensor& leaf : leaves) {
      results.push_back(leaf.requires_grad() ? d[next++] : at::Tensor());
    }
    results.emplace_back();  // of the holder
    return results;
  }
};

}  // namespace

at::Tensor recompute_in_backward(const at::Tensor& input, const std::vector<at::Tensor>& leaves,
                                 Segment segment, RecomputeOptions options) {
  return Recompute::apply(
      input, at::TensorList(leaves),
      c10::make_intrusive<SegmentHolder>(std::move(segment), std::move(options)));
}

}  // namespace ringside::engine
