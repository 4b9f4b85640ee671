// TrainerState: work out to the workers, rollouts in from them.
#include "rollout_bridge/codec.h"
#include "rollout_bridge/trainer_state.h"

namespace ringside::bridge {

uint64_t wire_bytes(const Rollout& r) {
  return (r.prompt_ids.size() + r.completion_ids.size()) * sizeof(int32_t) +
         (r.logprobs.size() + r.advantages.size()) * sizeof(float) + r.loss_mask.size() +
         r.versions.size() * 3 * sizeof(int64_t) + r.turn_offsets.size() * sizeof(int32_t) +
         r.turn_rewards.size() * sizeof(double) + r.branches.size() * 2 * sizeof(int64_t);
}

void TrainerState::on_rollout(Session& session, const Message& message) {
  uint64_t bytes = 0;
  for (const FrameSpec& spec : message.specs()) bytes += spec.bytes;
  budget_.arrived(session.worker_id, static_cast<int64_t>(bytes));
  auto decoded = decode_rollout(message, options_.limits);
  AckBody ack;
  if (decoded) {
    ++counters_.received;
    counters_.rollout_bytes += bytes;
    ack = take(session, std::move(decoded).value(), bytes);
  } else {
    // The id, if there is one, lets the worker drop what will never be taken.
    Rollout named;
    if (auto body = message.body<RolloutBody>()) {
      named.rollout_id = body.value().rollout_id;
      named.group_id = body.value().group_id;
      named.sample_index = body.value().sample_index;
    }
    ack = reject(session, named, decoded.error());
  }
  ack.window_bytes = budget_.raise(session.worker_id);
  if (is_idle(session)) budget_.release(session.worker_id);
  queue(session, make_payload(MessageType::kAck, ack));
}

AckBody TrainerState::reject(Session& session, const Rollout& rollout, const Error& error) {
  ++counters_.rejected[static_cast<std::size_t>(error.reason)];
  // The worker drops it: if the sample was its own to make, it is asked for anew.
  if (board_.give_back(rollout.group_id, rollout.sample_index, session.worker_id)) {
    ++session.refused_in_row;
    session.last_refusal = error;
  }
  event(session.worker_id,
        "rollout of worker " + session.worker_id + " rejected: " + error.detail);
  return {rollout.rollout_id, "REJECTED", reason_name(error.reason), clip_text(error.detail)};
}

// A worker that makes nothing but refused samples would be asked for them for ever.
void TrainerState::give_up_if_always_refused(const std::string& identity, const Message& message) {
  const auto it = sessions_.find(identity);
  if (it == sessions_.end() || it->second.refused_in_row < options_.max_refused_in_row) return;
  const Error why{
      it->second.last_refusal.reason,
      std::to_string(it->second.refused_in_row) +
          " samples in a row were refused, the last one: " + it->second.last_refusal.detail};
  refuse(identity, why, true, &message.header());
  lose(identity, why.detail);
}

AckBody TrainerState::busy(const std::string& rollout_id) {
  ++counters_.busy;
  return {rollout_id, "BUSY", "", ""};
}

// Versions of an earlier start are for the owner to judge, who knows which of them survived.
Status TrainerState::check_weights_of(const Rollout& rollout) const {
  const auto error = [&](Reason reason, const std::string& what) {
    return Error{reason, "rollout '" + rollout.rollout_id + "': " + what};
  };
  if (rollout.run_epoch > options_.run_epoch) {
    return error(Reason::kWrongRun, "run_epoch " + std::to_string(rollout.run_epoch) + ", now is " +
                                        std::to_string(options_.run_epoch));
  }
  if (rollout.run_epoch < options_.run_epoch) return Success{};
  for (const VersionSpan& span : rollout.versions) {
    if (versions_.contains(span.version)) continue;
    return error(Reason::kUnknownVersion,
                 "version " + std::to_string(span.version) + " was never published in run_epoch " +
                     std::to_string(options_.run_epoch));
  }
  return Success{};
}

// Room was kept for what was granted; anything else, as a former epoch's work, needs room now.
bool TrainerState::has_room_for(const Rollout& rollout, uint64_t bytes) const {
  const auto queued = static_cast<int64_t>(queue_.size());
  const bool counted =
      board_.expects(rollout) || queued + board_.in_flight() < options_.max_queued_rollouts;
  return counted && budget_.fits(static_cast<int64_t>(bytes));
}

// Says once when the journal stops taking rollouts and once when it goes on.
bool TrainerState::journalled(const Session& session, const Rollout& rollout) {
  const Payload payload = encode_rollout(rollout, options_.limits);
  const Header header = header_for(session.worker_id, session.incarnation, 0);
  const Status written =
      journal_.append(rollout.group_id, flatten(pack_header(header, payload), payload));
  if (!written) {
    ++counters_.journal_refused;
    if (journal_trouble_.empty()) {
      event("", "journal: " + written.error().detail + "; rollouts wait until there is room");
    }
    journal_trouble_ = written.error().detail;
    return false;
  }
  if (!journal_trouble_.empty()) event("", "journal: takes rollouts again");
  journal_trouble_.clear();
  return true;
}

AckBody TrainerState::take(Session& session, Rollout rollout, uint64_t bytes) {
  if (Status s = check_weights_of(rollout); !s) return reject(session, rollout, s.error());
  const Origin origin =
      rollout.run_epoch == options_.run_epoch ? Origin::kThisStart : Origin::kEarlierStart;
  const auto verdict = board_.judge(rollout, session.worker_id, origin);
  if (!verdict) return reject(session, rollout, verdict.error());
  if (verdict.value() == Verdict::kDuplicate) {
    ++counters_.duplicate;
    return {rollout.rollout_id, "DUPLICATE", "", ""};
  }
  if (verdict.value() == Verdict::kRetry) {
    ++counters_.requeued;
    event(session.worker_id, "sample " + std::to_string(rollout.sample_index) + " of group " +
                                 std::to_string(rollout.group_id) + " came back " +
                                 finish_reason_name(rollout.finish_reason) +
                                 "; this sample alone is made again");
    board_.retry(rollout, session.worker_id, origin);
    return {rollout.rollout_id, "REQUEUED", "", ""};
  }
  if (Status s = admit(rollout); !s) return reject(session, rollout, s.error());
  if (!has_room_for(rollout, bytes) || !journalled(session, rollout)) {
    return busy(rollout.rollout_id);
  }
  board_.deliver(rollout);
  budget_.enqueue(static_cast<int64_t>(bytes));
  AckBody ack{rollout.rollout_id, "ACCEPTED", "", ""};
  queue_.emplace_back(std::move(rollout), bytes);
  ++counters_.accepted;
  session.refused_in_row = 0;
  return ack;
}

// All that was asked of it is here, and it has nothing else to send.
bool TrainerState::is_idle(const Session& session) const {
  return board_.in_flight(session.worker_id) == 0 && session.pending <= 0;
}

// Those that have something to send and little room for it learn that there is more.
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

void TrainerState::hand_out_work() {
  widen_windows();
  if (ended_) return;
  for (auto& [identity, session] : sessions_) {
    if (session.state != SessionState::kReady) continue;
    const int64_t room =
        options_.max_queued_rollouts - board_.in_flight() - static_cast<int64_t>(queue_.size());
    if (room <= 0) return;
    const int64_t free = session.capacity_samples - board_.in_flight(session.worker_id);
    if (free <= 0) continue;
    // No work without room for what comes of it.
    const int64_t before = budget_.window(session.worker_id);
    if (before == 0 && budget_.raise(session.worker_id) == 0) continue;
    CreditBody credit;
    for (GrantedGroup& g :
         board_.assign(session.worker_id, session.installed_version, free, room)) {
      credit.groups.push_back(
          {g.group_id, g.group_size, g.min_version, g.attempt, std::move(g.sample_indices)});
    }
    if (is_idle(session)) {
      budget_.release(session.worker_id);
    } else if (before == 0 || !credit.groups.empty()) {  // a promise that is not told serves nobody
      credit.window_bytes = budget_.raise(session.worker_id);
      queue(session, make_payload(MessageType::kCredit, credit));
    }
  }
}

}  // namespace ringside::bridge
