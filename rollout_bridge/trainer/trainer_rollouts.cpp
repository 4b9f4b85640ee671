// Grants of work and handling of rollouts in TrainerState.
#include <algorithm>

#include "rollout_bridge/base/utf8.h"
#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/trainer_state.h"

namespace ringside::bridge {
namespace {

template <class Body>
std::size_t packed_bytes(const Body& body) {
  msgpack::sbuffer packed;
  msgpack::pack(packed, body);
  return packed.size();
}

// Leaves room for the other fields of frame 0.
std::size_t most_in_credit(const Limits& limits) { return limits.max_header_bytes / 4 * 3; }

}  // namespace

void TrainerState::on_rollout(Session& session, const Message& message) {
  uint64_t bytes = 0;
  for (const FrameSpec& spec : message.specs()) bytes += spec.bytes;
  budget_.arrived(session.worker_id, static_cast<int64_t>(bytes));
  session.overdue = false;  // it has sent a rollout
  auto decoded = decode_rollout(message, options_.limits);
  AckBody ack;
  if (decoded) {
    ++counters_.received;
    counters_.rollout_bytes += bytes;
    ack = receive(session, message, std::move(decoded).value(), bytes);
  } else {
    ack = unreadable(session, message, decoded.error());
  }
  release_unnamed(session);
  ack.window_bytes = budget_.raise(session.worker_id);
  if (is_idle(session)) budget_.release(session.worker_id);
  queue(session, make_payload(MessageType::kAck, ack));
}

// Answers a rollout that breaks a rule. The fields that can be read let the worker drop the rollout
// and the trainer grant the sample again. One that names no sample is counted: see
// release_unnamed().
AckBody TrainerState::unreadable(Session& session, const Message& message, const Error& error) {
  Rollout named;
  named.rollout_id = message.field<std::string>("rollout_id").value_or("");
  if (first_byte_not_utf8(named.rollout_id)) named.rollout_id.clear();
  const auto group_id = message.field<int64_t>("group_id");
  const auto sample_index = message.field<int32_t>("sample_index");
  if (group_id && sample_index) {
    named.group_id = *group_id;
    named.sample_index = *sample_index;
  } else {
    ++session.unnamed;
  }
  const int counted = session.refused_in_row;
  AckBody ack = reject(session, named, error);
  if (session.refused_in_row == counted) count_refusal(session, error);
  return ack;
}

// Releases what a worker holds once each of these samples was answered by an unreadable rollout
// that named none. So each such rollout asks for one sample again, and until then the worker gets
// no new ones.
void TrainerState::release_unnamed(Session& session) {
  if (session.unnamed == 0 || ledger_.work().in_flight(session.worker_id) > session.unnamed) return;
  ledger_.work().release(session.worker_id);
  session.unnamed = 0;
}

void TrainerState::count_refusal(Session& session, const Error& error) {
  ++session.refused_in_row;
  session.last_refusal = error;
}

AckBody TrainerState::reject(Session& session, const Rollout& rollout, const Error& error) {
  ++counters_.rejected[static_cast<std::size_t>(error.reason)];
  const bool stale = error.reason == Reason::kStale;  // not a fault of the worker
  // The worker drops the rollout. If it held the sample, the sample is granted again.
  const bool was_asked = ledger_.reopen(rollout.group_id, rollout.sample_index, session.worker_id);
  if (was_asked && !stale) count_refusal(session, error);
  event(session.worker_id, "rollout of worker " + session.worker_id +
                               (stale ? " not used: " : " rejected: ") + error.detail);
  return {rollout.rollout_id, stale ? "STALE" : "REJECTED", reason_name(error.reason),
          clip_text(error.detail)};
}

// Ends the session of a worker whose rollouts are all refused, which would otherwise get the same
// samples forever.
void TrainerState::give_up_if_always_refused(const std::string& identity, const Message& message) {
  const auto it = sessions_.find(identity);
  if (it == sessions_.end() || it->second.refused_in_row < options_.max_refused_in_row) return;
  const Error why{
      it->second.last_refusal.reason,
      std::to_string(it->second.refused_in_row) +
          " rollouts in a row were refused, the last one: " + it->second.last_refusal.detail};
  refuse(identity, why, true, &message.header());
  lose(identity, why.detail);
}

AckBody TrainerState::busy(const std::string& rollout_id) {
  ++counters_.busy;
  return {rollout_id, "BUSY", "", ""};
}

// Checks that the weights of a rollout exist: versions of this start must be published, versions of
// an earlier start must be ancestors of this start's weights.
Status TrainerState::check_weights_of(const Rollout& rollout) const {
  const auto error = [&](Reason reason, const std::string& what) {
    return Error{reason, "rollout '" + rollout.rollout_id + "': " + what};
  };
  const std::string term = "trainer_term " + std::to_string(rollout.trainer_term);
  if (rollout.trainer_term == options_.trainer_term) {
    for (const VersionSpan& span : rollout.versions) {
      if (published_.contains(span.version)) continue;
      return error(Reason::kUnknownVersion,
                   "version " + std::to_string(span.version) + " was never published in " + term);
    }
    return Success{};
  }
  const auto start = options_.newest_of_term.find(rollout.trainer_term);
  if (rollout.trainer_term > options_.trainer_term || start == options_.newest_of_term.end()) {
    return error(Reason::kWrongRun, term + ", now is " + std::to_string(options_.trainer_term) +
                                        " and no earlier one of that number is known");
  }
  for (const VersionSpan& span : rollout.versions) {
    if (span.version <= start->second) continue;
    return error(Reason::kStale, "version " + std::to_string(span.version) + " of " + term +
                                     " was lost with a restart, the last that exists is " +
                                     std::to_string(start->second));
  }
  return Success{};
}

// Room is reserved for granted samples. Other rollouts, such as those of an earlier term, need free
// room.
bool TrainerState::has_room_for(const Rollout& rollout, uint64_t bytes) const {
  const WorkDivision& work = ledger_.work();
  const auto arrived = static_cast<int64_t>(arrivals_.size());
  const bool counted = work.is_assigned(rollout.group_id, rollout.sample_index) ||
                       arrived + work.in_flight() < options_.max_queued_rollouts;
  return counted && budget_.fits(static_cast<int64_t>(bytes));
}

// Appends the frames to the journal as received. Reports once when the journal stops accepting
// rollouts and once when it accepts them again.
bool TrainerState::journalled(int64_t group_id, const Message& message) {
  const Status written = journal_.append(group_id, message.flat());
  if (!written) {
    ++counters_.journal_refused;
    if (journal_trouble_.empty()) {
      event("", "journal: " + written.error().detail + "; rollouts wait until there is room",
            EventKind::kTrouble);
    }
    journal_trouble_ = written.error().detail;
    return false;
  }
  if (!journal_trouble_.empty()) event("", "journal: takes rollouts again");
  journal_trouble_.clear();
  return true;
}

AckBody TrainerState::requeued(Session& session, const Rollout& rollout) {
  ++counters_.requeued;
  event(session.worker_id, "sample " + std::to_string(rollout.sample_index) + " of group " +
                               std::to_string(rollout.group_id) + " came back " +
                               finish_reason_name(rollout.finish_reason) +
                               "; this sample is granted again");
  return {rollout.rollout_id, "REQUEUED", "", ""};
}

AckBody TrainerState::receive_held_out(Session& session, const Rollout& rollout) {
  const auto verdict = evaluation_.judge(rollout, session.worker_id);
  if (!verdict) return reject(session, rollout, verdict.error());
  if (verdict.value() == HeldOutSamples::Verdict::kDuplicate) {
    ++counters_.duplicate;
    return {rollout.rollout_id, "DUPLICATE", "", ""};
  }
  if (verdict.value() == HeldOutSamples::Verdict::kRetry) {
    evaluation_.retry(rollout, session.worker_id);
    return requeued(session, rollout);
  }
  if (options_.admission) {
    const int64_t held_out = evaluation_.prompt_of(rollout.group_id);
    if (Status s = options_.admission->admit_held_out(rollout, held_out); !s) {
      return reject(session, rollout, s.error());
    }
  }
  ledger_.work().answered(rollout.group_id, rollout.sample_index, session.worker_id, now_);
  evaluation_.deliver(rollout);
  ++counters_.evaluated;
  session.refused_in_row = 0;
  return {rollout.rollout_id, "ACCEPTED", "", ""};
}

AckBody TrainerState::receive(Session& session, const Message& message, Rollout rollout,
                              uint64_t bytes) {
  if (rollout.group_id >= kFirstHeldOutGroup) return receive_held_out(session, rollout);
  if (Status s = check_weights_of(rollout); !s) return reject(session, rollout, s.error());
  const Origin origin =
      rollout.trainer_term == options_.trainer_term ? Origin::kThisStart : Origin::kEarlierStart;
  const auto verdict = ledger_.judge(rollout, session.worker_id, origin);
  if (!verdict) return reject(session, rollout, verdict.error());
  if (verdict.value() == Verdict::kDuplicate) {
    ++counters_.duplicate;
    return {rollout.rollout_id, "DUPLICATE", "", ""};
  }
  if (verdict.value() == Verdict::kRetry) {
    ledger_.retry(rollout, session.worker_id, origin);
    return requeued(session, rollout);
  }
  if (Status s = admit(rollout); !s) return reject(session, rollout, s.error());
  if (!has_room_for(rollout, bytes) || !journalled(rollout.group_id, message)) {
    return busy(rollout.rollout_id);
  }
  ledger_.work().answered(rollout.group_id, rollout.sample_index, session.worker_id, now_);
  AckBody ack{rollout.rollout_id, "ACCEPTED", "", ""};
  open_groups(deliver(std::move(rollout), bytes));
  ++counters_.accepted;
  session.refused_in_row = 0;
  return ack;
}

// True when the worker has delivered all its grants and has nothing else to send.
bool TrainerState::is_idle(const Session& session) const {
  return ledger_.work().in_flight(session.worker_id) == 0 && session.pending <= 0;
}

// Raises the low windows of workers that have rollouts to send.
void TrainerState::widen_windows() {
  for (auto& [identity, session] : sessions_) {
    if (session.state == SessionState::kBye || is_idle(session) ||
        !budget_.is_low(session.worker_id)) {
      continue;
    }
    CreditBody credit;
    credit.window_bytes = budget_.raise(session.worker_id);
    queue(session, make_payload(MessageType::kCredit, credit));
  }
}

// True when the worker has, or can get, a window for the rollouts of more work. No work is granted
// without one.
bool TrainerState::has_window_for_work(Session& session) {
  return budget_.window(session.worker_id) > 0 || budget_.raise(session.worker_id) > 0;
}

// The workers that share in the work: ready ones that can take it, and ones that are loading newer
// weights and will be ready soon.
std::vector<WorkerShare> TrainerState::sharing_workers() {
  std::vector<WorkerShare> workers;
  for (auto& [identity, s] : sessions_) {
    if (s.state == SessionState::kBye || s.state == SessionState::kQuarantined) continue;
    if (s.unnamed > 0 || (s.overdue && another_is_ready(s))) continue;
    const bool takes_work = s.state == SessionState::kReady &&
                            ledger_.work().has_work_for(s.installed_version, s.evaluates);
    const bool takes_weights =
        s.offered_version > s.installed_version && s.failed_syncs < kMaxFailedSyncs;
    const bool committed = s.state == SessionState::kSync && s.installed_version >= 0;
    if (!takes_work && !((takes_weights || committed) && keeps_share(s))) continue;
    if (takes_work && !has_window_for_work(s)) continue;
    workers.push_back({s.worker_id, s.installed_version, s.capacity_samples, takes_work,
                       s.evaluates, is_on_trial(s)});
  }
  return workers;
}

// Whether its part of the work is kept for a worker that is not ready for it. Reports once when it
// has been behind for too long.
bool TrainerState::keeps_share(Session& session) {
  if (!session.behind_since || now_ - *session.behind_since <= install_patience()) return true;
  if (std::exchange(session.has_share, false)) {
    const auto span =
        std::chrono::duration_cast<std::chrono::milliseconds>(now_ - *session.behind_since);
    event(session.worker_id,
          "worker " + session.worker_id + " has not installed the weights that it was offered " +
              seconds(span) + " ago: its share of the work goes to the others until it has");
  }
  return false;
}

// After a refused rollout a worker gets one sample at a time, as long as another could make it.
bool TrainerState::is_on_trial(const Session& session) const {
  return session.refused_in_row > 0 &&
         std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& item) {
           const Session& other = item.second;
           return &other != &session && other.state == SessionState::kReady && !other.overdue &&
                  other.refused_in_row == 0;
         });
}

Session* TrainerState::session_of(const std::string& worker_id) {
  const auto it = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& item) {
    return item.second.worker_id == worker_id && item.second.state != SessionState::kBye;
  });
  return it == sessions_.end() ? nullptr : &it->second;
}

std::vector<WorkerShare> TrainerState::ready_workers() const {
  std::vector<WorkerShare> workers;
  for (const auto& [identity, s] : sessions_) {
    if (s.state != SessionState::kReady || s.overdue || s.unnamed > 0) continue;
    workers.push_back(
        {s.worker_id, s.installed_version, s.capacity_samples, true, s.evaluates, is_on_trial(s)});
  }
  return workers;
}

void TrainerState::take_over_late_samples() {
  if (ended_ || ledger_.work().in_flight() == 0) return;
  for (const Takeover& takeover : ledger_.work().take_over(ready_workers(), now_)) {
    int64_t samples = 0;
    for (const GrantedGroup& group : takeover.groups) {
      samples += static_cast<int64_t>(group.sample_indices.size());
    }
    counters_.taken_over += static_cast<uint64_t>(samples);
    event(takeover.from,
          std::to_string(samples) + " late samples of worker " + takeover.from +
              " are made by worker " + takeover.to + ", which was idle",
          EventKind::kRoutine);
    if (Session* late = session_of(takeover.from)) withdraw(*late, takeover.groups);
    if (Session* idle = session_of(takeover.to)) send_credits(*idle, takeover.groups);
  }
}

void TrainerState::hand_out_work() {
  widen_windows();
  const int64_t room = options_.max_queued_rollouts - ledger_.work().in_flight() -
                       static_cast<int64_t>(arrivals_.size());
  const bool any_is_free = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& item) {
    const Session& s = item.second;
    return s.state == SessionState::kReady &&
           ledger_.work().has_work_for(s.installed_version, s.evaluates) &&
           ledger_.work().in_flight(s.worker_id) < s.capacity_samples;
  });
  if (ended_ || room <= 0 || !any_is_free) return;  // the usual case: nothing to grant
  const std::vector<WorkerShare> workers = sharing_workers();
  const auto granted = ledger_.work().assign(workers, room, now_);
  for (auto& [identity, session] : sessions_) {
    if (session.state != SessionState::kReady) continue;
    if (const auto it = granted.find(session.worker_id); it != granted.end()) {
      send_credits(session, it->second);
    } else if (is_idle(session)) {
      budget_.release(session.worker_id);
    }
  }
}

// Splits the grants into as many CREDITs as the header limit requires.
void TrainerState::send_credits(Session& session, const std::vector<GrantedGroup>& groups) {
  CreditBody credit;
  credit.window_bytes = budget_.raise(session.worker_id);
  std::size_t bytes = 0;
  for (const GrantedGroup& g : groups) {
    GrantBody body{g.group_id, g.group_size,     g.min_version,
                   g.attempt,  g.sample_indices, g.held_out};
    const std::size_t more = packed_bytes(body);
    if (!credit.groups.empty() && bytes + more > most_in_credit(options_.limits)) {
      queue(session, make_payload(MessageType::kCredit, credit));
      credit.groups.clear();
      bytes = 0;
    }
    bytes += more;
    credit.groups.push_back(std::move(body));
  }
  queue(session, make_payload(MessageType::kCredit, credit));
}

// Tells a worker that it need not make these samples.
void TrainerState::withdraw(Session& session, const std::vector<GrantedGroup>& groups) {
  CreditBody credit;
  std::size_t bytes = 0;
  for (const GrantedGroup& g : groups) {
    WithdrawnBody body{g.group_id, g.sample_indices};
    const std::size_t more = packed_bytes(body);
    if (!credit.withdrawn.empty() && bytes + more > most_in_credit(options_.limits)) {
      queue(session, make_payload(MessageType::kCredit, std::exchange(credit, {})));
      bytes = 0;
    }
    bytes += more;
    credit.withdrawn.push_back(std::move(body));
  }
  queue(session, make_payload(MessageType::kCredit, credit));
}

bool TrainerState::another_is_ready(const Session& session) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& item) {
    const Session& other = item.second;
    return &other != &session && other.state == SessionState::kReady && !other.overdue;
  });
}

// Reassigns samples that are overdue. If all other workers are overdue too, their mark is cleared
// and they are tried again. If there is no other worker, the samples stay with this one, because
// granting them again would change nothing.
void TrainerState::reassign_overdue() {
  const auto before = now_ - options_.assignment_timeout;
  for (const auto& [worker, samples] : ledger_.work().held_since(before)) {
    const auto found =
        std::find_if(sessions_.begin(), sessions_.end(), [&id = worker](const auto& item) {
          return item.second.worker_id == id;  // clang 14 captures no structured binding
        });
    if (found == sessions_.end()) continue;
    Session& session = found->second;
    const std::string what = "worker " + worker + " has not answered for " +
                             std::to_string(samples) + " samples in " +
                             seconds(options_.assignment_timeout);
    if (!another_is_ready(session)) {
      for (auto& [identity, other] : sessions_) other.overdue = &other == &session && other.overdue;
    }
    if (another_is_ready(session)) {
      ledger_.work().release(worker, before);
      session.overdue = true;
      counters_.reassigned += static_cast<uint64_t>(samples);
      event(worker,
            what + ": they are reassigned, and it gets no new ones until it sends a rollout");
    } else if (!session.warned_at || now_ - *session.warned_at >= options_.assignment_timeout) {
      session.warned_at = now_;
      event(worker, what + ", and no other worker is ready: it is waited for");
    }
  }
}

}  // namespace ringside::bridge
