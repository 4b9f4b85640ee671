#include "rollout_bridge/trainer/work_desk.h"

#include <algorithm>
#include <utility>

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

Holding WorkDesk::release(const Session& session) {
  parts_.budget.leave(session.worker_id);
  return parts_.work().leave(session.worker_id);
}

bool WorkDesk::is_idle(const Session& session) const {
  return parts_.work().in_flight(session.worker_id) == 0 && session.pending <= 0;
}

void WorkDesk::release_unnamed(Session& session) {
  if (session.unnamed == 0 || parts_.work().in_flight(session.worker_id) > session.unnamed) {
    return;
  }
  parts_.work().release(session.worker_id);
  session.unnamed = 0;
}

// Raises the low windows of workers that have rollouts to send.
void WorkDesk::widen_windows() {
  for (auto& [identity, session] : sessions_.all()) {
    if (session.state == SessionState::kBye || is_idle(session) ||
        !parts_.budget.is_low(session.worker_id)) {
      continue;
    }
    CreditBody credit;
    credit.window_bytes = parts_.budget.raise(session.worker_id);
    sessions_.queue(session, make_payload(MessageType::kCredit, credit));
  }
}

// True when the worker has, or can get, a window for the rollouts of more work. No work is granted
// without one.
bool WorkDesk::has_window_for_work(Session& session) {
  return parts_.budget.window(session.worker_id) > 0 || parts_.budget.raise(session.worker_id) > 0;
}

// The workers that share in the work: ready ones that can take it, and ones that are loading newer
// weights and will be ready soon.
std::vector<WorkerShare> WorkDesk::sharing_workers() {
  std::vector<WorkerShare> workers;
  for (auto& [identity, s] : sessions_.all()) {
    if (s.state == SessionState::kBye || s.state == SessionState::kQuarantined) {
      continue;
    }
    if (s.unnamed > 0 || (s.overdue && another_is_ready(s))) {
      continue;
    }
    const bool takes_work = s.state == SessionState::kReady &&
                            parts_.work().has_work_for(s.installed_version, s.evaluates);
    const bool takes_weights =
        s.offered_version > s.installed_version && s.failed_syncs < kMaxFailedSyncs;
    const bool committed = s.state == SessionState::kSync && s.installed_version >= 0;
    if (!takes_work && !((takes_weights || committed) && weights_.keeps_share(s))) {
      continue;
    }
    if (takes_work && !has_window_for_work(s)) {
      continue;
    }
    workers.push_back({s.worker_id, s.installed_version, s.capacity_samples, takes_work,
                       s.evaluates, is_on_trial(s)});
  }
  return workers;
}

std::vector<WorkerShare> WorkDesk::ready_workers() const {
  std::vector<WorkerShare> workers;
  for (const auto& [identity, s] : sessions_.all()) {
    if (s.state != SessionState::kReady || s.overdue || s.unnamed > 0) {
      continue;
    }
    workers.push_back(
        {s.worker_id, s.installed_version, s.capacity_samples, true, s.evaluates, is_on_trial(s)});
  }
  return workers;
}

// After a refused rollout a worker gets one sample at a time, as long as another could make it.
bool WorkDesk::is_on_trial(const Session& session) const {
  return session.refused_in_row > 0 && sessions_.any_but(session, [](const Session& other) {
    return other.state == SessionState::kReady && !other.overdue && other.refused_in_row == 0;
  });
}

bool WorkDesk::another_is_ready(const Session& session) const {
  return sessions_.any_but(session, [](const Session& other) {
    return other.state == SessionState::kReady && !other.overdue;
  });
}

void WorkDesk::hand_out(int64_t uncollected) {
  widen_windows();
  const WorkDivision& work = parts_.work();
  const int64_t room = parts_.options.max_queued_rollouts - work.in_flight() - uncollected;
  const auto& sessions = sessions_.all();
  const bool any_is_free = std::any_of(sessions.begin(), sessions.end(), [&](const auto& item) {
    const Session& s = item.second;
    return s.state == SessionState::kReady && work.has_work_for(s.installed_version, s.evaluates) &&
           work.in_flight(s.worker_id) < s.capacity_samples;
  });
  if (parts_.ended || room <= 0 || !any_is_free) {
    return;  // the usual case: nothing to grant
  }
  const auto granted = parts_.work().assign(sharing_workers(), room, parts_.now);
  for (auto& [identity, session] : sessions_.all()) {
    if (session.state != SessionState::kReady) {
      continue;
    }
    if (const auto it = granted.find(session.worker_id); it != granted.end()) {
      send_credits(session, it->second);
    } else if (is_idle(session)) {
      parts_.budget.release(session.worker_id);
    }
  }
}

// Splits the grants into as many CREDITs as the header limit requires.
void WorkDesk::send_credits(Session& session, const std::vector<Grant>& groups) {
  CreditBody credit;
  credit.window_bytes = parts_.budget.raise(session.worker_id);
  std::size_t bytes = 0;
  for (const Grant& g : groups) {
    const std::size_t more = packed_bytes(g);
    if (!credit.groups.empty() && bytes + more > most_in_credit(parts_.options.limits)) {
      sessions_.queue(session, make_payload(MessageType::kCredit, credit));
      credit.groups.clear();
      bytes = 0;
    }
    bytes += more;
    credit.groups.push_back(g);
  }
  sessions_.queue(session, make_payload(MessageType::kCredit, credit));
}

// Tells a worker that it need not make these samples.
void WorkDesk::withdraw(Session& session, const std::vector<Grant>& groups) {
  CreditBody credit;
  std::size_t bytes = 0;
  for (const Grant& g : groups) {
    Withdrawal body{g.group_id, g.sample_indices};
    const std::size_t more = packed_bytes(body);
    if (!credit.withdrawn.empty() && bytes + more > most_in_credit(parts_.options.limits)) {
      sessions_.queue(session, make_payload(MessageType::kCredit, std::exchange(credit, {})));
      bytes = 0;
    }
    bytes += more;
    credit.withdrawn.push_back(std::move(body));
  }
  sessions_.queue(session, make_payload(MessageType::kCredit, credit));
}

void WorkDesk::withdraw_straggler(int64_t group_id, const OwedSample& sample) {
  Session* session = sample.holder.empty() ? nullptr : sessions_.of_worker(sample.holder);
  if (session == nullptr) {
    return;
  }
  withdraw(*session, {Grant{.group_id = group_id, .sample_indices = {sample.index}}});
  session->overdue = session->overdue || session->last_rollout < sample.since;
}

void WorkDesk::reassign() {
  reassign_overdue();
  take_over_late();
}

// Reassigns samples that are overdue. If all other workers are overdue too, their mark is cleared
// and they are tried again. If there is no other worker, the samples stay with this one, because
// granting them again would change nothing.
void WorkDesk::reassign_overdue() {
  const auto before = parts_.now - parts_.options.assignment_timeout;
  for (const auto& [worker, samples] : parts_.work().held_since(before)) {
    Session* session = sessions_.of_worker(worker);
    if (session == nullptr) {
      continue;
    }
    const std::string what = "worker " + worker + " has not answered for " +
                             std::to_string(samples) + " samples in " +
                             seconds(parts_.options.assignment_timeout);
    if (!another_is_ready(*session)) {
      for (auto& [identity, other] : sessions_.all()) {
        other.overdue = &other == session && other.overdue;
      }
    }
    if (another_is_ready(*session)) {
      parts_.work().release(worker, before);
      session->overdue = true;
      parts_.counters.reassigned += static_cast<uint64_t>(samples);
      parts_.events.add(
          worker, what + ": they are reassigned, and it gets no new ones until it sends a rollout");
    } else if (!session->warned_at ||
               parts_.now - *session->warned_at >= parts_.options.assignment_timeout) {
      session->warned_at = parts_.now;
      parts_.events.add(worker, what + ", and no other worker is ready: it is waited for");
    }
  }
}

void WorkDesk::take_over_late() {
  if (parts_.ended || parts_.work().in_flight() == 0) {
    return;
  }
  for (const Takeover& takeover : parts_.work().take_over(ready_workers(), parts_.now)) {
    std::size_t samples = 0;
    for (const Grant& group : takeover.groups) {
      samples += group.sample_indices.size();
    }
    parts_.counters.taken_over += samples;
    parts_.events.add(takeover.from,
                      std::to_string(samples) + " late samples of worker " + takeover.from +
                          " are made by worker " + takeover.to + ", which was idle",
                      EventKind::kRoutine);
    if (Session* late = sessions_.of_worker(takeover.from)) {
      withdraw(*late, takeover.groups);
    }
    if (Session* idle = sessions_.of_worker(takeover.to)) {
      send_credits(*idle, takeover.groups);
    }
  }
}

}  // namespace ringside::bridge
