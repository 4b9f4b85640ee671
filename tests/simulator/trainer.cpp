#include "tests/simulator/trainer.h"

#include <algorithm>

#include "tests/simulator/weights.h"

namespace ringside::simulator {
namespace {

using namespace bridge;

constexpr milliseconds kRound{100};
constexpr std::size_t kHeldVersions = 2;  // as WeightServer

int64_t group_of(const std::string& rollout_id) { return std::stoll(rollout_id); }

TrainerOptions options_of(const TrainerPlan& plan, int64_t trainer_term, Disk& disk) {
  TrainerOptions o;
  o.run_id = kRunId;
  o.trainer_term = trainer_term;
  o.journal_directory = "/journal";
  o.fsync = plan.fsync;
  o.journal_compact_bytes = plan.journal_compact_bytes;
  o.journal_max_bytes = plan.journal_max_bytes;
  o.window_bytes = plan.window_bytes;
  o.max_queued_rollouts = 2 * (1 + plan.max_staleness) * plan.prompts_per_step * plan.group_size;
  // The world owns the disk, and outlives every journal.
  o.files = std::shared_ptr<FileSystem>(&disk, [](FileSystem*) {});
  return o;
}

double reward_of(const Rollout& rollout) {
  return rollout.rewards.empty() ? 0 : rollout.rewards[0].second;
}

}  // namespace

template <class Action>
void SimTrainer::guarded(Action action) {
  if (!state_) return;
  try {
    action();
  } catch (const ProcessCrash&) {
    world_.trace("trainer: dies while it writes its journal");
    crash(world_.random.between(Span(milliseconds(50)), Span(seconds(8))));
  }
}

void SimTrainer::start() {
  if (finished_ || state_) return;
  ++trainer_term_;
  const uint64_t life = ++life_;
  rl::QueueRules rules;
  rules.prompts_per_step = plan_.prompts_per_step;
  rules.group_size = plan_.group_size;
  rules.max_staleness = plan_.max_staleness;
  rules.trainer_term = trainer_term_;
  rules.restored_version = checkpoint_;
  rules.refill_rounds = plan_.refill_rounds;
  rules.total_reward = [](const Rollout& r) { return std::optional(reward_of(r)); };
  int64_t lowest = checkpoint_;
  for (auto start = starts_.rbegin(); start != starts_.rend(); ++start) {
    rules.newest_of_term[start->first] = lowest;
    lowest = std::min(lowest, start->second);
  }
  starts_.emplace_back(trainer_term_, checkpoint_);
  world_.trace("trainer: start " + std::to_string(trainer_term_) + " from step " +
               std::to_string(checkpoint_));
  step_ = granted_to_ = checkpoint_;
  content_ = checkpoint_content_;
  training_ = false;
  stopped_until_ = {};
  inbox_.clear();
  held_.clear();
  world_.judge.restored(checkpoint_);
  try {
    world_.judge.started(journalled());
    state_ = std::make_unique<TrainerState>(options_of(plan_, trainer_term_, world_.disk),
                                            "sim://weights");
  } catch (const ProcessCrash&) {
    world_.events.after(seconds(1), [this] { start(); });
    return;
  }
  queue_ = std::make_unique<rl::RolloutQueue>(rules, checkpoint_ + 1);
  chain_ = std::make_unique<DeltaChain>(DeltaChain::Options{true, plan_.full_every});
  guarded([&] { publish(checkpoint_); });
  if (life != life_ || !state_) return;
  world_.network.set_trainer(this);
  schedule_round();
}

void SimTrainer::crash(Span away) {
  if (!state_) return;
  ++life_;
  state_.reset();
  world_.disk.crash_at_append(0);
  world_.network.set_trainer(nullptr);
  world_.events.after(away, [this] { start(); });
}

void SimTrainer::schedule_round() {
  world_.events.after(kRound, [this, life = life_] {
    if (life != life_) return;
    round();
    if (life == life_) schedule_round();
  });
}

void SimTrainer::round() {
  if (world_.events.now() < stopped_until_) return;
  guarded([&] {
    for (; !inbox_.empty(); inbox_.pop_front()) handle(inbox_.front().first, inbox_.front().second);
    state_->tick(world_.events.now());
    take_in();
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
}

// As TrainerEndpoint's thread does after every round.
void SimTrainer::flush() {
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
        const AckBody ack = message.value().body<AckBody>().value();
        if (ack.status == "ACCEPTED")
          world_.judge.acknowledged(ack.rollout_id, group_of(ack.rollout_id));
      }
      if (!world_.network.to_worker(identity, std::move(packet))) {
        gone.push_back(identity);
        break;
      }
    }
  }
  for (const std::string& identity : gone) state_->on_unreachable(identity);
  state_->sweep();
}

// The ids of the rollouts that the journal gives back.
std::set<std::string> SimTrainer::journalled() const {
  const TrainerOptions o = options_of(plan_, trainer_term_, world_.disk);
  Journal journal(
      {.directory = o.journal_directory, .run_id = o.run_id, .fsync = o.fsync, .files = o.files});
  std::set<std::string> ids;
  for (const Rollout& rollout : journal.take_replayed()) ids.insert(rollout.rollout_id);
  return ids;
}

// The owner pops nothing while it trains.
void SimTrainer::take_in() {
  while (!training_) {
    train_if_ready();
    if (training_) return;
    auto rollout = state_->pop();
    if (!rollout) return;
    admit(std::move(*rollout));
  }
}

void SimTrainer::publish(int64_t version) {
  world_.judge.published(trainer_term_, version, content_);
  auto snapshot = chain_->extend(snapshot_of(trainer_term_, version, content_));
  held_.push_back(snapshot);
  if (held_.size() > kHeldVersions) held_.pop_front();
  state_->publish(std::move(snapshot));
  queue_->published(version);
  grant_to(std::min(plan_.steps, version + 1 + plan_.max_staleness));
}

GroupGrant SimTrainer::grant_of(int64_t group) const {
  return {group, static_cast<int32_t>(plan_.group_size), queue_->min_version(group),
          queue_->step_of(group)};
}

void SimTrainer::grant_to(int64_t step) {
  std::vector<GroupGrant> grants;
  for (int64_t slot = granted_to_ * plan_.prompts_per_step; slot < step * plan_.prompts_per_step;
       ++slot) {
    grants.push_back(grant_of(slot));
  }
  granted_to_ = std::max(granted_to_, step);
  state_->grant(grants);
}

// As RolloutIntake::admit.
void SimTrainer::admit(Rollout rollout) {
  world_.judge.popped(rollout);
  const std::string id = rollout.rollout_id;
  const std::string epoch = std::to_string(rollout.trainer_term);
  const auto admission = static_cast<int>(queue_->add(std::move(rollout)));
  world_.trace("trainer: rollout " + id + " of start " + epoch + ", admission " +
               std::to_string(admission));
  const rl::QueueRequests requests = queue_->take_requests();
  release(requests.forget);
  std::vector<GroupGrant> grants;
  for (const int64_t group : requests.grant) {
    if (queue_->step_of(group) <= granted_to_) grants.push_back(grant_of(group));
  }
  if (!grants.empty()) state_->grant(grants);
}

void SimTrainer::release(const std::vector<int64_t>& groups) {
  if (groups.empty()) return;
  flush();  // acknowledgements of these groups count before they are released
  for (const int64_t group : groups) {
    world_.judge.released(group);
    world_.trace("trainer: releases group " + std::to_string(group));
  }
  state_->mark_consumed(groups);
}

std::vector<int64_t> SimTrainer::groups_of(int64_t from_step, int64_t to_step) const {
  std::vector<int64_t> groups;
  for (int64_t round = 0; round < plan_.refill_rounds; ++round) {
    for (int64_t slot = from_step * plan_.prompts_per_step; slot < to_step * plan_.prompts_per_step;
         ++slot) {
      groups.push_back(slot + round * rl::kRoundStride);
    }
  }
  return groups;
}

void SimTrainer::train_if_ready() {
  if (training_ || finished_) return;
  const auto rollouts = queue_->take(step_ + 1);
  if (!rollouts) return;
  world_.judge.trained(step_ + 1, *rollouts, plan_.prompts_per_step * plan_.group_size,
                       plan_.max_staleness);
  training_ = true;
  world_.events.after(plan_.train_time, [this, life = life_] {
    if (life == life_) guarded([this] { trained(); });
  });
}

void SimTrainer::trained() {
  training_ = false;
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
    const int64_t before = checkpoint_;
    checkpoint_ = step_;
    checkpoint_content_ = content_;
    release(groups_of(before, step_));
  }
  publish(step_);
  flush();
}

std::optional<Packet> SimTrainer::answer_chunk(const Header& header, const ChunkBody& body) const {
  if (!state_ || world_.events.now() < stopped_until_) return std::nullopt;
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
  if (!state_) return text;
  text += ", " + std::to_string(queue_->size()) + " rollouts queued";
  for (const WorkerStatus& w : state_->workers()) {
    text += "\n  " + w.worker_id + "/" + std::to_string(w.incarnation) + " " + w.state + " v" +
            std::to_string(w.version) + ", holds " + std::to_string(w.in_flight_samples) +
            ", says " + std::to_string(w.queue_depth);
  }
  return text;
}

}  // namespace ringside::simulator
