// Faults that the stand-in found, as a bounded list. No torch.
//
// Thread safety: any thread.
#pragma once

#include <mutex>
#include <string>
#include <vector>

namespace ringside::standin {

enum class Fault {
  kUnorderedRead,         // a read that no event or wait orders after the write
  kUnorderedWrite,        // a write that is not ordered after an earlier access
  kFreedInUse,            // memory freed while another stream may still use it
  kUninitialisedRead,     // a read of device memory that no kernel or copy has written
  kPinnedTouchedEarly,    // host access to pinned memory that a copy may still write
  kPinnedReusedEarly,     // host write to pinned memory that a copy may still read
  kForbiddenHostSync,     // the host waited for the device inside NoHostWaits
  kForbiddenUpload,       // a blocking upload inside NoHostWaits
  kCollectiveMismatch,    // ranks of a group launched different collectives
  kCollectiveDeadline,    // a collective or transfer was not matched in time
  kUnfinishedCollective,  // a launched collective that no one waited for, at the end of a Scope
};

// "unordered read", "freed in use", ...
const char* to_string(Fault fault);

struct Report {
  Fault fault;
  std::string text;
};

class ReportLog {
 public:
  // Drops a report whose text is already there, and all beyond the capacity of 1000.
  void add(Fault fault, std::string text);
  std::vector<Report> all() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<Report> reports_;
};

}  // namespace ringside::standin
