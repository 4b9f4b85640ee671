#include "tests/support/standin/fallback.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/standin/copies.h"
#include "tests/support/standin/kernel_view.h"
#include "tests/support/standin/machine.h"
#include "tests/support/standin/streams.h"

namespace ringside::standin {
namespace {

constexpr std::array<std::string_view, 12> kShapeDependsOnValues = {
    "aten::nonzero",    "aten::nonzero.out",       "aten::masked_select",
    "aten::_unique2",   "aten::masked_select.out", "aten::unique_consecutive",
    "aten::unique_dim", "aten::bincount",          "aten::equal",
    "aten::_unique",    "aten::is_nonzero",        "aten::linalg_matrix_rank"};

// One call of an operator.
class KernelCall {
 public:
  KernelCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), name_(c10::toString(op.schema().operator_name())), stack_(stack) {}

  void run() {
    TORCH_CHECK(op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "stand-in: ", name_,
                " has no CPU kernel, so it cannot run here; keep it behind an interface and give "
                "its test a twin (run_kernel)");
    replace_arguments();
    TORCH_CHECK(device_, "stand-in: ", name_, " has no tensor on a device and names none");
    if (!device_->has_index()) {
      device_ = c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device()));
    }
    refuse_strangers();
    const StreamKey stream = current_stream(device_->index());
    machine().begin(stream, name_, uses_of(reads_), uses_of(writes_));
    machine().counters.kernel(device_->index(), name_);
    if (waits_for_device()) {
      machine().host_waits(device_->index(), machine().accesses.snapshot(stream), name_);
    }
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    take_over_resized();
    replace_results();
    if (!made_.empty()) {
      machine().accesses.launch(stream, name_, {}, uses_of(made_));
    }
  }

 private:
  void replace_arguments() {
    const auto& arguments = op_.schema().arguments();
    const size_t begin = stack_.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = stack_[begin + i];
      const auto* alias = arguments[i].alias_info();
      const bool written = alias != nullptr && alias->isWrite();
      if (value.isTensor()) {
        value = argument(value.toTensor(), written);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) {
          list.push_back(argument(tensor, written));
        }
        value = std::move(list);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& tensor : value.toOptionalTensorVector()) {
          list.push_back(tensor ? std::optional(index(*tensor, written)) : tensor);
        }
        value = std::move(list);
      } else if (value.isDevice()) {
        device_ = device_ ? device_ : value.toDevice();
        value = c10::Device(c10::kCPU);
      } else if (arguments[i].name() == "output_size") {
        output_size_given_ = !value.isNone();
      }
    }
  }

  at::Tensor argument(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (!tensor.is_privateuseone()) {
      if (tensor.dim() != 0) {
        strangers_.push_back(tensor);
      }
      return tensor;
    }
    TORCH_CHECK(!device_ || !device_->has_index() || *device_ == tensor.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *device_, " and ", tensor.device(), "! (in ", name_, ")");
    device_ = tensor.device();
    (written ? writes_ : reads_).push_back(tensor);
    for (const auto& [original, view] : views_) {
      if (original.is_same(tensor)) {
        return view;
      }
    }
    views_.emplace_back(tensor, kernel_view(tensor));
    return views_.back().second;
  }

  // A mask as an index is turned into positions, whose number the host must know.
  at::Tensor index(const at::Tensor& tensor, bool written) {
    if (tensor.defined() && tensor.is_privateuseone() &&
        (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte)) {
      mask_index_ = true;
    }
    return argument(tensor, written);
  }

  void refuse_strangers() const {
    TORCH_CHECK(strangers_.empty(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *device_, " and ", strangers_.front().device(), "! (in ", name_,
                ", a tensor of shape ", strangers_.front().sizes(), ")");
  }

  bool waits_for_device() const {
    if (name_ == "aten::repeat_interleave.Tensor") {
      return !output_size_given_;
    }
    return mask_index_ || std::find(kShapeDependsOnValues.begin(), kShapeDependsOnValues.end(),
                                    name_) != kShapeDependsOnValues.end();
  }

  // A kernel that resizes an argument gives its view memory of the host's.
  void take_over_resized() const {
    for (const auto& [original, view] : views_) {
      if (view.sizes() != original.sizes()) {
        set_size(original, view.sizes());
        kernel_view(original).copy_(view);
        machine().accesses.launch(current_stream(device_->index()), name_, {}, uses_of({original}));
      }
    }
  }

  void replace_results() {
    const auto& returns = op_.schema().returns();
    const size_t begin = stack_.size() - returns.size();
    for (size_t i = 0; i < returns.size(); ++i) {
      const auto* alias = returns[i].alias_info();
      TORCH_CHECK(alias == nullptr || alias->isWrite(), "stand-in: the view operator ", name_,
                  " needs a kernel of its own in operators.cpp");
      c10::IValue& value = stack_[begin + i];
      if (value.isTensor()) {
        value = result(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) {
          list.push_back(result(tensor));
        }
        value = std::move(list);
      }
    }
  }

  at::Tensor result(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) {
      return tensor;
    }
    for (const auto& [original, view] : views_) {
      if (view.is_same(tensor)) {
        return original;
      }
    }
    const at::Tensor made =
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(*device_));
    kernel_view(made).copy_(tensor);
    made_.push_back(made);
    return made;
  }

  const c10::OperatorHandle& op_;
  const std::string name_;
  torch::jit::Stack& stack_;
  std::optional<c10::Device> device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> views_;  // device tensor, its view
  std::vector<at::Tensor> reads_, writes_, made_, strangers_;
  bool mask_index_ = false;
  bool output_size_given_ = false;
};

}  // namespace

void run_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  KernelCall(op, *stack).run();
}

}  // namespace ringside::standin
