// Stand-in accelerator: a second device type in the process, for tests of device code without a
// GPU. It finds tensors on the wrong device, host access to device memory, missing order between
// streams, and waits of the host. README.md says how, and what it cannot find.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/standin/counters.h"
#include "tests/support/standin/fault_handler.h"
#include "tests/support/standin/reports.h"

namespace ringside::standin {

// Registers device "standin" with torch. Idempotent. From then on it is the process's accelerator.
void install();

// Throws: c10::Error unless 0 <= index < kDevices.
c10::Device device(int index = 0);

// The part of a test whose reports and counts are looked at. Installs the stand-in, clears reports,
// counts and peaks, and arms the fault handler. One at a time; made inside a test case, on its
// thread, before the ranks start.
class Scope {
 public:
  // Throws: c10::Error when another is open.
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // Faults found so far. With finish(), transfers that nobody completed too.
  std::vector<Report> reports() const;
  std::vector<Report> finish();
  // All reports, one a line; empty when there are none.
  std::string text() const;

  // Counts of a device since the Scope began or reset_counts().
  Counts counts(int device_index = 0) const;
  // Bytes that a device's allocations take.
  int64_t current_bytes(int device_index = 0) const;
  int64_t peak_bytes(int device_index = 0) const;  // since the Scope began or reset_peak()
  // The peak becomes the bytes in use.
  void reset_peak(int device_index = 0);
  // Counts of all devices begin at 0 again.
  void reset_counts();

 private:
  std::unique_ptr<FaultHandler> handler_;
};

// A region of the program in which the host must not wait for a device: each host sync and blocking
// upload is reported with the region's name. Applies to all threads that use the device.
class NoHostWaits {
 public:
  // region: its name in reports.
  NoHostWaits(int device_index, std::string region);
  ~NoHostWaits();
  NoHostWaits(const NoHostWaits&) = delete;
  NoHostWaits& operator=(const NoHostWaits&) = delete;

 private:
  int device_;
};

}  // namespace ringside::standin
