// Counter of the kernels that a piece of code launches, by the operators that it calls.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace ringside::test {

// Counts the operators that this thread calls while the object lives. An operator counts as one
// kernel if none of those that it calls does and it computes something: views and allocations do
// not count. An operator of ours and an attention operator count as one, whatever their CPU
// implementations call.
// Thread safety: none; one object a thread at a time.
class KernelCount {
 public:
  // Counts from now on.
  KernelCount() {
    current() = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&enter, &leave)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~KernelCount() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  KernelCount(const KernelCount&) = delete;
  KernelCount& operator=(const KernelCount&) = delete;

  // Kernels of all operators so far.
  int64_t total() const {
    int64_t sum = 0;
    for (const auto& [name, n] : kernels_) {
      sum += n;
    }
    return sum;
  }
  // Kernels by operator.
  const std::map<std::string, int64_t>& kernels() const { return kernels_; }

 private:
  struct Call : at::ObserverContext {
    int64_t kernels_before = 0;
    bool computes = false;
  };

  static KernelCount*& current() {
    thread_local KernelCount* count = nullptr;
    return count;
  }

  static bool counts_as_one(const at::RecordFunction& fn) {
    const std::string_view name = fn.name();
    return name.starts_with("ringside::") || name.starts_with("aten::_scaled_dot_product");
  }

  static bool computes(const at::RecordFunction& fn) {
    const auto schema = fn.operator_schema();
    if (!schema) {
      return false;
    }
    const std::string_view name = fn.name();
    if (name.starts_with("aten::empty") || name == "aten::resize_" || name == "aten::set_" ||
        name == "aten::detach" || name == "aten::result_type") {
      return false;
    }
    // A number that an operator was given, made into a tensor on the host.
    if ((name == "aten::copy_" || name == "aten::_to_copy") &&
        fn.inputs()[0].toTensor().dim() == 0) {
      return false;
    }
    // The result of a view shares its argument's memory and nothing is written.
    const auto& returns = schema->returns();
    return returns.empty() || returns[0].alias_info() == nullptr ||
           returns[0].alias_info()->isWrite();
  }

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& fn) {
    KernelCount& count = *current();
    count.inside_ += counts_as_one(fn);
    auto call = std::make_unique<Call>();
    call->kernels_before = count.total_;
    call->computes = computes(fn);  // its arguments are there only now
    return call;
  }

  static void leave(const at::RecordFunction& fn, at::ObserverContext* context) {
    KernelCount& count = *current();
    count.inside_ -= counts_as_one(fn);
    const auto* call = static_cast<const Call*>(context);
    if (count.inside_ == 0 && call->computes && count.total_ == call->kernels_before) {
      ++count.total_;
      ++count.kernels_[fn.name()];
    }
  }

  at::CallbackHandle handle_ = 0;
  int64_t total_ = 0;
  int64_t inside_ = 0;
  std::map<std::string, int64_t> kernels_;
};

}  // namespace ringside::test
