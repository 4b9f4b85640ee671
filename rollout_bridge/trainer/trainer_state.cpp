#include "rollout_bridge/trainer/trainer_state.h"

#include <algorithm>
#include <stdexcept>

namespace ringside::bridge {
namespace {

constexpr std::size_t kMaxEvents = 1024;
constexpr std::size_t kMaxOutbox = 1024;  // most messages queued for a slow worker
constexpr std::size_t kMaxStrays = 256;

Journal::Options journal_options(const TrainerOptions& o) {
  return {o.journal_directory, o.run_id, o.fsync, o.fsync_interval, o.journal_compact_bytes,
          o.journal_max_bytes, o.limits, o.files};
}

}  // namespace

std::string seconds(std::chrono::milliseconds span) {
  const auto tenths = span.count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

const char* session_state_name(SessionState state) {
  constexpr const char* kNames[] = {"join", "sync", "ready", "paused", "quarantined", "bye"};
  return kNames[static_cast<std::size_t>(state)];
}

TrainerState::TrainerState(const TrainerOptions& options, std::string weights_address)
    : options_(options),
      weights_address_(std::move(weights_address)),
      journal_(journal_options(options)),
      ledger_({options.max_attempts, options.trainer_term, options.policy}),
      evaluation_(ledger_.work(), options.max_attempts, options.trainer_term),
      published_(options.run_id, options.trainer_term, options.limits),
      budget_(static_cast<int64_t>(std::min<uint64_t>(options.max_queued_bytes, INT64_MAX)),
              options.window_bytes) {
  ledger_.restore(journal_.granted(), journal_.consumed());
  replay_journal();
  if (journal_.truncated_bytes() > 0) {
    event("", "journal: cut " + std::to_string(journal_.truncated_bytes()) +
                  " bytes of a torn or damaged tail");
  }
}

// The journal may be from another recipe or an older version, so rollouts that would be refused now
// are dropped. Rollouts of weights that no longer exist stay in the file until their group is
// consumed, and are skipped at every start.
void TrainerState::replay_journal() {
  int64_t not_taken = 0;
  std::vector<Error> refused;
  for (Rollout& rollout : journal_.take_replayed()) {
    const Status replayed = replay(std::move(rollout), not_taken);
    if (!replayed) refused.push_back(replayed.error());
  }
  note_dropped(refused);
  if (!arrivals_.empty()) {
    event("", std::to_string(arrivals_.size()) + " rollouts taken from the journal");
  }
  if (not_taken > 0) {
    event("", std::to_string(not_taken) +
                  " rollouts of the journal not taken: their weights were lost with a restart, or "
                  "others of their group came first");
  }
  if (const std::string unreadable = journal_.unreadable(); !unreadable.empty())
    event("", unreadable);
}

// Delivers a rollout of the journal, or counts why it is of no use.
// Errors: those of the checks that a worker's rollout has to pass, too.
Status TrainerState::replay(Rollout rollout, int64_t& not_taken) {
  GroupCounters& dropped = counters_.groups;
  const int64_t group_id = rollout.group_id;
  if (ledger_.is_over(group_id)) {
    ++dropped.replayed_out_of_steps;
    journal_.consume(std::span(&group_id, 1));
    return Success{};
  }
  if (!check_weights_of(rollout)) {
    ++not_taken;
    ++dropped.replayed_stale;
    return Success{};
  }
  const auto verdict = ledger_.judge(rollout, "", Origin::kJournal);
  if (!verdict) {
    const bool is_unknown = verdict.error().reason == Reason::kUnknownGroup;
    ++(is_unknown ? dropped.replayed_out_of_steps : dropped.replayed_stale);
    if (is_unknown) journal_.consume(std::span(&group_id, 1));
    return verdict.error();
  }
  if (verdict.value() == Verdict::kDuplicate) {
    ++not_taken;
    return Success{};
  }
  if (Status s = admit(rollout); !s) return s;
  const uint64_t bytes = wire_bytes(rollout);
  open_groups(deliver(std::move(rollout), bytes));
  return Success{};
}

// Reports one event a reason, because a journal may hold thousands of refused rollouts.
void TrainerState::note_dropped(const std::vector<Error>& refused) {
  std::map<Reason, std::pair<int64_t, const Error*>> by_reason;
  for (const Error& error : refused) {
    ++counters_.rejected[static_cast<std::size_t>(error.reason)];
    auto& [count, first] = by_reason.try_emplace(error.reason, 0, &error).first->second;
    ++count;
  }
  for (const auto& [reason, found] : by_reason) {
    event("", "journal: " + std::to_string(found.first) + " rollouts dropped (" +
                  reason_name(reason) +
                  "), their samples are asked for again; the first: " + found.second->detail);
  }
}

Status TrainerState::admit(const Rollout& rollout) const {
  return options_.admission ? options_.admission->admit(rollout) : Status(Success{});
}

Header TrainerState::header_for(const std::string& worker_id, uint64_t incarnation,
                                uint64_t seq) const {
  return {MessageType::kError, options_.run_id, options_.trainer_term, worker_id, incarnation, seq};
}

void TrainerState::queue(Session& session, Payload payload) {
  const Header header = header_for(session.worker_id, session.incarnation, ++session.sent_seq);
  std::string packed = pack_header(header, payload, options_.limits);
  session.outbox.push_back({std::move(packed), std::move(payload)});
}

void TrainerState::refuse(const std::string& identity, const Error& error, bool fatal,
                          const Header* to) {
  ++counters_.rejected[static_cast<std::size_t>(error.reason)];
  if (strays_.size() >= kMaxStrays) return;
  Payload payload =
      make_payload(MessageType::kError,
                   ErrorBody{reason_name(error.reason), clip_text(error.detail), fatal, -1});
  const Header header = to ? header_for(to->worker_id, to->incarnation, 0) : header_for("", 0, 0);
  std::string packed = pack_header(header, payload, options_.limits);
  strays_.emplace_back(identity, Outgoing{std::move(packed), std::move(payload)});
}

void TrainerState::event(const std::string& worker_id, std::string text, EventKind kind) {
  if (events_.size() >= kMaxEvents) {
    events_.pop_front();
    ++counters_.dropped_events;
  }
  events_.push_back({worker_id, clip_text(text), kind});
}

void TrainerState::lose(const std::string& identity, const std::string& why) {
  const auto it = sessions_.find(identity);
  if (it == sessions_.end()) return;
  const Session& session = it->second;
  if (session.state != SessionState::kBye) {
    const Holding held = ledger_.work().leave(session.worker_id);
    budget_.leave(session.worker_id);
    event(session.worker_id, "worker " + session.worker_id + " lost: " + why + "; " +
                                 std::to_string(held.samples) + " samples of " +
                                 std::to_string(held.groups) + " groups are reassigned");
    ++counters_.lost_workers;
  }
  sessions_.erase(it);
}

void TrainerState::sweep() {
  std::erase_if(sessions_, [](const auto& item) {
    return item.second.state == SessionState::kBye && item.second.outbox.empty();
  });
}

void TrainerState::on_denials(const std::vector<std::string>& sentences) {
  for (const std::string& sentence : sentences) event("", sentence);
}

std::string TrainerState::key_name(const std::string& user) const {
  if (!options_.curve) return "";
  for (const AllowedKey& allowed : options_.curve->allowed) {
    if (allowed.public_key == user) return allowed.name;
  }
  return "";
}

void TrainerState::on_unreachable(const std::string& identity) { lose(identity, "disconnected"); }

void TrainerState::tick(Clock::time_point now) {
  now_ = std::max(now_, now);
  std::vector<std::pair<std::string, std::string>> lost;
  for (auto& [identity, session] : sessions_) {
    const auto silent =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - session.last_message);
    if (silent > options_.worker_timeout) {
      lost.emplace_back(identity, "no message for " + seconds(silent));
    } else if (session.paused_since && now - *session.paused_since > options_.pause_timeout) {
      lost.emplace_back(identity, "paused for more than " + seconds(options_.pause_timeout));
    } else if (session.outbox.size() > kMaxOutbox) {
      lost.emplace_back(identity,
                        "takes no messages, " + std::to_string(session.outbox.size()) + " wait");
    } else if (session.state != SessionState::kBye &&
               now - session.last_heartbeat >= options_.heartbeat_interval) {
      session.last_heartbeat = now;
      queue(session,
            make_payload(MessageType::kHeartbeat, HeartbeatBody{session_state_name(session.state),
                                                                published_.version(), 0, 0}));
    }
  }
  for (const auto& [identity, why] : lost) lose(identity, why);
  reassign_overdue();
  hand_out_work();
  take_over_late_samples();
  journal_.tick(now);
}

void TrainerState::grant(const std::vector<GroupGrant>& groups) {
  const int64_t largest =
      std::min<int64_t>(options_.max_queued_rollouts, options_.limits.max_group_size);
  for (const GroupGrant& g : groups) {
    if (g.group_size > largest) {
      throw std::invalid_argument("grant of group " + std::to_string(g.group_id) + " with " +
                                  std::to_string(g.group_size) + " samples, limit " +
                                  std::to_string(largest));
    }
  }
  open_groups(groups);
  hand_out_work();
}

void TrainerState::open_groups(const std::vector<GroupGrant>& groups) {
  std::vector<int64_t> ids;
  for (const GroupGrant& g : groups) ids.push_back(g.group_id);
  journal_.grant(ids);
  for (const GroupGrant& g : groups) {
    ledger_.grant(g);
    journal_.reopen(g.group_id);
  }
}

void TrainerState::open_steps(int64_t next_step, int64_t last_step) {
  mark_consumed(ledger_.take_unrestorable(next_step));
  grant(ledger_.open_steps(last_step));
}

void TrainerState::checkpointed(int64_t step) { mark_consumed(ledger_.checkpointed(step)); }

void TrainerState::open_evaluation(int64_t prompts, int32_t samples) {
  if (published_.empty() || !options_.settings.held_out) {
    throw std::invalid_argument(
        "evaluation by workers: expected published weights and Settings::held_out");
  }
  evaluation_.open(prompts, samples, published_.version());
  hand_out_work();
}

std::optional<std::vector<HeldOutSample>> TrainerState::take_evaluation() {
  if (!evaluation_.is_open() || evaluation_.missing() > 0) return std::nullopt;
  return evaluation_.take();
}

void TrainerState::end_evaluation() {
  evaluation_.close();
  hand_out_work();
}

EvaluationProgress TrainerState::evaluation() const {
  EvaluationProgress progress;
  progress.samples = evaluation_.size();
  progress.missing = evaluation_.missing();
  for (const auto& [identity, session] : sessions_) {
    if (session.state == SessionState::kBye) continue;
    ++progress.workers;
    progress.evaluating += session.evaluates ? 1 : 0;
  }
  return progress;
}

std::vector<GroupGrant> TrainerState::deliver(Rollout rollout, uint64_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  budget_.enqueue(size);
  arrivals_.push_back({rollout.group_id, rollout.sample_index, size});
  std::vector<GroupGrant> replacements = ledger_.deliver(std::move(rollout));
  if (!replacements.empty()) drop_arrivals();
  return replacements;
}

// Frees the bytes of rollouts that the ledger has dropped.
void TrainerState::drop_arrivals() {
  std::erase_if(arrivals_, [&](const Arrival& arrival) {
    if (ledger_.holds(arrival.group_id)) return false;
    budget_.dequeue(arrival.bytes);
    return true;
  });
}

bool TrainerState::collect() {
  if (arrivals_.empty()) return false;
  for (const Arrival& arrival : arrivals_) budget_.dequeue(arrival.bytes);
  arrivals_.clear();
  hand_out_work();  // there is room again
  return true;
}

std::optional<Rollout> TrainerState::pop() {
  while (!arrivals_.empty()) {
    const Arrival arrival = arrivals_.front();
    arrivals_.pop_front();
    budget_.dequeue(arrival.bytes);
    hand_out_work();  // there is room again
    auto rollout = ledger_.take_sample(arrival.group_id, arrival.sample_index);
    if (rollout) return rollout;
  }
  return std::nullopt;
}

void TrainerState::mark_consumed(std::span<const int64_t> group_ids) {
  if (group_ids.empty()) return;
  journal_.consume(group_ids);
  for (const int64_t id : group_ids) {
    counters_.forgotten += static_cast<uint64_t>(ledger_.consume(id));
  }
  drop_arrivals();
  hand_out_work();
}

void TrainerState::end(const std::string& reason) {
  ended_ = clip_text(reason);
  for (auto& [identity, session] : sessions_) {
    queue(session, make_payload(MessageType::kEnd, EndBody{*ended_}));
  }
}

std::vector<WorkerStatus> TrainerState::workers() const {
  std::vector<WorkerStatus> out;
  const auto now = Clock::now();
  for (const auto& [identity, s] : sessions_) {
    out.push_back({s.worker_id, s.incarnation, session_state_name(s.state), s.installed_version,
                   ledger_.work().in_flight(s.worker_id), s.queue_depth,
                   s.state == SessionState::kBye ? 0 : budget_.window(s.worker_id),
                   std::chrono::duration_cast<std::chrono::milliseconds>(now - s.last_message)});
  }
  return out;
}

BridgeCounters TrainerState::counters() const {
  BridgeCounters counters = counters_;
  counters.groups = ledger_.counters();
  counters.groups.replayed_stale = counters_.groups.replayed_stale;
  counters.groups.replayed_out_of_steps = counters_.groups.replayed_out_of_steps;
  counters.queued_bytes = static_cast<uint64_t>(budget_.queued());
  counters.promised_bytes = static_cast<uint64_t>(budget_.promised());
  counters.peak_bytes = static_cast<uint64_t>(budget_.peak());
  counters.journal_bytes = journal_.file_bytes();
  for (const auto& [identity, session] : sessions_) {
    counters.ready_workers += session.state == SessionState::kReady ? 1 : 0;
  }
  return counters;
}

std::vector<BridgeEvent> TrainerState::drain_events() {
  std::vector<BridgeEvent> out(events_.begin(), events_.end());
  events_.clear();
  return out;
}

bool TrainerState::has_output() const {
  return !strays_.empty() || std::any_of(sessions_.begin(), sessions_.end(), [](const auto& item) {
    return !item.second.outbox.empty();
  });
}

}  // namespace ringside::bridge
