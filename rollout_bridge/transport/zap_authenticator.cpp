#include "rollout_bridge/transport/zap_authenticator.h"

#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace ringside::bridge {
namespace {

constexpr const char* kHandlerAddress = "inproc://zeromq.zap.01";
constexpr const char* kDomain = "ringside";
constexpr std::chrono::milliseconds kPoll{500};
constexpr std::size_t kMaxCauses = 256;
constexpr std::size_t kMaxDenials = 64;
constexpr std::size_t kKeyBytes = 32;
constexpr int kHandshakeMs = 10000;
constexpr int kWatched = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
// Frames of a request: version, request id, domain, address, routing id, mechanism, the client's
// key.
constexpr std::size_t kRequestFrames = 7;

std::string z85(const zmq::message_t& key) {
  std::array<char, 41> text{};
  if (key.size() != kKeyBytes) {
    return "";
  }
  zmq_z85_encode(text.data(), static_cast<const uint8_t*>(key.data()), kKeyBytes);
  return text.data();
}

std::vector<zmq::message_t> receive_all(zmq::socket_t& socket) {
  std::vector<zmq::message_t> parts;
  bool more = true;
  while (more) {
    zmq::message_t part;
    if (!socket.recv(part, zmq::recv_flags::dontwait)) {
      break;
    }
    more = part.more();
    parts.push_back(std::move(part));
  }
  return parts;
}

// Description of a monitor event, as far as libzmq reports it.
std::string cause_of(uint16_t kind, uint32_t value) {
  if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) {
    return "the other side left the handshake";
  }
  switch (value) {
    case ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
      return "no CURVE";
    case ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
      return "sealed for another trainer's key";
    case ZMQ_PROTOCOL_ERROR_ZMTP_UNSPECIFIED:  // a cookie that is not this connection's
      return "a handshake of another connection, as a replay has";
    default:
      return "invalid handshake, code " + std::to_string(value);
  }
}

}  // namespace

ZapAuthenticator::ZapAuthenticator(zmq::context_t& context, const CurveServer& keys)
    : context_(context), secret_key_(keys.secret_key), handler_(context, zmq::socket_type::rep) {
  (void)public_key_of(secret_key_);  // throws when it is not a key
  for (const AllowedKey& allowed : keys.allowed) {
    if (!is_key(allowed.public_key)) {
      throw std::invalid_argument("CurveServer: the allowed key '" + allowed.name +
                                  "' is not 40 characters of Z85");
    }
    names_.emplace(allowed.public_key, allowed.name);
  }
  handler_.set(zmq::sockopt::linger, 0);
  handler_.bind(kHandlerAddress);
  thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
}

ZapAuthenticator::~ZapAuthenticator() {
  thread_.request_stop();
  waker_.wake();
  thread_.join();
}

void ZapAuthenticator::guard(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::curve_server, true);
  socket.set(zmq::sockopt::curve_secretkey, secret_key_);
  socket.set(zmq::sockopt::zap_domain, kDomain);
  socket.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
  const std::lock_guard lock(mutex_);
  const std::string address = "inproc://ringside.gate." + std::to_string(guarded_++);
  if (zmq_socket_monitor(socket.handle(), address.c_str(), kWatched) != 0) {
    throw zmq::error_t();
  }
  zmq::socket_t monitor(context_, zmq::socket_type::pair);
  monitor.set(zmq::sockopt::linger, 0);
  monitor.connect(address);
  arriving_.push_back(std::move(monitor));
  waker_.wake();
}

uint64_t ZapAuthenticator::denied() const {
  const std::lock_guard lock(mutex_);
  return denied_;
}

std::vector<std::string> ZapAuthenticator::drain_denials() {
  const std::lock_guard lock(mutex_);
  return std::exchange(denials_, {});
}

void ZapAuthenticator::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void ZapAuthenticator::loop(const std::stop_token& stop) {
  try {
    while (!stop.stop_requested()) {
      adopt_monitors();
      std::vector<zmq::pollitem_t> items = {{handler_.handle(), 0, ZMQ_POLLIN, 0},
                                            {nullptr, waker_.fd(), ZMQ_POLLIN, 0}};
      for (zmq::socket_t& monitor : monitors_) {
        items.push_back({monitor.handle(), 0, ZMQ_POLLIN, 0});
      }
      zmq::poll(items, kPoll);
      waker_.clear();
      answer();
      for (zmq::socket_t& monitor : monitors_) {
        listen(monitor);
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

void ZapAuthenticator::adopt_monitors() {
  const std::lock_guard lock(mutex_);
  for (zmq::socket_t& monitor : arriving_) {
    monitors_.push_back(std::move(monitor));
  }
  arriving_.clear();
}

// Answers one request a call: a REP socket receives the next after the answer.
void ZapAuthenticator::answer() {
  const std::vector<zmq::message_t> request = receive_all(handler_);
  if (request.empty()) {
    return;
  }
  const std::string id = request.size() > 1 ? request[1].to_string() : "";
  const bool known_form = request.size() == kRequestFrames &&
                          request[0].to_string_view() == "1.0" &&
                          request[5].to_string_view() == "CURVE";
  const std::string key = known_form ? z85(request[6]) : "";
  const auto found = names_.find(key);
  const bool allowed = found != names_.end();
  if (!allowed) {
    const std::string from = known_form ? request[3].to_string() : "?";
    deny(key, "connection from " + from + " refused: its key " + key + " is not in the allow-list");
  }
  const std::array<std::string, 6> reply = {
      "1.0", id, allowed ? "200" : "400", allowed ? "OK" : "unknown key", allowed ? key : "", ""};
  for (std::size_t i = 0; i < reply.size(); ++i) {
    handler_.send(zmq::buffer(reply[i]),
                  i + 1 < reply.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
}

void ZapAuthenticator::listen(zmq::socket_t& monitor) {
  while (true) {
    const std::vector<zmq::message_t> event = receive_all(monitor);
    if (event.empty()) {
      return;
    }
    uint16_t kind = 0;
    uint32_t value = 0;
    if (event[0].size() != sizeof kind + sizeof value) {
      continue;
    }
    std::memcpy(&kind, event[0].data(), sizeof kind);
    std::memcpy(&value, static_cast<const char*>(event[0].data()) + sizeof kind, sizeof value);
    if ((kind & kWatched) == 0) {
      continue;
    }
    const std::string cause = cause_of(kind, value);
    deny(cause,
         "connection to " + (event.size() > 1 ? event[1].to_string() : "?") + " refused: " + cause);
  }
}

void ZapAuthenticator::deny(const std::string& cause, const std::string& detail) {
  const std::lock_guard lock(mutex_);
  ++denied_;
  if (causes_.size() >= kMaxCauses && !causes_.contains(cause)) {
    return;
  }
  const uint64_t times = ++causes_[cause];
  if (!std::has_single_bit(times) || denials_.size() >= kMaxDenials) {
    return;
  }
  denials_.push_back(detail + (times > 1 ? ", " + std::to_string(times) + " times" : ""));
}

std::string user_of(const zmq::message_t& message) {
  // On a plain connection the property is usually absent; that is not an error.
  const char* user = zmq_msg_gets(const_cast<zmq_msg_t*>(message.handle()), "User-Id");
  return user == nullptr ? "" : user;
}

}  // namespace ringside::bridge
