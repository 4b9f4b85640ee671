#include "tests/simulator/trainer.h"

#include <algorithm>
#include <stdexcept>

#include "rollout_bridge/trainer/stragglers.h"
#include "tests/simulator/weights.h"

namespace ringside::simulator {
namespace {

using namespace bridge;

constexpr const char* kJournalFile = "/journal/journal.bin";
constexpr milliseconds kRound{100};
constexpr std::size_t kHeldVersions = 2;  // as WeightServer
constexpr int32_t kHeldOutSamples = 2;
constexpr seconds kEvaluationPatience{40};
// A worker is told to leave after 16 that count; one of a sample that it does not hold does not.
constexpr int kMaxRejectedInRow = 24;

// Of a rollout's id, see model.cpp.
int64_t group_of(const std::string& rollout_id) { return std::stoll(rollout_id); }
int64_t version_of(const std::string& rollout_id) {
  return std::stoll(rollout_id.substr(rollout_id.find("/v") + 2));
}

TrainerOptions options_of(const TrainerPlan& plan, int64_t trainer_term, Disk& disk) {
  TrainerOptions o;
  o.run_id = kRunId;
  o.trainer_term = trainer_term;
  o.journal.directory = "/journal";
  o.journal.fsync = plan.fsync;
  o.journal.compact_bytes = plan.journal_compact_bytes;
  o.journal.max_bytes = plan.journal_max_bytes;
  o.window_bytes = plan.window_bytes;
  o.assignment_timeout = plan.assignment_timeout;
  o.settings.held_out = kHeldOut;
  o.images = plan.images;
  o.max_queued_rollouts = 2 * (1 + plan.max_staleness) * plan.prompts_per_step * plan.group_size;
  // The world owns the disk, and outlives every journal.
  o.journal.files = std::shared_ptr<FileSystem>(&disk, [](FileSystem*) {});
  return o;
}

rl::StepRules rules_of(const TrainerPlan& plan, int64_t first_step) {
  rl::StepRules rules;
  rules.prompts_per_step = plan.prompts_per_step;
  rules.group_size = plan.group_size;
  rules.max_staleness = plan.max_staleness;
  rules.first_step = first_step;
  rules.refill_rounds = plan.refill_rounds;
  rules.straggler_timeout = plan.straggler_timeout;
  rules.min_group_size = plan.min_group_size;
  rules.total_reward = [](const Rollout& r) {
    return std::optional(r.rewards.empty() ? 0 : r.rewards[0].second);
  };
  return rules;
}

}  // namespace

template <class Action>
void SimTrainer::guarded(Action action) {
  if (!state_) {
    return;
  }
  try {
    action();
  } catch (const ProcessCrash&) {
    world_.trace("trainer: dies while it writes its journal");
    crash(world_.random.between(Span(milliseconds(50)), Span(seconds(8))));
  }
}

void SimTrainer::start() {
  if (finished_ || state_) {
    return;
  }
  ++trainer_term_;
  const uint64_t life = ++life_;
  policy_ = rl::step_policy(rules_of(plan_, checkpoint_ + 1));
  TrainerOptions options = options_of(plan_, trainer_term_, world_.disk);
  options.policy = policy_;
  options.admission = world_.recipe ? world_.recipe->admission() : nullptr;
  int64_t lowest = checkpoint_;
  for (auto start = starts_.rbegin(); start != starts_.rend(); ++start) {
    options.newest_of_term[start->first] = lowest;
    lowest = std::min(lowest, start->second);
  }
  starts_.emplace_back(trainer_term_, checkpoint_);
  world_.trace("trainer: start " + std::to_string(trainer_term_) + " from step " +
               std::to_string(checkpoint_));
  step_ = checkpoint_;
  content_ = checkpoint_content_;
  training_ = first_is_published_ = false;
  published_version_ = -1;
  evaluation_ends_.reset();
  rejected_in_row_.clear();
  asked_since_.clear();
  stopped_until_ = {};
  inbox_.clear();
  held_.clear();
  world_.judge.restored(checkpoint_);
  try {
    world_.judge.journal_is(world_.disk.content(kJournalFile));
    world_.judge.started(journalled());
    state_ = std::make_unique<TrainerState>(options, "sim://weights");
    check_replay();
  } catch (const ProcessCrash&) {
    world_.events.after(seconds(1), [this] { start(); });
    return;
  } catch (const Breach&) {
    throw;
  } catch (const std::runtime_error& error) {  // no room for a new journal: the process ends
    world_.trace(std::string("trainer: cannot start: ") + error.what());
    world_.events.after(seconds(1), [this] { start(); });
    return;
  }
  chain_ = std::make_unique<DeltaChain>(DeltaChain::Options{true, plan_.full_every});
  world_.network.set_trainer(this);
  schedule_round();
  // Another thread encodes the weights, so workers may join before the first version is out.
  world_.events.after(world_.random.between(Span(0), Span(milliseconds(500))), [this, life] {
    if (life == life_) {
      guarded([this] { publish_first(); });
    }
  });
}

// What the recipe's rules let in before they let in again.
void SimTrainer::check_replay() const {
  const BridgeCounters counters = state_->counters();
  for (const Reason reason : {Reason::kVocabulary, Reason::kPrompt, Reason::kTooLong,
                              Reason::kSampling, Reason::kRewards, Reason::kInvalidField}) {
    if (counters.rejected[static_cast<std::size_t>(reason)] > 0) {
      throw Breach(std::string("the journal gave back rollouts that break a rule of the recipe: ") +
                   reason_name(reason));
    }
  }
}

void SimTrainer::crash(Span away) {
  if (!state_) {
    return;
  }
  ++life_;
  end_process();
  world_.disk.crash_at_append(0);
  world_.network.set_trainer(nullptr);
  world_.events.after(away, [this] { start(); });
}

void SimTrainer::end_process() {
  images_ = images();
  state_.reset();
}

ImageFigures SimTrainer::images() const {
  ImageFigures sum = images_;
  if (state_) {
    const BridgeCounters counters = state_->counters();
    sum.received += counters.images;
    sum.asked += counters.unknown_images;
    sum.dropped += counters.dropped_images;
  }
  return sum;
}

void SimTrainer::schedule_round() {
  world_.events.after(kRound, [this, life = life_] {
    if (life != life_) {
      return;
    }
    round();
    if (life == life_) {
      schedule_round();
    }
  });
}

void SimTrainer::round() {
  if (world_.events.now() < stopped_until_) {
    return;
  }
  guarded([&] {
    for (; !inbox_.empty(); inbox_.pop_front()) {
      handle(inbox_.front().first, inbox_.front().second);
    }
    state_->tick(world_.events.now());
    take_evaluation();
    train_if_ready();
    flush();
  });
}

void SimTrainer::on_packet(const std::string& identity, Packet packet) {
  if (world_.events.now() < stopped_until_ || !inbox_.empty()) {
    inbox_.emplace_back(identity, std::move(packet));
    return;
  }
  guarded([&] {
    handle(identity, packet);
    flush();
  });
}

void SimTrainer::handle(const std::string& identity, const Packet& packet) {
  state_->on_message(identity, "", packet.parse(), world_.events.now());
  watch_credits();
}

// As TrainerEndpoint's thread does after every round.
void SimTrainer::flush() {
  watch_credits();
  auto& strays = state_->strays();
  for (; !strays.empty(); strays.pop_front()) {
    auto& [identity, out] = strays.front();
    world_.network.to_worker(identity, {out.header, out.payload.buffers});
  }
  std::vector<std::string> gone;
  for (auto& [identity, session] : state_->sessions()) {
    for (; !session.outbox.empty(); session.outbox.pop_front()) {
      const Outgoing& out = session.outbox.front();
      Packet packet{out.header, out.payload.buffers};
      if (out.payload.type == MessageType::kAck) {
        const auto message = packet.parse();
        on_ack(identity, message.value().body<AckBody>().value());
      }
      if (!world_.network.to_worker(identity, std::move(packet))) {
        gone.push_back(identity);
        break;
      }
    }
  }
  for (const std::string& identity : gone) {
    state_->on_unreachable(identity);
  }
  state_->sweep();
}

void SimTrainer::on_ack(const std::string& identity, const AckBody& ack) {
  const bool is_refused =
      ack.status == "REJECTED" && world_.judge.rejected(ack.rollout_id, ack.detail);
  if (is_refused && ++rejected_in_row_[identity] > kMaxRejectedInRow) {
    throw Breach(identity + " is refused again and again and is not told to leave");
  }
  if (ack.status != "ACCEPTED") {
    world_.trace("trainer: " + ack.status + " " + ack.rollout_id + " " + ack.detail);
    return;
  }
  rejected_in_row_[identity] = 0;
  const int64_t group = group_of(ack.rollout_id);
  if (group < kFirstHeldOutGroup) {
    world_.judge.acknowledged(ack.rollout_id, group,
                              world_.recipe ? world_.recipe->judge().newest_version(ack.rollout_id)
                                            : version_of(ack.rollout_id));
  }
}

// Notes which samples are asked for. A session may end before its CREDIT is sent; its samples were
// granted all the same.
void SimTrainer::watch_credits() {
  for (const auto& [identity, session] : state_->sessions()) {
    for (const Outgoing& out : session.outbox) {
      if (out.payload.type != MessageType::kCredit) {
        continue;
      }
      const auto message = Packet{out.header, out.payload.buffers}.parse();
      const CreditBody credit = message.value().body<CreditBody>().value();
      for (const Grant& group : credit.groups) {
        for (const int32_t sample : group.sample_indices) {
          asked_since_.try_emplace({group.group_id, sample}, world_.events.now());
        }
      }
    }
  }
}

// A sample is given up only when its time is over. Stand-ins of earlier starts are those starts'.
void SimTrainer::check_stand_ins(const std::vector<Rollout>& rollouts) {
  for (const Rollout& r : rollouts) {
    if (!is_stand_in_id(r.rollout_id) || r.trainer_term != trainer_term_) {
      continue;
    }
    const auto asked = asked_since_.find({r.group_id, r.sample_index});
    if (plan_.straggler_timeout.count() == 0 || asked == asked_since_.end() ||
        world_.events.now() - asked->second < plan_.straggler_timeout) {
      throw Breach(r.rollout_id + " stands in for a sample whose time is not over");
    }
  }
}

// The ids of the rollouts that the journal gives back.
std::set<std::string> SimTrainer::journalled() const {
  const TrainerOptions o = options_of(plan_, trainer_term_, world_.disk);
  Journal journal({o.journal, o.run_id});
  std::set<std::string> ids;
  for (const Journal::Record& record : journal.take_replayed()) {
    ids.insert(record.rollout.rollout_id);
  }
  return ids;
}

// The weights that this start began with; versions are published in order.
void SimTrainer::publish_first() {
  if (!std::exchange(first_is_published_, true)) {
    publish(step_);
  }
}

void SimTrainer::publish(int64_t version) {
  world_.judge.published(trainer_term_, version, content_);
  published_version_ = version;
  auto snapshot = chain_->extend(snapshot_of(trainer_term_, version, content_));
  held_.push_back(snapshot);
  if (held_.size() > kHeldVersions) {
    held_.pop_front();
  }
  state_->publish(std::move(snapshot));
  state_->open_steps(version + 1, std::min(plan_.steps, version + 1 + plan_.max_staleness));
  watch_credits();
}

// The judge's side of a slot that the ledger may consume: of every round.
void SimTrainer::release(int64_t first_group) {
  world_.trace("trainer: slot " + std::to_string(first_group) + " may be released");
  for (std::optional<int64_t> group = first_group; group;
       group = policy_.rule_of(*group).next_round) {
    world_.judge.released(*group);
  }
}

void SimTrainer::checkpoint() {
  std::vector<int64_t> groups;
  while (checkpoint_ < step_) {
    std::ranges::copy(policy_.first_groups(++checkpoint_), std::back_inserter(groups));
  }
  checkpoint_content_ = content_;
  flush();  // acknowledgements of these groups count before they are released
  for (const int64_t group : groups) {
    release(group);
  }
  state_->checkpointed(step_);
  world_.judge.journal_is(world_.disk.content(kJournalFile));
}

void SimTrainer::train_if_ready() {
  if (training_ || finished_ || evaluation_ends_) {
    return;
  }
  state_->collect();
  const auto messages = state_->take(step_ + 1);
  if (!messages) {
    return;
  }
  const RolloutBatch batch = read_batch(*messages).value();
  const std::vector<Rollout>& rollouts = batch.rollouts;
  images_.trained += batch.images.size();
  unrestorable_.clear();
  check_stand_ins(rollouts);
  for (const Rollout& r : rollouts) {
    world_.judge.popped(r);
    const bool of_lost_weights = r.trainer_term == trainer_term_ && !r.versions.empty() &&
                                 r.versions.back().version > checkpoint_;
    if (of_lost_weights) {
      unrestorable_.push_back(policy_.rule_of(r.group_id).first_group);
    }
  }
  world_.judge.trained(step_ + 1, batch, plan_.prompts_per_step * plan_.group_size,
                       plan_.max_staleness, plan_.min_group_size);
  if (world_.recipe) {
    world_.recipe->train(rollouts);
  }
  training_ = true;
  world_.events.after(plan_.train_time, [this, life = life_] {
    if (life == life_) {
      guarded([this] { trained(); });
    }
  });
}

void SimTrainer::trained() {
  training_ = false;
  publish_first();
  ++step_;
  content_ = ++last_content_;
  world_.trace("trainer: step " + std::to_string(step_) + " of " + std::to_string(plan_.steps));
  if (step_ == plan_.steps) {
    finished_ = true;
    world_.disk.crash_at_append(0);  // it stays until every worker has heard of the end
    state_->end("the run is finished");
    flush();
    return;
  }
  if (step_ % plan_.checkpoint_every == 0) {
    checkpoint();
  }
  flush();
  for (const int64_t slot : unrestorable_) {
    release(slot);
  }
  publish(step_);
  evaluate();
  flush();
}

// The step after it waits, as in the product's loop.
void SimTrainer::evaluate() {
  if (plan_.evaluate_every == 0 || step_ % plan_.evaluate_every != 0) {
    return;
  }
  state_->open_evaluation(plan_.held_out_prompts, kHeldOutSamples);
  evaluation_ends_ = world_.events.now() + kEvaluationPatience;
}

void SimTrainer::take_evaluation() {
  if (!evaluation_ends_) {
    return;
  }
  if (const auto samples = state_->take_evaluation()) {
    world_.judge.evaluated(*samples, plan_.held_out_prompts, kHeldOutSamples, content_);
    evaluation_ends_.reset();
  } else if (world_.events.now() >= *evaluation_ends_) {
    world_.trace("trainer: the evaluation is given up");
    state_->end_evaluation();
    evaluation_ends_.reset();
  }
}

std::optional<Packet> SimTrainer::answer_chunk(const Header& header, const ChunkBody& body) const {
  if (!state_ || world_.events.now() < stopped_until_) {
    return std::nullopt;
  }
  Payload payload;
  const auto held = std::find_if(held_.begin(), held_.end(), [&](const auto& snapshot) {
    return snapshot->manifest.version == body.version;
  });
  const WeightDelta* delta = held == held_.end() ? nullptr : (*held)->delta.get();
  const bool is_known =
      header.trainer_term == trainer_term_ && held != held_.end() && body.tensors == 1 &&
      (body.base_version < 0 || (delta && delta->manifest.base_version == body.base_version));
  if (!is_known) {
    payload = make_payload(MessageType::kError,
                           ErrorBody{reason_name(Reason::kGone), "gone", false, body.version});
  } else {
    const Buffer& tensor =
        body.base_version >= 0 ? delta->payloads.at(body.tensor) : (*held)->tensors.at(body.tensor);
    payload = make_payload(MessageType::kChunk, body);
    // A copy: a fault may damage it.
    const auto part = tensor.bytes.subspan(body.offset, body.bytes);
    payload.add_unhashed("data", "U8", {static_cast<int64_t>(body.bytes)},
                         Buffer::own(std::vector<std::byte>(part.begin(), part.end())));
  }
  const Header reply{payload.type, kRunId, trainer_term_, header.worker_id, header.incarnation, 0};
  return Packet{pack_header(reply, payload), payload.buffers};
}

std::string SimTrainer::summary() const {
  std::string text = "step " + std::to_string(step_) + " of " + std::to_string(plan_.steps) +
                     (state_ ? "" : ", trainer away") + (training_ ? ", training" : "");
  if (!state_) {
    return text;
  }
  text += ", " + std::to_string(state_->counters().groups.waiting) + " rollouts wait";
  for (const WorkerStatus& w : state_->workers()) {
    text += "\n  " + w.worker_id + "/" + std::to_string(w.incarnation) + " " + w.state + " v" +
            std::to_string(w.version) + ", holds " + std::to_string(w.in_flight_samples) +
            ", says " + std::to_string(w.queue_depth);
  }
  return text;
}

}  // namespace ringside::simulator
