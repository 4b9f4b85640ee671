#include "rollout_bridge/worker/worker_session.h"

#include <algorithm>

namespace ringside::bridge {
namespace {

constexpr std::chrono::milliseconds kBackoffMin{100};
constexpr std::chrono::milliseconds kWelcomeTimeout{5000};

uint64_t from_clock() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

void ReconnectTimer::schedule(Clock::time_point now) {
  const auto pause = kBackoffMin * (1 << std::min(attempts_, 10));
  next_attempt_ = now + std::min<std::chrono::milliseconds>(pause, longest_);
  ++attempts_;
}

WorkerSession::WorkerSession(Options options)
    : run_id_(std::move(options.run_id)),
      worker_id_(std::move(options.worker_id)),
      reconnects_(options.backoff_max),
      incarnation_(options.incarnation != 0 ? options.incarnation : from_clock()) {}

Header WorkerSession::header(uint64_t seq) const {
  return {MessageType::kError, run_id_, trainer_term_, worker_id_, incarnation_, seq};
}

void WorkerSession::open(Payload hello) {
  link_ = Link::kJoining;
  hello_sent_ = false;
  queue(std::move(hello));
}

void WorkerSession::join(const Header& header, const WelcomeBody& welcome) {
  run_id_ = header.run_id;
  trainer_term_ = header.trainer_term;
  heartbeat_ = std::chrono::milliseconds(welcome.heartbeat_ms);
  timeout_ = std::chrono::milliseconds(welcome.timeout_ms);
  link_ = Link::kJoined;
  reconnects_.reset();
  heartbeat_soon();
}

void WorkerSession::disconnect(Clock::time_point now) {
  link_ = Link::kAway;
  ++incarnation_;
  reconnects_.schedule(now);
  received_seq_ = sent_seq_ = 0;
  outbox_.clear();
}

void WorkerSession::leave(Payload bye) {
  leaving_ = true;
  if (!is_joined()) {
    return end();  // there is no session to send BYE on
  }
  queue(std::move(bye));
}

void WorkerSession::on_closed() {
  if (leaving_) {
    end();  // no trainer is left to answer BYE
  }
}

std::optional<std::string> WorkerSession::count(uint64_t seq) {
  if (seq != received_seq_ + 1) {
    return "received seq " + std::to_string(seq) + ", expected " +
           std::to_string(received_seq_ + 1);
  }
  ++received_seq_;
  return std::nullopt;
}

std::optional<std::string> WorkerSession::silence(Clock::time_point now) const {
  if (link_ == Link::kJoining && hello_sent_ && now - last_message_ > kWelcomeTimeout) {
    return "no WELCOME";
  }
  const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_message_);
  if (is_joined() && silent > timeout_) {
    return "no message for " + std::to_string(silent.count()) + " ms";
  }
  return std::nullopt;
}

bool WorkerSession::takes_heartbeat(Clock::time_point now) {
  if (now - last_heartbeat_ < heartbeat_) {
    return false;
  }
  last_heartbeat_ = now;
  return true;
}

std::string WorkerSession::front_header() const {
  return pack_header(header(sent_seq_ + 1), outbox_.front());
}

void WorkerSession::sent_front(Clock::time_point now) {
  if (outbox_.front().type == MessageType::kHello) {
    hello_sent_ = true;
    last_message_ = now;
  }
  ++sent_seq_;
  outbox_.pop_front();
}

}  // namespace ringside::bridge
