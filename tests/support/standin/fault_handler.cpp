#include "tests/support/standin/fault_handler.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/support/standin/machine.h"

namespace ringside::standin {
namespace {

struct sigaction previous_handler;

void write_text(const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); }

[[noreturn]] void end_process(const void* address) {
  char text[160];
  std::snprintf(text, sizeof text,
                "\nstand-in: host code touched device memory: address %p, device standin:%d\n",
                address, machine().memory.device_of(address));
  write_text(text);
  void* frames[32];
  backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
  _exit(kHostAccessStatus);
}

// Runs in the thread that faulted. That thread is in host code and holds no lock of the stand-in,
// which itself uses the kernels' mappings only; so the handler may take locks.
void on_fault(int, siginfo_t* info, void*) {
  if (machine().memory.owns(info->si_addr)) {
    end_process(info->si_addr);
  }
  if (machine().pinned.owns(info->si_addr) && machine().pinned.open_after_fault(info->si_addr)) {
    return;  // the access is tried again
  }
  sigaction(SIGSEGV, &previous_handler, nullptr);
}

}  // namespace

FaultHandler::FaultHandler() {
  machine();
  void* frames[2];
  backtrace(frames, 2);  // loads its library now, not in the handler
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous_handler);
}

FaultHandler::~FaultHandler() { sigaction(SIGSEGV, &previous_handler, nullptr); }

}  // namespace ringside::standin
