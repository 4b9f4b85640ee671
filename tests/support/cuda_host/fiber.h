// A stack of its own on which a function runs by turns with its caller.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ringside::cuda_host {

// Thread safety: none; all calls come from one thread of the host.
class Fiber {
 public:
  // body(of) is called again and again; each call lasts over as many resume()s as it pauses.
  Fiber(void (*body)(void* of), void* of);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it pauses or returns.
  void resume();
  // Within the body: back to the caller of resume().
  void pause();
  // Outside the body: the next resume() calls it anew; what a paused call held is lost.
  void restart() { begun_ = false; }

  // Whether the address is of its stack.
  bool on_stack(uintptr_t address) const {
    return address - reinterpret_cast<uintptr_t>(stack_) < kStackBytes;
  }

 private:
  static constexpr std::size_t kStackBytes = 128 << 10;
  static void enter(unsigned high, unsigned low);

  void (*body_)(void*);
  void* of_;
  void* stack_;
  bool begun_ = false;
  ucontext_t first_{};
  std::jmp_buf inside_;
  std::jmp_buf outside_;
};

}  // namespace ringside::cuda_host
