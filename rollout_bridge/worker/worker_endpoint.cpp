#include "rollout_bridge/worker/worker_endpoint.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "rollout_bridge/transport/zmq_io.h"
#include "rollout_bridge/weights/shared_transport.h"
#include "rollout_bridge/weights/wire_fetcher.h"
#include "rollout_bridge/worker/worker_state.h"

namespace ringside::bridge {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kLook{1000};
constexpr int kMessagesPerRound = 64;

const WorkerOptions& checked(const WorkerOptions& o) {
  if (o.worker_id.empty() || o.worker_id.size() > 128 || o.rollout_address.empty()) {
    throw std::invalid_argument("WorkerOptions: worker_id '" + o.worker_id +
                                "' (1 to 128 bytes) and "
                                "rollout_address '" +
                                o.rollout_address + "' must be set");
  }
  if (o.capacity_samples < 1 || o.max_pending < 1 || o.chunk_bytes < 1 || o.chunk_window < 1 ||
      o.stage_tries < 1 || o.chunk_bytes > o.limits.max_chunk_bytes) {
    throw std::invalid_argument("WorkerOptions: capacities must be >= 1, chunk_bytes " +
                                std::to_string(o.chunk_bytes) +
                                " <= " + std::to_string(o.limits.max_chunk_bytes));
  }
  if (o.curve && (!is_key(o.curve->server_key) || !is_key(o.curve->own.public_key) ||
                  public_key_of(o.curve->own.secret_key) != o.curve->own.public_key)) {
    throw std::invalid_argument(
        "WorkerOptions: curve needs the trainer's public key and a pair of one's own, 40 "
        "characters "
        "of Z85 each");
  }
  return o;
}

}  // namespace

struct WorkerEndpoint::Impl {
  explicit Impl(const WorkerOptions& o)
      : options(checked(o)),
        wire(std::make_shared<WireFetcher>(context,
                                           WireFetcher::Options{o.limits, o.backoff_max, o.curve})),
        state(o, transports(o)),
        thread([this](const std::stop_token& stop) { loop(stop); }) {}

  ~Impl() {
    thread.request_stop();
    waker.wake();
    if (thread.joinable()) {
      thread.join();
    }
  }

  // Shared memory first: it is faster and leaves the sockets to others.
  WeightTransfer::Transports transports(const WorkerOptions& o) {
    WeightTransfer::Transports ways;
    if (o.shared_memory) {
      ways.push_back(std::make_shared<SharedFetcher>());
    }
    ways.push_back(wire);
    return ways;
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
    close_sockets();
    changed.notify_all();
  }

  void close_sockets() {
    monitor.reset();
    control.reset();
    wire->close();
  }

  void round() {
    wait();
    follow_connection();
    for (int i = 0;
         control && i < kMessagesPerRound && receive(*control, false, options.limits, incoming);
         ++i) {
      const auto message = incoming.parse(options.limits);
      const std::lock_guard lock(mutex);
      state.on_message(message, Clock::now());
    }
    fetch_weights();
    {
      const std::lock_guard lock(mutex);
      const auto now = Clock::now();
      state.tick(now);
      follow_link(now);
      flush(now);
    }
    changed.notify_all();
  }

  void follow_connection() {
    while (const auto event = monitor ? monitor->next() : std::nullopt) {
      const std::lock_guard lock(mutex);
      note_connection(*event);
      if (*event == ConnectionEvent::kClosed) {
        state.session().on_closed();
      }
    }
  }

  // Keeps the event that explains why there is no session. A refusal is followed by a close, and
  // every close by a reconnect attempt that is reported in advance; these two are ignored.
  void note_connection(ConnectionEvent event) {
    attempts = event == ConnectionEvent::kNotReached ? attempts + 1 : 0;
    const bool is_news =
        event == ConnectionEvent::kReady ||
        (event == ConnectionEvent::kNotReached ? attempts > 1
                                               : connection != ConnectionEvent::kRefused);
    if (is_news) {
      connection = event;
    }
  }

  // A few chunks at a time, so that neither the owner nor control messages wait for gigabytes.
  void fetch_weights() {
    more_to_fetch = true;
    for (int i = 0; i < kMessagesPerRound && more_to_fetch; ++i) {
      const std::lock_guard lock(mutex);
      more_to_fetch = state.fetch_weights(Clock::now());
    }
  }

  void wait() {
    std::vector<zmq::pollitem_t> items = {{nullptr, waker.fd(), ZMQ_POLLIN, 0}};
    if (control) {
      items.push_back({control->handle(), 0, ZMQ_POLLIN, 0});
    }
    if (const auto item = state.is_fetching() ? wire->pollitem() : std::nullopt) {
      items.push_back(*item);
    }
    zmq::poll(items, more_to_fetch ? std::chrono::milliseconds::zero() : kTick);
    waker.clear();
  }

  // Opens and closes sockets according to the session's state. Called under the mutex. Every
  // session has its own sockets, so a message of an old session cannot reach the next one.
  void follow_link(Clock::time_point now) {
    const WorkerSession& session = state.session();
    if (session.link() == Link::kOver) {
      return;
    }
    if (control && opened_for != session.incarnation()) {
      close_sockets();
    }
    if (control && session.link() == Link::kJoining && now >= next_look && moved(now)) {
      state.disconnect("the trainer is at another address", now);
      return;
    }
    if (!control && now >= session.next_attempt()) {
      moved(now);
      opened_for = session.incarnation();
      control = connect_dealer(context, options.rollout_address, session.identity(),
                               {.max_frame_bytes = options.limits.max_frame_bytes},
                               options.backoff_max, options.curve ? &*options.curve : nullptr);
      monitor.emplace(context, *control);
      state.open_session();
    }
  }

  // Looks up the trainer's address. Stores a new one and returns true when it has changed.
  bool moved(Clock::time_point now) {
    next_look = now + kLook;
    const auto found = options.resolve ? options.resolve() : std::nullopt;
    if (!found || *found == options.rollout_address) {
      return false;
    }
    options.rollout_address = *found;
    return true;
  }

  // Sends waiting messages as far as the socket accepts them. Called under the mutex.
  void flush(Clock::time_point now) {
    WorkerSession& session = state.session();
    while (control && session.front() != nullptr) {
      if (bridge::send(*control, nullptr, session.front_header(), *session.front()) !=
          SendResult::kSent) {
        break;
      }
      session.sent_front(now);
    }
  }

  LinkReport report() const {  // called under the mutex
    const bool joined = state.session().is_joined();
    return {joined, options.rollout_address, joined ? "" : why_not_joined()};
  }

  std::string why_not_joined() const {
    if (state.session().next_attempt() == Clock::time_point::max()) {
      return "the trainer ended the session for lack of progress; this worker reconnects when it "
             "makes progress";
    }
    switch (connection) {
      case ConnectionEvent::kReady:
        return "connected, but nobody answers HELLO";
      case ConnectionEvent::kRefused:
        return "the trainer does not let this worker's key in (bridge.curve.allowed_workers)";
      case ConnectionEvent::kConnected:
      case ConnectionEvent::kNoHandshake:
      case ConnectionEvent::kClosed:
        return options.curve
                   ? "the connection is closed before the handshake ends: the trainer has another "
                     "key than bridge.curve.trainer_public says, or none"
                   : "the connection is closed before the handshake ends: the trainer asks for "
                     "CURVE keys (bridge.curve.*), or something else listens there";
      case ConnectionEvent::kNotReached:
        return "nobody takes connections there";
    }
    return "";
  }

  void check() {  // called under the mutex
    if (failure) {
      std::rethrow_exception(failure);
    }
  }

  WorkerOptions options;
  zmq::context_t context;
  Waker waker;
  std::mutex mutex;
  std::condition_variable changed;
  // Used by the thread only, as are the sockets.
  std::shared_ptr<WireFetcher> wire;
  WorkerState state;
  std::exception_ptr failure;
  ConnectionEvent connection = ConnectionEvent::kNotReached;  // the latest
  int attempts = 0;  // connection attempts since the last connection
  std::optional<zmq::socket_t> control;
  std::optional<ConnectionMonitor> monitor;  // of `control`
  bool more_to_fetch = false;                // used by the thread only
  uint64_t opened_for = 0;
  Clock::time_point next_look{};
  Incoming incoming;
  std::jthread thread;
};

WorkerEndpoint::WorkerEndpoint(WorkerOptions options) : impl_(std::make_unique<Impl>(options)) {}

WorkerEndpoint::~WorkerEndpoint() = default;

void WorkerEndpoint::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  impl_->state.touch(Clock::now());
  impl_->changed.wait_for(lock, timeout,
                          [&] { return impl_->failure || impl_->state.has_event(); });
  impl_->check();
  impl_->state.touch(Clock::now());
}

std::optional<WorkerEvent> WorkerEndpoint::next_event() {
  const std::lock_guard lock(impl_->mutex);
  impl_->check();
  impl_->state.touch(Clock::now());
  return impl_->state.poll();
}

std::optional<WorkerEvent> WorkerEndpoint::poll(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    if (auto event = next_event()) {
      return event;
    }
    if (Clock::now() >= deadline) {
      return std::nullopt;
    }
    wait(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
  }
}

bool WorkerEndpoint::has_room() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->state.rollouts().has_room();
}

Status WorkerEndpoint::send(const Rollout& rollout) {
  return send_rollout(rollout, std::chrono::milliseconds::zero());
}

void WorkerEndpoint::set_queue_depth(int64_t samples) {
  const std::lock_guard lock(impl_->mutex);
  impl_->state.set_queue_depth(samples);
}

Status WorkerEndpoint::send_rollout(Rollout rollout, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::unique_lock lock(impl_->mutex);
  while (true) {
    impl_->check();
    impl_->state.touch(Clock::now());
    if (impl_->state.session().link() == Link::kOver) {
      return Error{Reason::kClosed, "the session is over"};
    }
    if (impl_->state.rollouts().has_room()) {
      break;
    }
    if (Clock::now() >= deadline) {
      return Error{Reason::kTimeout, std::to_string(impl_->state.rollouts().size()) +
                                         " rollouts wait for their acknowledgement, limit " +
                                         std::to_string(impl_->options.max_pending)};
    }
    impl_->changed.wait_until(lock, deadline);
  }
  impl_->waker.wake();
  return impl_->state.send_rollout(std::move(rollout));
}

Status WorkerEndpoint::commit_weights(int64_t version, const std::string& root_hash) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check();
  impl_->state.touch(Clock::now());
  impl_->waker.wake();
  return impl_->state.commit_weights(version, root_hash);
}

void WorkerEndpoint::pause() {
  const std::lock_guard lock(impl_->mutex);
  impl_->check();
  impl_->state.touch(Clock::now());
  impl_->state.pause();
  impl_->waker.wake();
}

void WorkerEndpoint::resume() {
  const std::lock_guard lock(impl_->mutex);
  impl_->check();
  impl_->state.touch(Clock::now());
  impl_->state.resume();
  impl_->waker.wake();
}

std::size_t WorkerEndpoint::pending() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->state.rollouts().size();
}

LinkReport WorkerEndpoint::report() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->report();
}

bool WorkerEndpoint::bye(const std::string& reason, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  bool answered = false;
  {
    std::unique_lock lock(impl_->mutex);
    const auto done = [&](auto condition) {
      return impl_->changed.wait_until(lock, deadline, [&] {
        return impl_->failure || impl_->state.session().link() == Link::kOver || condition();
      });
    };
    // After END the trainer accepts no more rollouts and may not answer.
    const bool ended = impl_->state.ended();
    const bool drained = done([&] { return ended || impl_->state.rollouts().size() == 0; });
    if (impl_->state.session().link() != Link::kOver) {
      impl_->state.queue_bye(reason);
    }
    if (impl_->connection != ConnectionEvent::kReady) {
      impl_->state.session().on_closed();
    }
    impl_->waker.wake();
    answered = done([&] { return ended && impl_->state.session().front() == nullptr; }) &&
               drained && !impl_->failure && (ended || impl_->state.rollouts().size() == 0);
  }
  impl_->thread.request_stop();
  impl_->waker.wake();
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
  return answered;
}

}  // namespace ringside::bridge
