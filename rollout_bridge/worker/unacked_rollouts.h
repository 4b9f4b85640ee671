// Rollouts of a worker that the trainer has not acknowledged, and the window that limits how many
// bytes of them may be under way.
//
// A rollout stays here until its ACK, across sessions. Each session sends all of them again.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/wire.h"

namespace ringside::bridge {

class UnackedRollouts {
 public:
  using Clock = std::chrono::steady_clock;
  using Sample = std::pair<int64_t, int32_t>;  // group, sample
  // `busy_retry`: wait after ACK(BUSY).
  UnackedRollouts(std::size_t capacity, std::chrono::milliseconds busy_retry)
      : capacity_(capacity), busy_retry_(busy_retry) {}

  std::size_t size() const { return rollouts_.size(); }
  bool has_room() const { return size() < capacity_; }
  // The samples whose rollouts are held.
  std::set<Sample> samples() const;

  // Holds a rollout until its answer arrives. The caller has asked has_room().
  void add(const Rollout& rollout, Payload payload);
  // The session has ended: everything is sent again.
  void resend_all();
  // Bytes that may be unacknowledged. 0: nothing is sent until another window comes; below 0: the
  // window stays.
  void set_window(int64_t bytes);
  // The ROLLOUTs to send now, in order, as far as the window allows. A rollout larger than the
  // window goes alone.
  std::vector<Payload> sendable(Clock::time_point now);
  // The rollout that an ACK answered.
  struct Answered {
    std::string rollout_id;
    Sample sample;
  };
  // Removes the rollout that this ACK answers. ACKs come in the order of the ROLLOUTs, so an ACK
  // without a rollout_id (the trainer could not read it) answers the one sent first. Returns
  // nullopt when the rollout is unknown, or BUSY, which sends it again later.
  std::optional<Answered> acknowledge(const AckBody& ack, Clock::time_point now);

 private:
  struct Unacked {
    std::string rollout_id;
    Sample sample;
    Payload payload;
    uint64_t sent_as = 0;  // number of its sending; 0: to be sent
    Clock::time_point not_before{};
  };

  std::deque<Unacked>::iterator answered_by(const AckBody& ack);

  std::size_t capacity_;
  std::chrono::milliseconds busy_retry_;
  std::deque<Unacked> rollouts_;
  int64_t window_ = 0;
  uint64_t bytes_ = 0;  // of the sent ones
  uint64_t sendings_ = 0;
};

}  // namespace ringside::bridge
