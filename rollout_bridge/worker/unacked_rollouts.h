// Rollouts of a worker that the trainer has not acknowledged, with the images that they name, and
// the window that limits how many bytes of both may be under way.
//
// A rollout stays here until its ACK, across sessions. Each session sends all of them again. An
// image goes ahead of the first rollout that names it, and again only when the trainer asks for it
// or the session ended before the trainer answered it.
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

  // Holds a rollout and its images until its answer arrives. The caller has asked has_room().
  void add(const Rollout& rollout, Payload payload);
  // The session has ended: everything is sent again.
  void resend_all();
  // Bytes that may be unacknowledged. 0: nothing is sent until another window comes; below 0: the
  // window stays.
  void set_window(int64_t bytes);
  // The IMAGEs and ROLLOUTs to send now, in order, as far as the window allows. One that is larger
  // than the window goes alone.
  std::vector<Payload> sendable(Clock::time_point now);
  // The rollout that an ACK answered.
  struct Answered {
    std::string rollout_id;
    Sample sample;
  };
  // Removes the rollout that this ACK answers. ACKs come in the order of the ROLLOUTs, so an ACK
  // without a rollout_id (the trainer could not read it) answers the one sent first. Returns
  // nullopt when the rollout is unknown, BUSY, which sends it again later, or UNKNOWN_IMAGES, which
  // sends it again after these images.
  std::optional<Answered> acknowledge(const AckBody& ack, Clock::time_point now);
  // IMAGE_ACKs come in the order of the IMAGEs. One that was refused is asked for again with the
  // rollouts that name it; the trainer tells a worker to leave that sends nothing else.
  void acknowledge_image(const ImageAckBody& ack);

 private:
  struct Unacked {
    std::string rollout_id;
    Sample sample;
    Payload payload;
    std::vector<Image> images;  // those that it names, each once
    uint64_t sent_as = 0;       // number of its sending; 0: to be sent
    int asked = 0;              // UNKNOWN_IMAGES so far
    Clock::time_point not_before{};
  };
  struct SentImage {
    std::string hash;
    uint64_t bytes = 0;
  };

  std::deque<Unacked>::iterator answered_by(const AckBody& ack);
  // Appends what fits into the window. False when something does not.
  bool append_images(const Unacked& rollout, std::vector<Payload>& payloads);
  bool fits(uint64_t bytes) const;
  void send_again(Unacked& rollout, const AckBody& ack, Clock::time_point now);

  std::size_t capacity_;
  std::chrono::milliseconds busy_retry_;
  std::deque<Unacked> rollouts_;
  // Images that the trainer has, or gets before what is sent next, as far as is known here. It may
  // have dropped them: then it asks for them.
  std::set<std::string> known_images_;
  std::deque<SentImage> sent_images_;  // not answered
  int64_t window_ = 0;
  uint64_t bytes_ = 0;  // of the sent ones
  uint64_t sendings_ = 0;
};

}  // namespace ringside::bridge
