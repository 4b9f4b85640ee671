#include "tests/support/standin/counters.h"

#include <utility>

namespace ringside::standin {

void Counters::kernel(int device, const std::string& op) {
  const std::lock_guard lock(mutex_);
  ++devices_.at(device).counts.kernels[op];
}

void Counters::upload(int device, size_t bytes) {
  const std::lock_guard lock(mutex_);
  ++devices_.at(device).counts.uploads;
  devices_.at(device).counts.uploaded_bytes += static_cast<int64_t>(bytes);
}

void Counters::download(int device, size_t bytes) {
  const std::lock_guard lock(mutex_);
  ++devices_.at(device).counts.downloads;
  devices_.at(device).counts.downloaded_bytes += static_cast<int64_t>(bytes);
}

void Counters::host_sync(int device, const std::string& what) {
  const std::lock_guard lock(mutex_);
  Device& one = devices_.at(device);
  ++one.counts.host_syncs[what];
  if (!one.regions.empty()) {
    reports_.add(Fault::kForbiddenHostSync, what + " waits for standin:" + std::to_string(device) +
                                                " inside '" + one.regions.back() + "'");
  }
}

void Counters::blocking_upload(int device, const std::string& what) {
  const std::lock_guard lock(mutex_);
  Device& one = devices_.at(device);
  ++one.counts.blocking_uploads[what];
  if (!one.regions.empty()) {
    reports_.add(Fault::kForbiddenUpload,
                 "an upload of " + what + " to standin:" + std::to_string(device) +
                     " blocks the host inside '" + one.regions.back() + "'");
  }
}

void Counters::enter_region(int device, std::string name) {
  const std::lock_guard lock(mutex_);
  devices_.at(device).regions.push_back(std::move(name));
}

void Counters::leave_region(int device) {
  const std::lock_guard lock(mutex_);
  devices_.at(device).regions.pop_back();
}

Counts Counters::of(int device) const {
  const std::lock_guard lock(mutex_);
  return devices_.at(device).counts;
}

void Counters::reset() {
  const std::lock_guard lock(mutex_);
  for (Device& device : devices_) {
    device.counts = {};
  }
}

}  // namespace ringside::standin
