// SIGSEGV handler of the stand-in. Host code that touches device memory ends the process: the
// address, the device and a backtrace go to standard error, the exit status is kHostAccessStatus.
// Host code that touches guarded pinned memory is reported and goes on. Other faults go to the
// handler that was there before.
#pragma once

namespace ringside::standin {

constexpr int kHostAccessStatus = 97;

// In force from construction to destruction. Test frameworks install handlers of their own for each
// case, so it is made inside a case.
class FaultHandler {
 public:
  // Installs the handler of the whole process.
  FaultHandler();
  ~FaultHandler();
  FaultHandler(const FaultHandler&) = delete;
  FaultHandler& operator=(const FaultHandler&) = delete;
};

}  // namespace ringside::standin
