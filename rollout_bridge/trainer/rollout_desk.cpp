#include "rollout_bridge/trainer/rollout_desk.h"

#include <algorithm>
#include <map>
#include <utility>

#include "rollout_bridge/base/utf8.h"
#include "rollout_bridge/protocol/codec.h"

namespace ringside::bridge {
namespace {

constexpr std::chrono::milliseconds kLook{100};  // between looks for stragglers

void count_refusal(Session& session, const Error& error) {
  ++session.refused_in_row;
  session.last_refusal = error;
}

}  // namespace

// The journal may be from another recipe or an older version, so rollouts that would be refused now
// are dropped. So are rollouts of weights that no longer exist: a journal with a limit would be
// full of them after some restarts, and take nothing more.
void RolloutDesk::replay_journal() {
  int64_t not_taken = 0;
  std::vector<Error> refused;
  std::vector<std::size_t> dropped;
  std::vector<int64_t> over;
  std::vector<Journal::Record> records = parts_.journal.take_replayed();
  for (std::size_t i = 0; i < records.size(); ++i) {
    const int64_t group_id = records[i].rollout.group_id;
    const auto replayed = replay(std::move(records[i]));
    if (!replayed) {
      refused.push_back(replayed.error());
    }
    if (replayed && replayed.value() == Replayed::kNotTaken) {
      ++not_taken;
    }
    const bool is_over = replayed ? replayed.value() == Replayed::kOver
                                  : replayed.error().reason == Reason::kUnknownGroup;
    if (is_over) {
      over.push_back(group_id);
    }
    if (!replayed || replayed.value() != Replayed::kDelivered) {
      dropped.push_back(i);
    }
  }
  parts_.journal.drop_replayed(dropped);
  parts_.journal.consume(over);
  report_dropped(refused);
  if (!arrivals_.empty()) {
    parts_.events.add("", std::to_string(arrivals_.size()) + " rollouts taken from the journal");
  }
  if (not_taken > 0) {
    parts_.events.add("", std::to_string(not_taken) +
                              " rollouts of the journal not taken: their weights were lost with a "
                              "restart, or others of their group came first");
  }
  if (const std::string unreadable = parts_.journal.unreadable(); !unreadable.empty()) {
    parts_.events.add("", unreadable);
  }
  if (const uint64_t cut = parts_.journal.truncated_bytes(); cut > 0) {
    parts_.events.add("",
                      "journal: cut " + std::to_string(cut) + " bytes of a torn or damaged tail");
  }
}

// Delivers a rollout of the journal, or says why it is of no use.
// Errors: those of the checks that a worker's rollout has to pass, too.
Result<RolloutDesk::Replayed> RolloutDesk::replay(Journal::Record record) {
  const Rollout& rollout = record.rollout;
  GroupCounters& counters = parts_.counters.groups;
  if (parts_.ledger.is_over(rollout.group_id)) {
    ++counters.replayed_out_of_steps;
    return Replayed::kOver;
  }
  if (!check_weights_of(rollout)) {
    ++counters.replayed_stale;
    return Replayed::kNotTaken;
  }
  const auto verdict = parts_.ledger.judge(rollout, "", Origin::kJournal);
  if (!verdict) {
    const bool is_unknown = verdict.error().reason == Reason::kUnknownGroup;
    ++(is_unknown ? counters.replayed_out_of_steps : counters.replayed_stale);
    return verdict.error();
  }
  if (verdict.value() == Verdict::kDuplicate) {
    return Replayed::kNotTaken;
  }
  if (Status s = admit(rollout); !s) {
    return s.error();
  }
  open_groups(deliver(rollout, std::move(record.message), wire_bytes(rollout)));
  return Replayed::kDelivered;
}

// Reports one event a reason, because a journal may hold thousands of refused rollouts.
void RolloutDesk::report_dropped(const std::vector<Error>& refused) {
  std::map<Reason, std::pair<int64_t, const Error*>> by_reason;
  for (const Error& error : refused) {
    parts_.count(error.reason);
    auto& [count, first] = by_reason.try_emplace(error.reason, 0, &error).first->second;
    ++count;
  }
  for (const auto& [reason, found] : by_reason) {
    parts_.events.add(
        "", "journal: " + std::to_string(found.first) + " rollouts dropped (" +
                reason_name(reason) +
                "), their samples are asked for again; the first: " + found.second->detail);
  }
}

Status RolloutDesk::admit(const Rollout& rollout) const {
  return parts_.options.admission ? parts_.options.admission->admit(rollout) : Status(Success{});
}

void RolloutDesk::on_rollout(Session& session, const Message& message) {
  uint64_t bytes = 0;
  for (const FrameSpec& spec : message.specs()) {
    bytes += spec.bytes;
  }
  parts_.budget.arrived(session.worker_id, static_cast<int64_t>(bytes));
  session.overdue = false;
  session.last_rollout = parts_.now;
  auto decoded = decode_rollout(message, parts_.options.limits);
  AckBody ack;
  if (decoded) {
    ++parts_.counters.received;
    parts_.counters.rollout_bytes += bytes;
    ack = receive(session, message, decoded.value(), bytes);
  } else {
    ack = unreadable(session, message, decoded.error());
  }
  work_.release_unnamed(session);
  ack.window_bytes = parts_.budget.raise(session.worker_id);
  if (work_.is_idle(session)) {
    parts_.budget.release(session.worker_id);
  }
  sessions_.queue(session, make_payload(MessageType::kAck, ack));
}

// An image that the journal has need not wait for a rollout.
void RolloutDesk::on_image(Session& session, const Message& message) {
  uint64_t bytes = 0;
  for (const FrameSpec& spec : message.specs()) {
    bytes += spec.bytes;
  }
  parts_.budget.arrived(session.worker_id, static_cast<int64_t>(bytes));
  const auto head = read_image_head(message, parts_.options.limits);
  ImageAckBody ack{message.field<std::string>("hash").value_or(""), "STORED", "", ""};
  if (head) {
    ++parts_.counters.images;
    parts_.counters.image_bytes += bytes;
    if (!parts_.journal.has_image(head.value().hash)) {
      parts_.images.add(session.worker_id, head.value().hash, message.flat(), parts_.now);
    }
  } else {
    const Error& error = head.error();
    parts_.count(error.reason);
    count_refusal(session, error);
    parts_.events.add(session.worker_id,
                      "image of worker " + session.worker_id + " refused: " + error.detail);
    ack = {is_image_hash(ack.hash) ? ack.hash : "", "REFUSED", reason_name(error.reason),
           clip_text(error.detail)};
  }
  ack.window_bytes = parts_.budget.raise(session.worker_id);
  sessions_.queue(session, make_payload(MessageType::kImageAck, ack));
}

std::optional<AckBody> RolloutDesk::unknown_images(const Rollout& rollout) {
  AckBody ack{rollout.rollout_id, "UNKNOWN_IMAGES", "", ""};
  for (const std::string& hash : image_hashes(rollout)) {
    if (!parts_.journal.has_image(hash) && !parts_.images.use(hash)) {
      ack.images.push_back(hash);
    }
  }
  if (ack.images.empty()) {
    return std::nullopt;
  }
  ++parts_.counters.unknown_images;
  return ack;
}

// Answers a rollout that breaks a rule. The fields that can be read let the worker drop the rollout
// and the trainer grant the sample again. One that names no sample is counted: see
// work_.release_unnamed().
AckBody RolloutDesk::unreadable(Session& session, const Message& message, const Error& error) {
  Rollout named;
  named.rollout_id = message.field<std::string>("rollout_id").value_or("");
  if (first_byte_not_utf8(named.rollout_id)) {
    named.rollout_id.clear();
  }
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
  if (session.refused_in_row == counted) {
    count_refusal(session, error);
  }
  return ack;
}

AckBody RolloutDesk::reject(Session& session, const Rollout& rollout, const Error& error) {
  parts_.count(error.reason);
  const bool stale = error.reason == Reason::kStale;  // not a fault of the worker
  // The worker drops the rollout. If it held the sample, the sample is granted again.
  const bool was_asked =
      parts_.ledger.reopen(rollout.group_id, rollout.sample_index, session.worker_id);
  if (was_asked && !stale) {
    count_refusal(session, error);
  }
  parts_.events.add(session.worker_id, "rollout of worker " + session.worker_id +
                                           (stale ? " not used: " : " rejected: ") + error.detail);
  return {rollout.rollout_id, stale ? "STALE" : "REJECTED", reason_name(error.reason),
          clip_text(error.detail)};
}

std::optional<Error> RolloutDesk::why_given_up(const Session& session) const {
  if (session.refused_in_row < parts_.options.max_refused_in_row) {
    return std::nullopt;
  }
  return Error{session.last_refusal.reason,
               std::to_string(session.refused_in_row) +
                   " rollouts in a row were refused, the last one: " + session.last_refusal.detail};
}

AckBody RolloutDesk::busy(const std::string& rollout_id) {
  ++parts_.counters.busy;
  return {rollout_id, "BUSY", "", ""};
}

// Checks that the weights of a rollout exist: versions of this start must be published, versions of
// an earlier start must be ancestors of this start's weights.
Status RolloutDesk::check_weights_of(const Rollout& rollout) const {
  const auto error = [&](Reason reason, const std::string& what) {
    return Error{reason, "rollout '" + rollout.rollout_id + "': " + what};
  };
  const std::string term = "trainer_term " + std::to_string(rollout.trainer_term);
  if (rollout.trainer_term == parts_.options.trainer_term) {
    for (const VersionSpan& span : rollout.versions) {
      if (parts_.published.contains(span.version)) {
        continue;
      }
      return error(Reason::kUnknownVersion,
                   "version " + std::to_string(span.version) + " was never published in " + term);
    }
    return Success{};
  }
  const auto start = parts_.options.newest_of_term.find(rollout.trainer_term);
  if (rollout.trainer_term > parts_.options.trainer_term ||
      start == parts_.options.newest_of_term.end()) {
    return error(Reason::kWrongRun, term + ", now is " +
                                        std::to_string(parts_.options.trainer_term) +
                                        " and no earlier one of that number is known");
  }
  for (const VersionSpan& span : rollout.versions) {
    if (span.version <= start->second) {
      continue;
    }
    return error(Reason::kStale, "version " + std::to_string(span.version) + " of " + term +
                                     " was lost with a restart, the last that exists is " +
                                     std::to_string(start->second));
  }
  return Success{};
}

// Room is reserved for granted samples. Other rollouts, such as those of an earlier term, need free
// room.
bool RolloutDesk::has_room_for(const Rollout& rollout, uint64_t bytes) const {
  const WorkDivision& work = parts_.work();
  const auto arrived = static_cast<int64_t>(arrivals_.size());
  const bool counted = work.is_assigned(rollout.group_id, rollout.sample_index) ||
                       arrived + work.in_flight() < parts_.options.max_queued_rollouts;
  return counted && parts_.budget.fits(static_cast<int64_t>(bytes));
}

// Appends the message to the journal as received, after its images. Reports once when the journal
// stops accepting rollouts and once when it accepts them again.
bool RolloutDesk::journalled(const Rollout& rollout, const FlatRollout& message) {
  std::vector<Journal::NamedImage> images;
  for (const std::string& hash : image_hashes(rollout)) {
    images.push_back({hash, parts_.images.use(hash)});
  }
  const Status written = parts_.journal.append(rollout.group_id, message, images);
  if (!written) {
    ++parts_.counters.journal_refused;
    if (journal_trouble_.empty()) {
      parts_.events.add(
          "", "journal: " + written.error().detail + "; rollouts wait until there is room",
          EventKind::kTrouble);
    }
    journal_trouble_ = written.error().detail;
    return false;
  }
  for (const Journal::NamedImage& image : images) {
    parts_.images.remove(image.hash);
  }
  if (!journal_trouble_.empty()) {
    parts_.events.add("", "journal: takes rollouts again");
  }
  journal_trouble_.clear();
  return true;
}

AckBody RolloutDesk::requeued(Session& session, const Rollout& rollout) {
  ++parts_.counters.requeued;
  parts_.events.add(session.worker_id, "sample " + std::to_string(rollout.sample_index) +
                                           " of group " + std::to_string(rollout.group_id) +
                                           " came back " +
                                           finish_reason_name(rollout.finish_reason) +
                                           "; this sample is granted again");
  return {rollout.rollout_id, "REQUEUED", "", ""};
}

AckBody RolloutDesk::receive_held_out(Session& session, const Rollout& rollout) {
  const auto verdict = parts_.evaluation.judge(rollout, session.worker_id);
  if (!verdict) {
    return reject(session, rollout, verdict.error());
  }
  if (verdict.value() == Verdict::kDuplicate) {
    ++parts_.counters.duplicate;
    return {rollout.rollout_id, "DUPLICATE", "", ""};
  }
  if (verdict.value() == Verdict::kRetry) {
    parts_.evaluation.retry(rollout, session.worker_id);
    return requeued(session, rollout);
  }
  if (parts_.options.admission) {
    const int64_t held_out = parts_.evaluation.prompt_of(rollout.group_id);
    if (Status s = parts_.options.admission->admit_held_out(rollout, held_out); !s) {
      return reject(session, rollout, s.error());
    }
  }
  parts_.work().answered(rollout.group_id, rollout.sample_index, session.worker_id, parts_.now);
  parts_.evaluation.deliver(rollout);
  ++parts_.counters.evaluated;
  session.refused_in_row = 0;
  return {rollout.rollout_id, "ACCEPTED", "", ""};
}

AckBody RolloutDesk::receive(Session& session, const Message& message, const Rollout& rollout,
                             uint64_t bytes) {
  if (rollout.group_id >= kFirstHeldOutGroup) {
    return receive_held_out(session, rollout);
  }
  if (Status s = check_weights_of(rollout); !s) {
    return reject(session, rollout, s.error());
  }
  const Origin origin = rollout.trainer_term == parts_.options.trainer_term ? Origin::kThisStart
                                                                            : Origin::kEarlierStart;
  const auto verdict = parts_.ledger.judge(rollout, session.worker_id, origin);
  if (!verdict) {
    return reject(session, rollout, verdict.error());
  }
  if (verdict.value() == Verdict::kDuplicate) {
    ++parts_.counters.duplicate;
    return {rollout.rollout_id, "DUPLICATE", "", ""};
  }
  if (verdict.value() == Verdict::kRetry) {
    parts_.ledger.retry(rollout, session.worker_id, origin);
    return requeued(session, rollout);
  }
  if (Status s = admit(rollout); !s) {
    return reject(session, rollout, s.error());
  }
  if (!has_room_for(rollout, bytes)) {
    return busy(rollout.rollout_id);
  }
  if (auto ack = unknown_images(rollout)) {
    return *ack;
  }
  FlatRollout flat = message.flat();
  if (!journalled(rollout, flat)) {
    return busy(rollout.rollout_id);
  }
  parts_.work().answered(rollout.group_id, rollout.sample_index, session.worker_id, parts_.now);
  open_groups(deliver(rollout, std::move(flat), bytes));
  ++parts_.counters.accepted;
  session.refused_in_row = 0;
  return {rollout.rollout_id, "ACCEPTED", "", ""};
}

// The step's other samples may be here, so nothing else may come that would make it whole.
void RolloutDesk::replace_stragglers() {
  const auto timeout = parts_.options.policy.straggler_timeout;
  if (timeout.count() == 0 || !awaited_step_ || parts_.now < next_look_) {
    return;
  }
  next_look_ = parts_.now + kLook;
  int64_t replaced = 0;
  std::string first;
  for (const auto& straggler : parts_.ledger.stragglers(*awaited_step_, parts_.now - timeout)) {
    if (!replace(straggler)) {
      break;
    }
    if (++replaced == 1) {
      first = "sample " + std::to_string(straggler.owed.index) + " of group " +
              std::to_string(straggler.stand_in.group_id) +
              (straggler.owed.holder.empty() ? "" : " of worker " + straggler.owed.holder);
    }
  }
  if (replaced > 0) {
    parts_.events.add("", "step " + std::to_string(*awaited_step_) + " goes on without " +
                              std::to_string(replaced) + (replaced == 1 ? " sample" : " samples") +
                              " that did not come within " + seconds(timeout) +
                              (replaced == 1 ? ": " : ", the first is ") + first);
  }
}

// Returns false when the journal has no room. The room in memory is not asked for: a stand-in holds
// a prompt only, and the owner takes it at once.
bool RolloutDesk::replace(const GroupLedger::Straggler& straggler) {
  const Rollout& rollout = straggler.stand_in;
  const auto verdict = parts_.ledger.judge(rollout, "", Origin::kJournal);
  if (!verdict || verdict.value() != Verdict::kNew) {
    return true;
  }
  FlatRollout flat = flatten_rollout(rollout, parts_.options.limits);
  if (!journalled(rollout, flat)) {
    return false;
  }
  open_groups(deliver(rollout, std::move(flat), wire_bytes(rollout)));
  work_.withdraw_straggler(rollout.group_id, straggler.owed);
  return true;
}

void RolloutDesk::open_groups(const std::vector<int64_t>& groups) {
  parts_.journal.grant(groups);
  for (const int64_t id : groups) {
    parts_.ledger.grant(id);
    parts_.journal.reopen(id);
  }
}

void RolloutDesk::consume(std::span<const int64_t> group_ids) {
  parts_.journal.consume(group_ids);
  for (const int64_t id : group_ids) {
    parts_.counters.forgotten += static_cast<uint64_t>(parts_.ledger.forget(id));
  }
  drop_arrivals();
}

std::vector<int64_t> RolloutDesk::deliver(const Rollout& rollout, FlatRollout message,
                                          uint64_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  parts_.budget.enqueue(size);
  arrivals_.push_back({rollout.group_id, size});
  std::vector<int64_t> replacements = parts_.ledger.deliver(rollout, std::move(message));
  if (!replacements.empty()) {
    drop_arrivals();
  }
  return replacements;
}

// Frees the bytes of rollouts that the ledger has dropped.
void RolloutDesk::drop_arrivals() {
  std::erase_if(arrivals_, [&](const Arrival& arrival) {
    if (parts_.ledger.holds(arrival.group_id)) {
      return false;
    }
    parts_.budget.dequeue(arrival.bytes);
    return true;
  });
}

bool RolloutDesk::collect() {
  if (arrivals_.empty()) {
    return false;
  }
  for (const Arrival& arrival : arrivals_) {
    parts_.budget.dequeue(arrival.bytes);
  }
  arrivals_.clear();
  return true;
}

}  // namespace ringside::bridge
