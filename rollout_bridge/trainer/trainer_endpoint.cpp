#include "rollout_bridge/trainer/trainer_endpoint.h"

#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "rollout_bridge/trainer/trainer_state.h"
#include "rollout_bridge/transport/zap_authenticator.h"
#include "rollout_bridge/transport/zmq_io.h"
#include "rollout_bridge/weights/shared_transport.h"
#include "rollout_bridge/weights/weight_server.h"

namespace ringside::bridge {
namespace {

constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kRetrySend{5};
constexpr int kMessagesPerRound = 64;  // then the tick and sends run again
constexpr std::chrono::milliseconds kCloseInDestructor{2000};

const TrainerOptions& checked(const TrainerOptions& o) {
  if (o.run_id.empty()) {
    throw std::invalid_argument("TrainerOptions: run_id is empty");
  }
  if (o.trainer_term < 0) {
    throw std::invalid_argument("TrainerOptions: trainer_term " + std::to_string(o.trainer_term) +
                                ", expected >= 0 (see next_trainer_term)");
  }
  if (o.journal.directory.empty()) {
    throw std::invalid_argument("TrainerOptions: journal.directory is empty");
  }
  if (o.max_queued_rollouts < 1 || o.max_attempts < 1 || o.max_workers < 1 || o.window_bytes < 1 ||
      o.heartbeat_interval.count() < 1 || o.worker_timeout <= o.heartbeat_interval) {
    throw std::invalid_argument("TrainerOptions: capacities must be >= 1 and worker_timeout (" +
                                std::to_string(o.worker_timeout.count()) +
                                " ms) above heartbeat_interval (" +
                                std::to_string(o.heartbeat_interval.count()) + " ms)");
  }
  if (o.assignment_timeout.count() < 1) {
    throw std::invalid_argument("TrainerOptions: assignment_timeout " +
                                std::to_string(o.assignment_timeout.count()) +
                                " ms, expected at least 1 ms");
  }
  if (o.run_id.size() > o.limits.max_string_bytes) {
    throw std::invalid_argument("TrainerOptions: run_id of " + std::to_string(o.run_id.size()) +
                                " bytes, limit " + std::to_string(o.limits.max_string_bytes));
  }
  const uint64_t largest =
      o.limits.max_rollout_image_bytes + uint64_t{o.limits.max_images} * o.limits.max_header_bytes;
  if (o.images.worker_images < static_cast<int64_t>(o.limits.max_images) ||
      o.images.worker_bytes < largest) {
    throw std::invalid_argument(
        "TrainerOptions: images of " + std::to_string(o.images.worker_images) + " and " +
        std::to_string(o.images.worker_bytes) +
        " bytes of a worker, expected room for one rollout: " +
        std::to_string(o.limits.max_images) + " and " + std::to_string(largest));
  }
  check_bind_address(o.rollout_address, o.curve.has_value());
  check_bind_address(o.weights_address, o.curve.has_value());
  return o;
}

std::unique_ptr<ZapAuthenticator> make_authenticator(zmq::context_t& context,
                                                     const std::optional<CurveServer>& curve) {
  return curve ? std::make_unique<ZapAuthenticator>(context, *curve) : nullptr;
}

}  // namespace

struct TrainerEndpoint::Impl {
  explicit Impl(const TrainerOptions& o)
      : options(checked(o)),
        authenticator(make_authenticator(context, o.curve)),
        wire(context, o.weights_address, o.run_id, o.trainer_term, o.limits, authenticator.get()),
        state(o, wire.address()),
        router(bind_router(context, o.rollout_address,
                           {.max_frame_bytes = o.limits.max_frame_bytes}, authenticator.get())),
        address(bound_address(router)),
        thread([this](const std::stop_token& stop) { loop(stop); }) {}

  ~Impl() {
    thread.request_stop();
    waker.wake();
    if (thread.joinable()) {
      thread.join();
    }
  }

  void loop(const std::stop_token& stop) {
    try {
      while (!stop.stop_requested()) {
        round();
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
    changed.notify_all();
  }

  void round() {
    zmq::pollitem_t items[] = {{router.handle(), 0, ZMQ_POLLIN, 0},
                               {nullptr, waker.fd(), ZMQ_POLLIN, 0}};
    zmq::poll(items, 2, stuck ? kRetrySend : kTick);
    waker.clear();
    for (int i = 0; i < kMessagesPerRound && receive(router, true, options.limits, incoming); ++i) {
      const auto message = incoming.parse(options.limits);  // hashes the frames: outside the lock
      const std::lock_guard lock(mutex);
      ++messages;
      state.on_message(incoming.identity, incoming.user, message, Clock::now());
    }
    {
      const std::lock_guard lock(mutex);
      if (authenticator) {
        state.on_denials(authenticator->drain_denials());
      }
      state.tick(Clock::now());
      flush();
    }
    changed.notify_all();
  }

  // Sends waiting messages as far as the sockets accept them. Called under the mutex.
  void flush() {
    auto& strays = state.strays();
    for (; !strays.empty(); strays.pop_front()) {
      const auto& [identity, out] = strays.front();
      send(router, &identity, out.header, out.payload);  // best effort
    }
    stuck = false;
    std::vector<std::string> gone;
    for (auto& [identity, session] : state.sessions()) {
      while (!session.outbox.empty()) {
        const Outgoing& out = session.outbox.front();
        const SendResult result = send(router, &identity, out.header, out.payload);
        if (result == SendResult::kUnreachable) {
          gone.push_back(identity);
        }
        if (result == SendResult::kFull) {
          stuck = true;
        }
        if (result != SendResult::kSent) {
          break;
        }
        session.outbox.pop_front();
      }
    }
    for (const std::string& identity : gone) {
      state.on_unreachable(identity);
    }
    state.sweep();
  }

  std::array<WeightSender*, 2> senders() { return {&wire, &shared}; }

  void check() {  // called under the mutex
    if (failure) {
      std::rethrow_exception(failure);
    }
    wire.check();
    if (authenticator) {
      authenticator->check();
    }
  }

  // Runs `action` on the state under the mutex, then wakes the thread to send the resulting
  // messages. The wake comes after the unlock, because the thread would otherwise only wait for the
  // mutex.
  template <class Action>
  auto act(Action action) {
    const struct WakeAfter {
      Waker& waker;
      ~WakeAfter() { waker.wake(); }
    } wake_after{waker};
    const std::lock_guard lock(mutex);
    check();
    return action();
  }

  // The result of `attempt` on the state: of the first call that returns one, or of the last one
  // when `timeout` has passed. It is called again after every round of the thread.
  template <class Attempt>
  auto await(std::chrono::milliseconds timeout, Attempt attempt) {
    const auto deadline = Clock::now() + timeout;
    std::unique_lock lock(mutex);
    while (true) {
      check();
      auto result = attempt();
      if (result || closed || Clock::now() >= deadline) {
        return result;
      }
      changed.wait_until(lock, deadline);
    }
  }

  TrainerOptions options;
  zmq::context_t context;
  Waker waker;
  std::mutex mutex;                 // guards state, failure, messages, closed
  std::condition_variable changed;  // after every round
  std::unique_ptr<ZapAuthenticator>
      authenticator;  // null: no CURVE; outlives the sockets it guards
  WeightServer wire;
  SharedSender shared;
  TrainerState state;
  std::exception_ptr failure;
  uint64_t messages = 0;
  bool closed = false;
  zmq::socket_t router;  // used by the thread only, as are incoming and stuck
  std::string address;
  Incoming incoming;
  bool stuck = false;
  std::jthread thread;
};

TrainerEndpoint::TrainerEndpoint(TrainerOptions options) : impl_(std::make_unique<Impl>(options)) {}

TrainerEndpoint::~TrainerEndpoint() { close(kCloseInDestructor); }

const std::string& TrainerEndpoint::rollout_address() const { return impl_->address; }
const std::string& TrainerEndpoint::weights_address() const { return impl_->wire.address(); }

void TrainerEndpoint::publish(std::shared_ptr<const WeightSnapshot> snapshot) {
  if (!snapshot) {
    throw std::invalid_argument("publish: the snapshot is null");
  }
  OfferBody where;
  for (const WeightSender* sender : impl_->senders()) {
    sender->describe(*snapshot, where);
  }
  // Freed after the offers are queued.
  std::vector<std::shared_ptr<const WeightSnapshot>> no_longer_served;
  impl_->act([&] {
    impl_->state.publish(snapshot, std::move(where));
    for (WeightSender* sender : impl_->senders()) {
      no_longer_served.push_back(sender->serve(snapshot));
    }
  });
}

void TrainerEndpoint::open_steps(int64_t next_step, int64_t last_step) {
  impl_->act([&] { impl_->state.open_steps(next_step, last_step); });
}

void TrainerEndpoint::checkpointed(int64_t step) {
  impl_->act([&] { impl_->state.checkpointed(step); });
}

std::optional<std::vector<FlatRollout>> TrainerEndpoint::take(int64_t step,
                                                              std::chrono::milliseconds timeout) {
  bool has_news = true;  // only an arrival can complete the step
  return impl_->await(timeout, [&]() -> std::optional<std::vector<FlatRollout>> {
    if (impl_->state.collect()) {
      impl_->waker.wake();
      has_news = true;
    }
    return std::exchange(has_news, false) ? impl_->state.take(step) : std::nullopt;
  });
}

void TrainerEndpoint::open_evaluation(int64_t prompts, int32_t samples) {
  impl_->act([&] { impl_->state.open_evaluation(prompts, samples); });
}

std::optional<std::vector<HeldOutSample>> TrainerEndpoint::take_evaluation(
    std::chrono::milliseconds timeout) {
  return impl_->await(timeout, [&] {
    if (impl_->state.collect()) {  // what arrives for a step meanwhile takes no room
      impl_->waker.wake();
    }
    return impl_->state.take_evaluation();
  });
}

void TrainerEndpoint::end_evaluation() {
  impl_->act([&] { impl_->state.end_evaluation(); });
}

EvaluationProgress TrainerEndpoint::evaluation() const {
  return impl_->act([&] { return impl_->state.evaluation(); });
}

std::vector<WorkerStatus> TrainerEndpoint::workers() const {
  return impl_->act([&] { return impl_->state.workers(); });
}

BridgeCounters TrainerEndpoint::counters() const {
  return impl_->act([&] {
    BridgeCounters counters = impl_->state.counters();
    counters.weight_bytes += impl_->wire.bytes_served();
    counters.weight_requests = impl_->wire.requests();
    counters.weight_rejected = impl_->wire.rejected();
    counters.messages = impl_->messages;
    if (impl_->authenticator) {
      counters.denied = impl_->authenticator->denied();
    }
    return counters;
  });
}

std::vector<BridgeEvent> TrainerEndpoint::drain_events() {
  return impl_->act([&] { return impl_->state.drain_events(); });
}

void TrainerEndpoint::end(const std::string& reason) {
  impl_->act([&] { impl_->state.end(reason); });
}

void TrainerEndpoint::close(std::chrono::milliseconds deadline) {
  const auto until = Clock::now() + deadline;
  {
    std::unique_lock lock(impl_->mutex);
    if (impl_->closed) {
      return;
    }
    impl_->waker.wake();
    impl_->changed.wait_until(
        lock, until, [&] { return impl_->failure != nullptr || !impl_->state.has_output(); });
    impl_->closed = true;
  }
  impl_->changed.notify_all();
  impl_->thread.request_stop();
  impl_->waker.wake();
  impl_->thread.join();
}

}  // namespace ringside::bridge
