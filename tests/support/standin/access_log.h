// Order of accesses to memory over streams, checked with vector clocks. No torch.
//
// A read must be ordered after the writes of the same bytes, a write after all accesses of them.
// Order comes from launches on one stream, from joins (events, waits) and from the host: what is
// launched on a device after the host has waited comes after what it waited for. Deterministic: it
// checks the order that the program asked for, not the one in which something ran.
//
// Thread safety: any thread.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/standin/clock.h"
#include "tests/support/standin/intervals.h"
#include "tests/support/standin/reports.h"

namespace ringside::standin {

class AccessLog {
 public:
  // reports: receives the faults; must outlive this.
  explicit AccessLog(ReportLog& reports) : reports_(reports) {}

  // The name of a stream in reports.
  void name_stream(StreamKey stream, std::string name);

  // Device memory, allocated on `owner`; nothing has written it.
  void add_device_block(Bytes bytes, StreamKey owner);
  // Memory that the host writes too.
  void add_pinned_block(Bytes bytes);
  // Reports an access that the owner is not ordered after and that record_use did not name: the
  // allocator may hand the memory to the owner's next kernel.
  void remove_block(uintptr_t begin);
  // A stream whose accesses remove_block() then does not report. Ignores memory that is no block.
  void record_use(uintptr_t begin, StreamKey stream);
  // The written bytes of `from` count as written in the block at `to`.
  void copy_written(Bytes from, uintptr_t to);

  // The state of a stream, as an event records it.
  Clock snapshot(StreamKey stream) const;
  Clock device_snapshot(int device) const;  // of all streams of a device
  // Orders what the stream launches next after what the clock covers.
  void join(StreamKey stream, const Clock& clock);
  // Orders what is launched on the device next after what the clock covers.
  void host_learns(int device, const Clock& clock);
  // Whether the host has learnt of this launch.
  bool host_knows(Moment moment) const;

  // Checks and records one launch. An argument that is read and written counts as written.
  Moment launch(StreamKey stream, const std::string& op, const std::vector<Use>& reads,
                const std::vector<Use>& writes);

 private:
  struct Access {
    Bytes bytes;
    Moment moment;
    std::string op;
    bool write = false;
  };
  struct Block {
    Bytes bytes;
    StreamKey owner;
    bool pinned = false;
    std::vector<Access> accesses;
    Intervals written;
    std::set<StreamKey> recorded;
  };

  Block* find(Bytes bytes);
  const Clock& current(StreamKey stream);
  std::string describe(StreamKey stream) const;
  void check(const Block& block, Bytes bytes, Moment moment, const std::string& op, bool write);
  void check_written(const Block& block, const Use& use, const std::string& op);
  static void record(Block& block, Access access);

  ReportLog& reports_;
  mutable std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;
  std::map<StreamKey, Clock> streams_;
  std::map<StreamKey, uint64_t> launched_;
  std::map<StreamKey, std::string> names_;
  Clock host_[kDevices];
};

}  // namespace ringside::standin
