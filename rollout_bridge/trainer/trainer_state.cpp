#include "rollout_bridge/trainer/trainer_state.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::bridge {

TrainerState::TrainerState(const TrainerOptions& options, std::string weights_address)
    : weights_address_(std::move(weights_address)),
      parts_(options),
      sessions_(parts_, [this](const Session& session) { return work_.release(session); }),
      weights_(parts_, sessions_),
      work_(parts_, sessions_, weights_),
      rollouts_(parts_, sessions_, work_) {
  rollouts_.replay_journal();
}

void TrainerState::on_message(const std::string& identity, const std::string& user,
                              const Result<Message>& received, Clock::time_point now) {
  parts_.advance(now);
  if (!received && received.error().reason == Reason::kUnsupported) {
    return sessions_.refuse_version(identity, received.error());
  }
  if (!received) {
    return sessions_.refuse(identity, received.error(), false, nullptr);
  }
  const Message& message = received.value();
  const Header& header = message.header();
  const std::string& run_id = parts_.options.run_id;
  if (!header.run_id.empty() && header.run_id != run_id) {
    return sessions_.refuse(
        identity,
        {Reason::kWrongRun, "message of run '" + header.run_id + "', this is run '" + run_id + "'"},
        true, &header);
  }
  if (header.type == MessageType::kHello) {
    return on_hello(identity, user, message);
  }
  if (Session* session = sessions_.receive(identity, user, header)) {
    on_session_message(identity, *session, message);
  }
}

void TrainerState::on_session_message(const std::string& identity, Session& session,
                                      const Message& message) {
  if (session.state == SessionState::kBye) {
    return;  // it left by BYE already
  }
  switch (message.header().type) {
    case MessageType::kRollout:
      rollouts_.on_rollout(session, message);
      give_up_if_refused(identity, session, message);
      break;
    case MessageType::kImage:
      rollouts_.on_image(session, message);
      give_up_if_refused(identity, session, message);
      break;
    case MessageType::kReady:
      weights_.on_ready(session, message);
      break;
    case MessageType::kHeartbeat:
      on_heartbeat(identity, session, message);
      break;
    case MessageType::kStaged:
      weights_.on_staged(session, message);
      break;
    case MessageType::kStageFailed:
      weights_.on_stage_failed(session, message);
      break;
    case MessageType::kCommitted:
      weights_.on_committed(session, message);
      break;
    case MessageType::kBye: {
      const auto body = message.body<EndBody>();
      sessions_.leave(session, body ? body.value().reason : "");
      break;
    }
    default:
      sessions_.refuse(identity,
                       {Reason::kUnsupported, std::string("a trainer takes no ") +
                                                  message_type_name(message.header().type)},
                       false, &message.header());
  }
  hand_out_work();
}

void TrainerState::on_hello(const std::string& identity, const std::string& user,
                            const Message& message) {
  const auto hello = message.body<HelloBody>();
  if (!hello) {
    return sessions_.refuse(identity, hello.error(), true, &message.header());
  }
  Session* session = sessions_.open(identity, user, message.header(), hello.value());
  if (session == nullptr) {
    return;
  }
  parts_.budget.join(session->worker_id);
  welcome(*session, hello.value());
  if (parts_.ended) {
    sessions_.queue(*session, make_payload(MessageType::kEnd, EndBody{*parts_.ended}));
  }
}

// Answers HELLO: WELCOME, and an offer unless the worker has the newest weights.
void TrainerState::welcome(Session& session, const HelloBody& body) {
  const TrainerOptions& options = parts_.options;
  // At least 1, which admits one rollout at a time: a client may not know the meaning of 0.
  const int64_t window = std::max<int64_t>(1, parts_.budget.raise(session.worker_id));
  // A worker with nothing to send gets its promise with its first grant.
  if (body.pending == 0) {
    parts_.budget.release(session.worker_id);
  }
  sessions_.queue(session,
                  make_payload(MessageType::kWelcome,
                               WelcomeBody{weights_address_,
                                           parts_.published.version(),
                                           parts_.published.root_hash(),
                                           options.heartbeat_interval.count(),
                                           options.worker_timeout.count(),
                                           window,
                                           static_cast<int64_t>(options.limits.max_chunk_bytes),
                                           {options.settings}}));
  const bool known = weights_.join(session, body);
  parts_.events.add(
      session.worker_id,
      "worker " + session.worker_id + " joined" +
          (known ? " at version " + std::to_string(session.installed_version) : "") +
          (session.user.empty() ? "" : " with key '" + sessions_.key_name(session.user) + "'"));
}

void TrainerState::give_up_if_refused(const std::string& identity, Session& session,
                                      const Message& message) {
  if (const auto why = rollouts_.why_given_up(session)) {
    sessions_.refuse(identity, *why, true, &message.header());
    sessions_.lose(identity, why->detail);
  }
}

void TrainerState::on_heartbeat(const std::string& identity, Session& session,
                                const Message& message) {
  const auto parsed = message.body<HeartbeatBody>();
  if (!parsed) {
    return sessions_.refuse(identity, parsed.error(), false, &message.header());
  }
  const HeartbeatBody& body = parsed.value();
  session.queue_depth = body.queue_depth;
  session.pending = body.pending;
  work_.release_unnamed(session);
  if (work_.is_idle(session)) {
    parts_.budget.release(session.worker_id);
  }
  if (body.state == session_state_name(SessionState::kPaused)) {
    if (!session.paused_since) {
      session.paused_since = parts_.now;
    }
    if (session.state == SessionState::kReady) {
      session.state = SessionState::kPaused;
    }
    return;  // tick() limits the length of the pause
  }
  session.paused_since.reset();
  if (session.state == SessionState::kPaused) {
    session.state = SessionState::kReady;
  }
  if (body.progress_age_ms > parts_.options.progress_timeout.count()) {
    sessions_.refuse(identity, {Reason::kTimeout, "no progress"}, false, &message.header());
    sessions_.lose(identity, "its own code was silent for " +
                                 std::to_string(body.progress_age_ms / 1000) + " s");
  }
}

void TrainerState::on_denials(const std::vector<std::string>& sentences) {
  for (const std::string& sentence : sentences) {
    parts_.events.add("", sentence);
  }
}

void TrainerState::on_unreachable(const std::string& identity) {
  sessions_.lose(identity, "disconnected");
}

void TrainerState::tick(Clock::time_point now) {
  parts_.advance(now);
  sessions_.tick();
  rollouts_.replace_stragglers();
  work_.reassign();
  hand_out_work();
  parts_.journal.tick(now);
}

void TrainerState::publish(std::shared_ptr<const WeightSnapshot> snapshot, OfferBody where) {
  weights_.publish(std::move(snapshot), std::move(where));
}

void TrainerState::open_steps(int64_t next_step, int64_t last_step) {
  consume(parts_.ledger.take_unrestorable(next_step));
  const std::vector<int64_t> groups = parts_.ledger.open_steps(last_step);
  const int64_t largest =
      std::min<int64_t>(parts_.options.max_queued_rollouts, parts_.options.limits.max_group_size);
  for (const int64_t id : groups) {
    if (const int32_t size = parts_.options.policy.rule_of(id).group_size; size > largest) {
      throw std::invalid_argument("grant of group " + std::to_string(id) + " with " +
                                  std::to_string(size) + " samples, limit " +
                                  std::to_string(largest));
    }
  }
  rollouts_.open_groups(groups);
  hand_out_work();
}

// The images of the step's rollouts come from the journal: it holds them until the groups are
// consumed, which the owner of this step decides later.
std::optional<std::vector<FlatRollout>> TrainerState::take(int64_t step) {
  auto taken = parts_.ledger.take(step);
  rollouts_.await_step(taken ? std::nullopt : std::optional(step));
  if (!taken) {
    return std::nullopt;
  }
  for (const std::string& hash : taken->images) {
    taken->rollouts.push_back(parts_.journal.read_image(hash));
  }
  return std::move(taken->rollouts);
}

void TrainerState::checkpointed(int64_t step) { consume(parts_.ledger.checkpointed(step)); }

void TrainerState::consume(const std::vector<int64_t>& group_ids) {
  if (group_ids.empty()) {
    return;
  }
  rollouts_.consume(group_ids);
  hand_out_work();
}

void TrainerState::open_evaluation(int64_t prompts, int32_t samples) {
  if (parts_.published.empty() || !parts_.options.settings.held_out) {
    throw std::invalid_argument(
        "evaluation by workers: expected published weights and Settings::held_out");
  }
  parts_.evaluation.open(prompts, samples, parts_.published.version());
  hand_out_work();
}

std::optional<std::vector<HeldOutSample>> TrainerState::take_evaluation() {
  if (!parts_.evaluation.is_open() || parts_.evaluation.missing() > 0) {
    return std::nullopt;
  }
  return parts_.evaluation.take();
}

void TrainerState::end_evaluation() {
  parts_.evaluation.close();
  hand_out_work();
}

EvaluationProgress TrainerState::evaluation() const {
  EvaluationProgress progress;
  progress.samples = parts_.evaluation.size();
  progress.missing = parts_.evaluation.missing();
  for (const auto& [identity, session] : sessions_.all()) {
    if (session.state == SessionState::kBye) {
      continue;
    }
    ++progress.workers;
    progress.evaluating += session.evaluates ? 1 : 0;
  }
  return progress;
}

bool TrainerState::collect() {
  if (!rollouts_.collect()) {
    return false;
  }
  hand_out_work();  // there is room again
  return true;
}

void TrainerState::end(const std::string& reason) {
  parts_.ended = clip_text(reason);
  for (auto& [identity, session] : sessions_.all()) {
    sessions_.queue(session, make_payload(MessageType::kEnd, EndBody{*parts_.ended}));
  }
}

std::vector<WorkerStatus> TrainerState::workers() const {
  std::vector<WorkerStatus> out;
  const auto now = Clock::now();
  for (const auto& [identity, s] : sessions_.all()) {
    out.push_back({s.worker_id, s.incarnation, session_state_name(s.state), s.installed_version,
                   parts_.work().in_flight(s.worker_id), s.queue_depth,
                   s.state == SessionState::kBye ? 0 : parts_.budget.window(s.worker_id),
                   std::chrono::duration_cast<std::chrono::milliseconds>(now - s.last_message)});
  }
  return out;
}

BridgeCounters TrainerState::counters() const {
  BridgeCounters counters = parts_.counters;
  counters.groups = parts_.ledger.counters();
  counters.groups.replayed_stale = parts_.counters.groups.replayed_stale;
  counters.groups.replayed_out_of_steps = parts_.counters.groups.replayed_out_of_steps;
  counters.queued_bytes = static_cast<uint64_t>(parts_.budget.queued());
  counters.promised_bytes = static_cast<uint64_t>(parts_.budget.promised());
  counters.peak_bytes = static_cast<uint64_t>(parts_.budget.peak());
  counters.journal_bytes = parts_.journal.file_bytes();
  counters.waiting_image_bytes = parts_.images.bytes();
  counters.dropped_images = parts_.images.dropped();
  counters.dropped_events = parts_.events.dropped();
  for (const auto& [identity, session] : sessions_.all()) {
    counters.ready_workers += session.state == SessionState::kReady ? 1 : 0;
  }
  return counters;
}

}  // namespace ringside::bridge
