// What the compiler calls in kernels: -fsanitize=thread before every load and store and around
// every function, -fsanitize=alignment,bounds where an address or index is wrong. The sanitizers'
// own libraries are not linked.
//
// Names and arguments: gcc/sanitizer.def and gcc/ubsan.cc; libsanitizer/ubsan/ubsan_handlers.h.
#include <string>

#include "tests/support/cuda_host/machine_state.h"

namespace ringside::cuda_host {
namespace {

struct UbsanPlace {
  const char* file;
  uint32_t line;
  uint32_t column;
};

struct UbsanType {
  uint16_t kind;
  uint16_t info;
  char name[1];
};

struct TypeMismatch {
  UbsanPlace place;
  const UbsanType* type;
  unsigned char log_alignment;
  unsigned char kind;
};

struct IndexOutOfBounds {
  UbsanPlace place;
  const UbsanType* array;
  const UbsanType* index;
};

// The built-in variables are not in a kernel's memory.
bool built_in(uintptr_t address) {
  return address - reinterpret_cast<uintptr_t>(&place) < sizeof(place);
}

void touch(const void* at, std::size_t bytes, bool write, const void* caller) {
  Machine& machine = Machine::instance();
  Thread* thread = machine.running();
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (thread == nullptr || thread->fiber.on_stack(address) || built_in(address)) {
    return;
  }
  const uint32_t call = machine.calls().child(thread->call, reinterpret_cast<uintptr_t>(caller));
  machine.access({address, bytes, write, false, call});
}

[[noreturn]] void stop_at(Fault fault, const std::string& what, const void* caller) {
  Machine& machine = Machine::instance();
  Thread& thread = *machine.running();
  thread.call = machine.calls().child(thread.call, reinterpret_cast<uintptr_t>(caller));
  machine.stop(fault, what);
}

}  // namespace
}  // namespace ringside::cuda_host

using ringside::cuda_host::Machine;

#define RINGSIDE_CALLER __builtin_return_address(0)
#define RINGSIDE_TOUCH(bytes)                                      \
  void __tsan_read##bytes(void* at) {                              \
    ringside::cuda_host::touch(at, bytes, false, RINGSIDE_CALLER); \
  }                                                                \
  void __tsan_write##bytes(void* at) {                             \
    ringside::cuda_host::touch(at, bytes, true, RINGSIDE_CALLER);  \
  }

extern "C" {

RINGSIDE_TOUCH(1)
RINGSIDE_TOUCH(2)
RINGSIDE_TOUCH(4)
RINGSIDE_TOUCH(8)
RINGSIDE_TOUCH(16)

void __tsan_read_range(void* at, std::size_t bytes) {
  ringside::cuda_host::touch(at, bytes, false, RINGSIDE_CALLER);
}

void __tsan_write_range(void* at, std::size_t bytes) {
  ringside::cuda_host::touch(at, bytes, true, RINGSIDE_CALLER);
}

void __tsan_init() {}

void __tsan_func_entry(void* caller) {
  Machine& machine = Machine::instance();
  if (auto* thread = machine.running()) {
    thread->call = machine.calls().child(thread->call, reinterpret_cast<uintptr_t>(caller));
  }
}

void __tsan_func_exit() {
  Machine& machine = Machine::instance();
  if (auto* thread = machine.running()) {
    thread->call = machine.calls().parent(thread->call);
  }
}

void __ubsan_handle_type_mismatch_v1(ringside::cuda_host::TypeMismatch* data,
                                     [[maybe_unused]] uintptr_t address) {
  if (Machine::instance().running() != nullptr) {
    ringside::cuda_host::stop_at(ringside::cuda_host::Fault::kMisaligned,
                                 std::string("an address that ") +
                                     std::to_string(1 << data->log_alignment) +
                                     " does not divide, for " + data->type->name,
                                 RINGSIDE_CALLER);
  }
}

void __ubsan_handle_out_of_bounds(ringside::cuda_host::IndexOutOfBounds* data, uintptr_t index) {
  if (Machine::instance().running() != nullptr) {
    ringside::cuda_host::stop_at(
        ringside::cuda_host::Fault::kOutOfBounds,
        "index " + std::to_string(static_cast<int64_t>(index)) + " of " + data->array->name,
        RINGSIDE_CALLER);
  }
}
}
