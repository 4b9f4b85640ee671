// Arriving rollouts and their images: read, judged, journalled, acknowledged; rollouts are
// delivered to the ledger.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rollout_bridge/trainer/work_desk.h"

namespace ringside::bridge {

class RolloutDesk {
 public:
  // All must outlive it.
  RolloutDesk(TrainerParts& parts, TrainerSessions& sessions, WorkDesk& work)
      : parts_(parts), sessions_(sessions), work_(work) {}

  // Delivers the journal's rollouts to the ledger. Drops those that would be refused now, with an
  // event; their samples are granted again.
  void replay_journal();
  // Answers a ROLLOUT.
  void on_rollout(Session& session, const Message& message);
  // Answers an IMAGE.
  void on_image(Session& session, const Message& message);
  // Why the session ends: its worker's rollouts are all refused, and it would get the same samples
  // for ever. nullopt: it goes on.
  std::optional<Error> why_given_up(const Session& session) const;

  // The step that the owner waits for; nullopt: none.
  void await_step(std::optional<int64_t> step) { awaited_step_ = step; }
  // Journals and delivers stand-ins for the stragglers of the awaited step. Those that the journal
  // has no room for are waited for longer.
  void replace_stragglers();

  // Grants groups, and writes them to the journal.
  // Throws: as GroupLedger::grant.
  void open_groups(const std::vector<int64_t>& groups);
  // Drops consumed groups from the journal and the ledger.
  void consume(std::span<const int64_t> group_ids);

  // Delivered rollouts that the owner has not collected.
  int64_t uncollected() const { return static_cast<int64_t>(arrivals_.size()); }
  // They no longer count against the queue's limits. Returns false when there are none.
  bool collect();

 private:
  // A delivered rollout that has not been collected.
  struct Arrival {
    int64_t group_id = 0;
    int64_t bytes = 0;
  };

  // What became of a rollout of the journal. kOver: its step or group is over. kNotTaken: its
  // weights are lost, or others of its group came first.
  enum class Replayed { kDelivered, kOver, kNotTaken };

  AckBody receive(Session& session, const Message& message, const Rollout& rollout, uint64_t bytes);
  AckBody receive_held_out(Session& session, const Rollout& rollout);
  AckBody requeued(Session& session, const Rollout& rollout);
  AckBody reject(Session& session, const Rollout& rollout, const Error& error);
  AckBody busy(const std::string& rollout_id);
  // nullopt when all images of the rollout are here.
  std::optional<AckBody> unknown_images(const Rollout& rollout);
  AckBody unreadable(Session& session, const Message& message, const Error& error);
  Status check_weights_of(const Rollout& rollout) const;
  Status admit(const Rollout& rollout) const;
  bool has_room_for(const Rollout& rollout, uint64_t bytes) const;
  bool replace(const GroupLedger::Straggler& straggler);
  bool journalled(const Rollout& rollout, const FlatRollout& message);
  Result<Replayed> replay(Journal::Record record);
  void report_dropped(const std::vector<Error>& refused);
  std::vector<int64_t> deliver(const Rollout& rollout, FlatRollout message, uint64_t bytes);
  void drop_arrivals();

  TrainerParts& parts_;
  TrainerSessions& sessions_;
  WorkDesk& work_;
  std::vector<Arrival> arrivals_;
  std::optional<int64_t> awaited_step_;
  Clock::time_point next_look_{};  // for stragglers
  std::string journal_trouble_;    // why the journal accepts nothing now; empty: it accepts
};

}  // namespace ringside::bridge
