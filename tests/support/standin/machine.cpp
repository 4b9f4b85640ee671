#include "tests/support/standin/machine.h"

namespace ringside::standin {

Moment Machine::begin(StreamKey stream, const std::string& op, const std::vector<Use>& reads,
                      const std::vector<Use>& writes) {
  const Moment moment = accesses.launch(stream, op, reads, writes);
  in_flight.complete_conflicts(reads, writes);
  return moment;
}

void Machine::host_waits(int device, const Clock& clock, const std::string& what) {
  counters.host_sync(device, what);
  host_knows(device, clock);
}

void Machine::host_knows(int device, const Clock& clock) {
  in_flight.complete_before(clock);
  accesses.host_learns(device, clock);
  pinned.release([this](Moment moment) { return accesses.host_knows(moment); });
}

Machine& machine() {
  static Machine* const instance = new Machine;
  return *instance;
}

}  // namespace ringside::standin
