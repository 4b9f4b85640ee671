// Vector clocks over streams: what a stream, an event or the host is ordered after. No torch.
//
// Source: torch/cuda/_sanitizer.py (PyTorch's CUDA Sanitizer).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "tests/support/standin/address.h"

namespace ringside::standin {

// One launch: the seq-th on its stream.
struct Moment {
  StreamKey stream;
  uint64_t seq = 0;
};

class Clock {
 public:
  // Covers this launch and the earlier ones of its stream from now on.
  void advance_to(Moment moment) {
    uint64_t& seq = seen_[moment.stream];
    seq = std::max(seq, moment.seq);
  }
  // Covers all that the other covers.
  void join(const Clock& other) {
    for (const auto& [stream, seq] : other.seen_) {
      advance_to({stream, seq});
    }
  }
  // Whether the launch is among what this is ordered after.
  bool covers(Moment moment) const {
    const auto found = seen_.find(moment.stream);
    return found != seen_.end() && moment.seq <= found->second;
  }

 private:
  std::map<StreamKey, uint64_t> seen_;
};

}  // namespace ringside::standin
