#include "tests/simulator/worker.h"

#include <map>
#include <stdexcept>

#include "rollout_bridge/weights/wire_fetcher.h"
#include "tests/simulator/pictures.h"

namespace ringside::simulator {
namespace {

using namespace bridge;

constexpr milliseconds kTick{150};
constexpr seconds kRelaunch{1};

WorkerOptions options_of(const WorkerPlan& plan, const std::string& id, uint64_t incarnation) {
  WorkerOptions o;
  o.rollout_address = "sim://trainer";
  o.worker_id = id;
  // Room for the incarnations of one process's sessions, as microseconds of the clock give it.
  o.incarnation = incarnation * 1'000'000;
  o.capacity_samples = plan.capacity_samples;
  o.max_pending = plan.max_pending;
  o.chunk_bytes = 64;
  o.chunk_timeout = milliseconds(1000);
  o.settings.held_out = kHeldOut;
  return o;
}

// A ROLLOUT as a worker sends it that breaks the protocol: in its body, not in its frames.
Payload spoiled(Payload payload, const std::string& rollout_id, int64_t kind) {
  std::map<std::string, std::string> body = {{"rollout_id", rollout_id}};  // lacks all else
  if (kind == 0) {
    body = {{"rollout_id", "\xff\xfe"}, {"group_id", "no number"}};
  }
  if (kind == 1) {
    body = {};
  }
  payload.body = make_payload(MessageType::kRollout, body).body;
  return payload;
}

}  // namespace

std::optional<WorkerEvent> SimLink::next_event() {
  state_.touch(world_.events.now());
  return state_.poll();
}

Status SimLink::send(const Rollout& rollout) {
  if (state_.session().link() == Link::kOver) {
    return Error{Reason::kClosed, "the session is over"};
  }
  if (!state_.rollouts().has_room()) {
    return Error{Reason::kTimeout, "no room"};
  }
  if (plan_.never_answers) {
    return Success{};
  }
  const std::string id = std::exchange(last_id_, rollout.rollout_id);
  if (id.empty() || !world_.random.chance(plan_.spoils / 2)) {
    return state_.send_rollout(rollout);
  }
  world_.faults.count("rollout_id used twice");
  world_.judge.spoiled(id);
  Rollout twice = rollout;
  twice.rollout_id = id;
  if (world_.recipe) {
    world_.recipe->judge().renamed(rollout, id);
  }
  return state_.send_rollout(twice);
}

SimWorker::SimWorker(World& world, SimTrainer& trainer, const WorkerPlan& plan,
                     std::string worker_id, SessionWorld* sessions)
    : world_(world),
      trainer_(trainer),
      plan_(plan),
      worker_id_(std::move(worker_id)),
      server_(world, plan_, worker_id_),
      sessions_(sessions) {
  if (plan_.sessions) {
    harness_ = std::make_unique<SimHarness>(
        world_, sessions_->judge, *plan_.sessions,
        [this](const ClientRequest& request, const Respond& respond) { arrive(request, respond); });
  }
}

SimWorker::Process::Process(World& world, const WorkerPlan& plan, SimServer& s,
                            SessionWorld* shared, const WorkerOptions& options, SimFetcher::Ask ask,
                            uint64_t life)
    : fetcher(std::make_shared<SimFetcher>(std::move(ask))),
      state(options, {fetcher}),
      link(state, world, plan),
      model(world, plan, options.worker_id),
      server(s) {
  state.touch(world.events.now());
  const rl::WorkerSettings settings{options.worker_id, {}, [] { return false; }};
  const auto now = [&world] { return world.events.now(); };
  if (plan.sessions) {
    sessions = std::make_unique<SessionSide>(world, shared->judge, shared->texts, *plan.sessions,
                                             link, options.worker_id, life);
  } else if (plan.with_server) {
    served.emplace(link, server, settings, plan.server, now);
  } else {
    embedded.emplace(link, model, settings, plan.batch_samples, now);
  }
}

milliseconds SimWorker::Process::turn() {
  return sessions ? sessions->turn() : embedded ? embedded->turn() : served->turn();
}
bool SimWorker::Process::is_over() const {
  return sessions ? sessions->is_over() : embedded ? embedded->is_over() : served->is_over();
}
Span SimWorker::Process::take_busy() {
  return sessions ? sessions->take_busy() : embedded ? model.take_busy() : server.take_busy();
}

void SimWorker::start() {
  if (over_ || process_) {
    return;
  }
  ++life_;
  process_ = std::make_unique<Process>(
      world_, plan_, server_, sessions_, options_of(plan_, worker_id_, life_),
      [this](const Header& header, const ChunkBody& body) { ask_for_chunk(header, body); }, life_);
  inbox_.clear();
  busy_until_ = stopped_until_ = {};
  world_.trace(worker_id_ + ": starts");
  tick();
  schedule_turn(Span{});
  if (harness_ && life_ == 1) {
    harness_->start();
  }
}

void SimWorker::crash(Span away) {
  if (!process_) {
    return;
  }
  ++life_;
  process_.reset();
  server_.drop_requests();
  connected_ = false;
  world_.network.close(std::exchange(identity_, ""));
  if (!over_) {
    world_.events.after(away, [this] { start(); });
  }
}

void SimWorker::damage_next_install() {
  if (process_ && process_->sessions) {
    process_->sessions->model().damage_next_install();
  } else if (process_) {
    process_->model.damage_next_install();
  }
}

void SimWorker::restart_server(Span away) {
  if (process_ && process_->sessions) {
    process_->sessions->model().restart_server();
  }
  server_.restart(away);
}

void SimWorker::end_harness() {
  if (process_ && process_->sessions) {
    process_->sessions->maker().end_harness();
  }
}

void SimWorker::kill_agent(Span away) {
  if (harness_) {
    harness_->kill_one(away);
  }
}

void SimWorker::heal() {
  plan_.hangs = 0;
  if (harness_) {
    harness_->heal();
  }
}

// Threads of HTTP serve while the loop is busy, but not in a process that is stopped.
void SimWorker::arrive(const ClientRequest& request, const Respond& respond) {
  if (!process_) {
    return respond({over_ ? 410 : 0});
  }
  if (world_.events.now() >= stopped_until_) {
    return process_->sessions->http().arrive(request, respond);
  }
  world_.events.at(stopped_until_, [this, life = life_, request, respond] {
    if (life == life_) {
      arrive(request, respond);
    }
  });
}

void SimWorker::schedule_tick() {
  world_.events.after(kTick, [this, life = life_] {
    if (life == life_) {
      tick();
    }
  });
}

void SimWorker::tick() {
  if (world_.events.now() >= stopped_until_) {
    for (; !inbox_.empty(); inbox_.pop_front()) {
      process_->state.on_message(inbox_.front().parse(), world_.events.now());
    }
    round();
  }
  schedule_tick();
}

void SimWorker::round() {
  fetch_weights();
  process_->state.tick(world_.events.now());
  follow_link();
  flush();
  if (process_->state.has_event()) {
    schedule_turn(Span{});
  }
}

void SimWorker::follow_link() {
  WorkerState& state = process_->state;
  const WorkerSession& session = state.session();
  if (session.link() == Link::kOver) {
    return;
  }
  if (!identity_.empty() && opened_for_ != session.incarnation()) {
    world_.network.close(std::exchange(identity_, ""));
    connected_ = false;
  }
  if (identity_.empty() && world_.events.now() >= session.next_attempt()) {
    opened_for_ = session.incarnation();
    identity_ = session.identity();
    state.open_session();
    world_.network.open(identity_, worker_id_, *this);
  }
}

void SimWorker::flush() {
  WorkerSession& session = process_->state.session();
  while (connected_ && session.front() != nullptr) {
    if (!world_.network.to_trainer(identity_, next_packet())) {
      break;
    }
    session.sent_front(world_.events.now());
  }
}

// An IMAGE that says the hash of another image than it holds.
Packet SimWorker::other_pixels(const Message& message) {
  world_.faults.count("image of other pixels");
  Image lie = picture(world_.random.between(0, plan_.pictures - 1));
  const Image truth = decode_image(message).value();
  lie.head = truth.head;
  if (lie.rgb.bytes.size() != truth.rgb.bytes.size()) {
    lie.rgb = Buffer::own(std::vector<std::byte>(truth.rgb.bytes.size()));
  }
  const Payload payload = encode_image(lie);
  return {pack_header(message.header(), payload), payload.buffers};
}

Packet SimWorker::next_packet() {
  const WorkerSession& session = process_->state.session();
  Packet packet{session.front_header(), session.front()->buffers};
  if (session.front()->type == MessageType::kImage && world_.random.chance(plan_.spoils)) {
    const auto message = packet.parse();
    return other_pixels(message.value());
  }
  const bool spoils =
      session.front()->type == MessageType::kRollout && world_.random.chance(plan_.spoils);
  if (!spoils) {
    return packet;
  }
  const auto message = packet.parse();
  const std::string id = message.value().field<std::string>("rollout_id").value();
  world_.faults.count("unreadable rollout");
  world_.judge.spoiled(id);
  packet.header = pack_header(message.value().header(),
                              spoiled(*session.front(), id, world_.random.between(0, 2)));
  return packet;
}

void SimWorker::fetch_weights() {
  if (plan_.never_stages) {
    return;
  }
  while (process_->state.fetch_weights(world_.events.now())) {
  }
}

void SimWorker::ask_for_chunk(const Header& header, const ChunkBody& request) {
  const auto delay = world_.network.bulk_delay(worker_id_);
  if (!delay) {
    return;  // lost: it is asked for again
  }
  world_.events.after(
      *delay,
      [this, life = life_, incarnation = process_->state.session().incarnation(), header, request] {
        auto reply = trainer_.answer_chunk(header, request);
        const auto back = world_.network.bulk_delay(worker_id_);
        if (!reply || !back) {
          return;
        }
        world_.events.after(*back, [this, life, incarnation, reply = std::move(*reply)]() mutable {
          on_chunk(life, incarnation, std::move(reply));
        });
      });
}

Result<FetchState> SimFetcher::fetch(WeightReceiver& receiver,
                                     WeightReceiver::Clock::time_point now) {
  const bool answered = !answers_.empty();
  if (answered) {
    const Packet packet = std::move(answers_.front());
    answers_.pop_front();
    if (Status s = accept_answer(receiver, packet.parse(), session_.header.trainer_term); !s) {
      return s.error();
    }
  }
  for (const ChunkBody& request : receiver.requests(now)) {
    ask_(session_.header, request);
  }
  return answered ? FetchState::kMoved : FetchState::kWaiting;
}

void SimWorker::on_chunk(uint64_t life, uint64_t incarnation, Packet packet) {
  if (life != life_ || world_.events.now() < stopped_until_ ||
      process_->state.session().incarnation() != incarnation) {
    return;  // it came for sockets that are closed
  }
  if (world_.random.chance(0.002) && !packet.buffers.empty() && !packet.buffers[0].bytes.empty()) {
    world_.faults.count("damaged chunk");
    auto* bytes = const_cast<std::byte*>(packet.buffers[0].bytes.data());
    bytes[0] ^= std::byte{1};
  }
  process_->fetcher->on_answer(std::move(packet));
  round();
}

void SimWorker::on_connected() {
  connected_ = true;
  if (world_.events.now() >= stopped_until_) {
    flush();
  }
}

void SimWorker::on_closed() {
  connected_ = false;
  if (process_) {
    process_->state.session().on_closed();
  }
}

void SimWorker::on_packet(Packet packet) {
  if (world_.events.now() < stopped_until_ || !inbox_.empty()) {
    inbox_.push_back(std::move(packet));
    return;
  }
  process_->state.on_message(packet.parse(), world_.events.now());
  round();
}

void SimWorker::schedule_turn(Span after) {
  const Time at = std::max({world_.events.now() + after, busy_until_, stopped_until_});
  world_.events.at(at, [this, life = life_, number = ++turns_] {
    if (life == life_ && number == turns_) {
      turn();
    }
  });
}

void SimWorker::turn() {
  if (world_.events.now() < stopped_until_) {
    return schedule_turn(Span{});
  }
  try {
    const Span wait = process_->turn();
    busy_until_ = world_.events.now() + process_->take_busy();
    flush();
    if (process_->is_over()) {
      world_.trace(worker_id_ + ": the run is over");
      over_ = true;
      return end_process(Span{});
    }
    // A server's answers are looked for every 2 ms; that often costs time and shows nothing more.
    schedule_turn(std::max<Span>(wait, plan_.sessions ? milliseconds(25) : milliseconds(10)));
  } catch (const Breach&) {
    throw;
  } catch (const std::runtime_error& error) {
    world_.trace(worker_id_ + ": ends with: " + error.what());
    end_process(kRelaunch);
  }
}

// The process ends by itself.
void SimWorker::end_process(Span away) {
  if (process_->sessions) {
    process_->sessions->leave();
  }
  crash(away);
}

std::string SimWorker::summary() const {
  if (!process_) {
    return worker_id_ + ": no process";
  }
  return worker_id_ + ": link " +
         std::to_string(static_cast<int>(process_->state.session().link())) +
         (connected_ ? ", connected" : "") + ", pending " +
         std::to_string(process_->state.rollouts().size());
}

}  // namespace ringside::simulator
