// Counts of one device: kernels, host syncs and blocking uploads, each by name. No torch.
//
// Thread safety: any thread.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/standin/address.h"
#include "tests/support/standin/reports.h"

namespace ringside::standin {

struct Counts {
  using ByName = std::map<std::string, int64_t>;
  ByName kernels;           // by operator; views and copies to and from the host are not kernels
  ByName host_syncs;        // by what waited: an operator, a download, an event, a stream
  ByName blocking_uploads;  // by dtype and shape
  int64_t uploads = 0;      // all of them
  int64_t downloads = 0;
  int64_t uploaded_bytes = 0;
  int64_t downloaded_bytes = 0;

  // The counts of all names together.
  static int64_t sum(const ByName& counts) {
    int64_t total = 0;
    for (const auto& [name, count] : counts) {
      total += count;
    }
    return total;
  }
};

class Counters {
 public:
  // reports: receives forbidden waits; must outlive this.
  explicit Counters(ReportLog& reports) : reports_(reports) {}

  // Counts a kernel, and copies with their bytes.
  void kernel(int device, const std::string& op);
  void upload(int device, size_t bytes);
  void download(int device, size_t bytes);
  // Reported when the device is in a region that forbids it.
  void host_sync(int device, const std::string& what);
  void blocking_upload(int device, const std::string& what);

  // Regions nest; the innermost is named in reports.
  void enter_region(int device, std::string name);
  void leave_region(int device);

  // Counts since the last reset().
  Counts of(int device) const;
  // Sets all counts of all devices to 0; regions stay.
  void reset();

 private:
  struct Device {
    Counts counts;
    std::vector<std::string> regions;
  };

  ReportLog& reports_;
  mutable std::mutex mutex_;
  std::array<Device, kDevices> devices_;
};

}  // namespace ringside::standin
