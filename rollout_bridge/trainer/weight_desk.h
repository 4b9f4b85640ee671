// Weights on the trainer's side: which are published, which worker was offered them, staged them
// and installed them.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "rollout_bridge/trainer/trainer_sessions.h"

namespace ringside::bridge {

// Consecutive failed weight updates of a worker after which it is offered no more weights.
inline constexpr int kMaxFailedSyncs = 3;
// A worker that is behind keeps its share of the work at least for this long.
inline constexpr std::chrono::milliseconds kLeastInstallPatience{10000};

class WeightDesk {
 public:
  // Both must outlive it.
  WeightDesk(TrainerParts& parts, TrainerSessions& sessions) : parts_(parts), sessions_(sessions) {}

  // Makes the snapshot the newest and offers it to every session. `where`: what the transports of
  // weights say about the place of its bytes.
  // Throws: as PublishedWeights::publish.
  void publish(std::shared_ptr<const WeightSnapshot> snapshot, OfferBody where);
  // A new session: notes the weights that its worker has installed, and offers newer ones. Returns
  // true when the installed weights are known.
  bool join(Session& session, const HelloBody& body);

  // One handler a message type.
  void on_ready(Session& session, const Message& message);
  void on_staged(Session& session, const Message& message);
  void on_stage_failed(Session& session, const Message& message);
  void on_committed(Session& session, const Message& message);

  // Whether a worker that is taking newer weights keeps its share of the work. Reports once when it
  // has been behind for too long.
  bool keeps_share(Session& session);

 private:
  void offer(Session& session);
  void malformed(const Session& session, const Error& error);
  void sync_failed(Session& session, const std::string& why);
  void record_installed(Session& session, int64_t version);
  Clock::duration install_patience() const;

  TrainerParts& parts_;
  TrainerSessions& sessions_;
  Clock::duration longest_install_{};  // from an offer to COMMITTED, of any worker so far
};

}  // namespace ringside::bridge
