// All state of the stand-in, of which a process has one, as it has one driver. No torch.
#pragma once

#include <string>
#include <vector>

#include "tests/support/standin/access_log.h"
#include "tests/support/standin/counters.h"
#include "tests/support/standin/device_memory.h"
#include "tests/support/standin/in_flight.h"
#include "tests/support/standin/pinned_memory.h"
#include "tests/support/standin/reports.h"

namespace ringside::standin {

struct Machine {
  ReportLog reports;
  Counters counters{reports};
  AccessLog accesses{reports};
  DeviceMemory memory;
  PinnedMemory pinned{reports};
  InFlight in_flight;

  // Checks, records and prepares a kernel's accesses; then the kernel can run.
  // Blocks: until transfers that use the same memory are complete.
  Moment begin(StreamKey stream, const std::string& op, const std::vector<Use>& reads,
               const std::vector<Use>& writes);

  // The host waits on `device` for what `clock` is ordered after. `what` is counted as a host sync.
  // Blocks: until transfers among it are complete.
  void host_waits(int device, const Clock& clock, const std::string& what);
  // The host knows without a wait of its own, by a query or a blocking upload.
  void host_knows(int device, const Clock& clock);
};

// Made at the first call and never destroyed, because tensors of static lifetime free memory late.
Machine& machine();

}  // namespace ringside::standin
