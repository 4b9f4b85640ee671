// Grants of work to the sessions: shares, windows, samples that are late or overdue.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rollout_bridge/trainer/weight_desk.h"

namespace ringside::bridge {

class WorkDesk {
 public:
  // All must outlive it.
  WorkDesk(TrainerParts& parts, TrainerSessions& sessions, WeightDesk& weights)
      : parts_(parts), sessions_(sessions), weights_(weights) {}

  // Grants waiting samples to the workers that can take them. uncollected: rollouts that have
  // arrived and take up room.
  void hand_out(int64_t uncollected);
  // Reassigns overdue samples, and lets idle workers take over late ones.
  void reassign();
  // Tells the holder of a sample that a stand-in has replaced, if it has one, that it need not make
  // it. A holder that has sent no rollout since it got the sample gets no new ones until it sends
  // one, as long as another worker is ready.
  void withdraw_straggler(int64_t group_id, const OwedSample& sample);
  // A session ends: takes back its samples and its window.
  Holding release(const Session& session);
  // True when the worker has delivered all its grants and has nothing else to send.
  bool is_idle(const Session& session) const;
  // Releases what a worker holds once each of these samples was answered by an unreadable rollout
  // that named none. So each such rollout asks for one sample again, and until then the worker gets
  // no new ones.
  void release_unnamed(Session& session);

 private:
  void widen_windows();
  bool has_window_for_work(Session& session);
  std::vector<WorkerShare> sharing_workers();
  std::vector<WorkerShare> ready_workers() const;
  bool is_on_trial(const Session& session) const;
  bool another_is_ready(const Session& session) const;
  void send_credits(Session& session, const std::vector<Grant>& groups);
  void withdraw(Session& session, const std::vector<Grant>& groups);
  void reassign_overdue();
  void take_over_late();

  TrainerParts& parts_;
  TrainerSessions& sessions_;
  WeightDesk& weights_;
};

}  // namespace ringside::bridge
