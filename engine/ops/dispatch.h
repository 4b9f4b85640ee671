// Our operators in LibTorch's dispatcher, library `ringside`. The device of the tensors picks the
// implementation. An operator lives in the files of its name:
//
//   NAME.h         what a model calls, and the operator itself in namespace `operators`
//   NAME.cpp       schema, implementation for the CPU of ATen's operators, call, autograd
//   NAME.cu        kernels for CUDA, launched by the functions of NAME_kernel.h
//   NAME_rows.h    the kernels' arithmetic, which compiles for the host too
//   NAME_cuda.cpp  implementation for CUDA: tensors to kernels, and its registration
//
// Schema and CPU implementation stand together, so that no program has one without the other. They
// are what every other implementation is compared with. A function of namespace `operators` is one
// call of the dispatcher, below autograd; it takes arguments that the model's function has checked.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <string_view>

namespace ringside::engine {

// Enters an operator with its CPU implementation.
template <class OnCpu>
void define_operator(torch::Library& library, const char* schema, OnCpu on_cpu) {
  library.def(schema);
  const std::string name(schema, std::string_view(schema).find('('));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, on_cpu));
}

template <class Signature>
class Operator;

// An operator by its full name, to be called below autograd.
// Thread safety: calls from any thread.
template <class Result, class... Args>
class Operator<Result(Args...)> {
 public:
  explicit Operator(const char* name)
      : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result(Args...)>()) {
  }

  Result operator()(Args... args) const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return handle_.call(args...);
  }

 private:
  c10::TypedOperatorHandle<Result(Args...)> handle_;
};

}  // namespace ringside::engine
