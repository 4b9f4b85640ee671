#include "tests/support/cuda_host/fiber.h"

#include <sys/mman.h>

#include <new>

namespace ringside::cuda_host {

Fiber::Fiber(void (*body)(void* of), void* of) : body_(body), of_(of) {
  stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (stack_ == MAP_FAILED) {
    throw std::bad_alloc();
  }
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

void Fiber::enter(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Fiber*>((static_cast<uintptr_t>(high) << 32) | low);
  for (;;) {
    self->body_(self->of_);
    self->pause();
  }
}

// A context of ucontext starts a body; setjmp and longjmp, which make no call of the system, switch
// after that.
void Fiber::resume() {
  if (_setjmp(outside_) != 0) {
    return;
  }
  if (begun_) {
    _longjmp(inside_, 1);
  }
  begun_ = true;
  getcontext(&first_);
  first_.uc_stack.ss_sp = stack_;
  first_.uc_stack.ss_size = kStackBytes;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&first_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  setcontext(&first_);
}

void Fiber::pause() {
  if (_setjmp(inside_) == 0) {
    _longjmp(outside_, 1);
  }
}

}  // namespace ringside::cuda_host
