// Links between the devices of one process, with NCCL's rules for what runs when. Nothing is
// buffered: a send completes only when its receive is launched, a collective only when all ranks of
// the group have launched it. A device runs one launch at a time, in program order over all its
// communicators; so ranks that use two communicators in different orders wait for each other for
// ever, as they may with NCCL. A deadline ends that and names what each device waits for. No torch.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/standin/reports.h"

namespace ringside::standin {

class Fabric {
 public:
  enum class Kind { kCollective, kSend, kReceive };

  // What one device adds to a collective or to a transfer between two devices.
  struct Part {
    Kind kind = Kind::kCollective;
    std::string group;
    std::string call;             // must be equal on all devices of a collective: name and sizes
    std::vector<int> devices;     // collective: of the group in rank order; else the peer alone
    size_t bytes = 0;             // of a transfer: must be equal on both ends
    std::function<void()> start;  // starts the movement of the data and returns
  };

  struct Launch {
    int device = 0;
    std::vector<Part> parts;
    std::vector<bool> matched;
    bool complete = false;  // every part is matched and started
  };

  // deadline: how long wait() may see no match.
  Fabric(ReportLog& reports, std::chrono::milliseconds deadline)
      : reports_(reports), deadline_(deadline) {}

  // Parts of one launch are a group call: they progress together.
  // Blocks: never.
  std::shared_ptr<Launch> launch(int device, std::vector<Part> parts);
  // Blocks: until the launch is complete.
  // Throws: std::runtime_error with what every device waits for, after the deadline or after ranks
  // launched different collectives; on all waiting ranks.
  void wait(const Launch& launch);
  // Whether every part of the launch is matched and started.
  bool complete(const Launch& launch) const;

 private:
  using Queue = std::deque<std::shared_ptr<Launch>>;
  struct Place {  // one part of an active launch
    Launch* launch = nullptr;
    size_t part = 0;
  };

  // mutex_ is held in all of these.
  void progress();
  bool progress(Launch& launch, size_t part);
  bool match_collective(Launch& launch, size_t part);
  bool match_transfer(Launch& launch, size_t part);
  Place find_active(int device, const std::function<bool(const Part&)>& wanted) const;
  void start(const std::vector<Place>& places);
  void fail(Fault fault, const std::string& text);
  std::string pending() const;

  ReportLog& reports_;
  std::chrono::milliseconds deadline_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Queue> queues_;  // by device; the front is active
  std::string failure_;
};

}  // namespace ringside::standin
