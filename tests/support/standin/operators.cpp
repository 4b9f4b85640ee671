// Registration of the stand-in's kernels with torch's dispatcher: factories, views that have no
// composite kernel, sizes of tensors, copies; the boxed fallback for the rest. The file registers
// by static initialisers, so it is linked as an object.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "tests/support/standin/allocators.h"
#include "tests/support/standin/copies.h"
#include "tests/support/standin/fallback.h"

namespace ringside::standin {
namespace {

constexpr c10::DispatchKeySet kStandinKeys(c10::DispatchKey::PrivateUse1);

void refuse_pinned(std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor make_empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                      std::optional<c10::Layout>, std::optional<c10::Device> device,
                      std::optional<bool> pinned, std::optional<c10::MemoryFormat> format) {
  refuse_pinned(pinned);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, &device_allocator(), kStandinKeys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor make_empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                              std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                              std::optional<c10::Device> device, std::optional<bool> pinned) {
  refuse_pinned(pinned);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kStandinKeys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, std::move(offset));
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

at::Tensor view_as_real(const at::Tensor& self) { return at::native::view_as_real(self); }
at::Tensor view_as_complex(const at::Tensor& self) { return at::native::view_as_complex(self); }

// at::native::resize_ copies with the host's memcpy when it grows a tensor.
const at::Tensor& resize_in_place(const at::Tensor& self, c10::SymIntArrayRef size,
                                  std::optional<at::MemoryFormat>) {
  return set_size(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor& set_from_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_from_storage(at::Tensor& self, at::Storage source) {
  return at::native::set_(self, std::move(source));
}

at::Tensor& set_from_storage_part(at::Tensor& self, at::Storage source, int64_t offset,
                                  c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset, size, stride);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  c10::impl::getDeviceGuardImpl(c10::kPrivateUse1)
      ->recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", make_empty);
  library.impl("empty_strided", make_empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("unfold", unfold);
  library.impl("view_as_real", view_as_real);
  library.impl("view_as_complex", view_as_complex);
  library.impl("resize_", resize_in_place);
  library.impl("set_.source_Tensor", set_from_tensor);
  library.impl("set_.source_Storage", set_from_storage);
  library.impl("set_.source_Storage_storage_offset", set_from_storage_part);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("record_stream", record_stream);
}

// These have a CPU kernel and a composite of other operators. A composite comes before a fallback:
// it would run here, the kernel on the CPU, and their bits differ.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const char* name :
       {"_stack", "_stack.out", "addr", "addr.out", "all.dims", "all.dims_out", "any.dims",
        "any.dims_out", "linalg__powsum", "mish_backward", "native_channel_shuffle",
        "native_group_norm", "native_layer_norm", "silu_backward"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel>());
}

}  // namespace
}  // namespace ringside::standin
