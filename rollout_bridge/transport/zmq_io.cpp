#include "rollout_bridge/transport/zmq_io.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "rollout_bridge/transport/curve_keys.h"
#include "rollout_bridge/transport/zap_authenticator.h"

namespace ringside::bridge {
namespace {

constexpr int kHeartbeatMs = 2000;
constexpr int kHeartbeatTimeoutMs = 6000;
constexpr int kReconnectMs = 100;

void set_common(zmq::socket_t& socket, const SocketLimits& limits) {
  socket.set(zmq::sockopt::linger, static_cast<int>(limits.linger.count()));
  socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(limits.max_frame_bytes));
  socket.set(zmq::sockopt::sndhwm, limits.send_high_water_mark);
  socket.set(zmq::sockopt::rcvhwm, limits.receive_high_water_mark);
  socket.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMs);
  socket.set(zmq::sockopt::heartbeat_timeout, kHeartbeatTimeoutMs);
  socket.set(zmq::sockopt::heartbeat_ttl, kHeartbeatTimeoutMs);
}

void release_buffer(void* /*data*/, void* hint) { delete static_cast<Buffer*>(hint); }

zmq::message_t share(const Buffer& buffer) {
  if (buffer.bytes.empty()) {
    return zmq::message_t();
  }
  auto hold = std::make_unique<Buffer>(buffer);
  zmq::message_t message(const_cast<std::byte*>(buffer.bytes.data()), buffer.bytes.size(),
                         release_buffer, hold.get());
  hold.release();  // the I/O thread frees it
  return message;
}

bool is_loopback(const std::string& address) {
  for (const char* prefix : {"ipc://", "inproc://", "tcp://localhost:", "tcp://[::1]:"}) {
    if (address.starts_with(prefix)) {
      return true;
    }
  }
  constexpr std::string_view kLoopbackNet = "tcp://127.";
  if (address.starts_with(kLoopbackNet)) {
    const auto host_end = address.find_first_not_of("0123456789.", kLoopbackNet.size());
    if (host_end != std::string::npos && address[host_end] == ':') {
      return true;
    }
  }
  return false;
}

}  // namespace

void check_bind_address(const std::string& address, bool curve) {
  if (is_loopback(address) || (curve && address.starts_with("tcp://"))) {
    return;
  }
  const std::string refusing = "refusing to bind '" + address + "': ";
  if (curve) {
    throw std::invalid_argument(refusing + "CURVE protects tcp:// and ipc:// only");
  }
  throw std::invalid_argument(refusing +
                              "the bridge is plain and takes loopback TCP (tcp://127.0.0.1:PORT) "
                              "or ipc:// only; a network address needs CURVE keys");
}

zmq::socket_t bind_router(zmq::context_t& context, const std::string& address,
                          const SocketLimits& limits, ZapAuthenticator* gate) {
  check_bind_address(address, gate != nullptr);
  zmq::socket_t socket(context, zmq::socket_type::router);
  set_common(socket, limits);
  socket.set(zmq::sockopt::router_mandatory, true);
  socket.set(zmq::sockopt::router_handover, false);
  if (gate != nullptr) {
    gate->guard(socket);
  }
  try {
    socket.bind(address);
  } catch (const zmq::error_t& error) {
    throw BindError(address, error.what());
  }
  return socket;
}

std::string bound_address(const zmq::socket_t& socket) {
  return socket.get(zmq::sockopt::last_endpoint);
}

zmq::socket_t connect_dealer(zmq::context_t& context, const std::string& address,
                             const std::string& routing_id, const SocketLimits& limits,
                             std::chrono::milliseconds backoff_max, const CurveClient* curve) {
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  set_common(socket, limits);
  socket.set(zmq::sockopt::immediate, true);
  socket.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
  socket.set(zmq::sockopt::reconnect_ivl_max,
             std::max(kReconnectMs, static_cast<int>(backoff_max.count())));
  if (curve != nullptr) {
    socket.set(zmq::sockopt::curve_serverkey, curve->server_key);
    socket.set(zmq::sockopt::curve_publickey, curve->own.public_key);
    socket.set(zmq::sockopt::curve_secretkey, curve->own.secret_key);
  }
  if (!routing_id.empty()) {
    socket.set(zmq::sockopt::routing_id, routing_id);
  }
  socket.connect(address);
  return socket;
}

ConnectionMonitor::ConnectionMonitor(zmq::context_t& context, zmq::socket_t& watched)
    : events_(context, zmq::socket_type::pair) {
  std::ostringstream name;
  name << "inproc://connection-"
       << watched.handle();  // unique in the context while the socket exists
  constexpr int kEvents = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_DISCONNECTED |
                          ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
  if (zmq_socket_monitor(watched.handle(), name.str().c_str(), kEvents) != 0) {
    throw zmq::error_t();
  }
  events_.set(zmq::sockopt::linger, 0);
  events_.connect(name.str());
}

std::optional<ConnectionEvent> ConnectionMonitor::next() {
  zmq::message_t event, address;
  while (events_.recv(event, zmq::recv_flags::dontwait)) {
    (void)events_.recv(address, zmq::recv_flags::dontwait);
    uint16_t number = 0;  // bytes 0 and 1; 4 bytes of value follow
    if (event.size() >= sizeof number) {
      std::memcpy(&number, event.data(), sizeof number);
    }
    switch (number) {
      case ZMQ_EVENT_CONNECTED:
        return ConnectionEvent::kConnected;
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        return ConnectionEvent::kReady;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        return ConnectionEvent::kRefused;
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return ConnectionEvent::kNoHandshake;
      case ZMQ_EVENT_DISCONNECTED:
        return ConnectionEvent::kClosed;
      case ZMQ_EVENT_CONNECT_RETRIED:
        return ConnectionEvent::kNotReached;
      default:
        break;
    }
  }
  return std::nullopt;
}

Result<Message> Incoming::parse(const Limits& limits) const {
  if (too_many_frames) {
    return Error{Reason::kLimit, "more than " + std::to_string(limits.max_frames) + " frames"};
  }
  std::vector<Frame> spans;
  spans.reserve(frames.size());
  for (const zmq::message_t& frame : frames) {
    spans.push_back({static_cast<const std::byte*>(frame.data()), frame.size()});
  }
  return parse_message(spans, limits);
}

bool receive(zmq::socket_t& socket, bool from_router, const Limits& limits, Incoming& out) {
  out.identity.clear();
  out.user.clear();
  out.frames.clear();
  out.too_many_frames = false;
  zmq::message_t part;
  if (!socket.recv(part, zmq::recv_flags::dontwait)) {
    return false;
  }
  bool more = part.more();
  if (from_router) {
    out.identity = part.to_string();
  } else {
    out.frames.push_back(std::move(part));
  }
  while (more) {
    zmq::message_t next;
    if (!socket.recv(next, zmq::recv_flags::dontwait)) {
      break;
    }
    more = next.more();
    if (from_router && out.frames.empty()) {
      out.user = user_of(next);  // the identity frame has no metadata
    }
    if (out.frames.size() > limits.max_frames) {
      out.too_many_frames = true;
    } else {
      out.frames.push_back(std::move(next));
    }
  }
  return true;
}

SendResult send(zmq::socket_t& socket, const std::string* identity, const std::string& header,
                const Payload& payload) {
  const auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
  try {
    if (identity != nullptr && !socket.send(zmq::buffer(*identity), more)) {
      return SendResult::kFull;
    }
    const std::size_t last = payload.buffers.size();
    if (!socket.send(zmq::buffer(header), last == 0 ? zmq::send_flags::dontwait : more)) {
      return SendResult::kFull;
    }
    // Once the first frame is sent, the others cannot fail: ZeroMQ's limits count whole messages.
    for (std::size_t i = 0; i < last; ++i) {
      socket.send(share(payload.buffers[i]), i + 1 == last ? zmq::send_flags::dontwait : more);
    }
  } catch (const zmq::error_t& error) {
    if (error.num() == EHOSTUNREACH) {
      return SendResult::kUnreachable;
    }
    throw;
  }
  return SendResult::kSent;
}

Waker::Waker() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
}

Waker::~Waker() { ::close(fd_); }

void Waker::wake() {
  const uint64_t one = 1;
  // The only possible failure is a full counter; the thread is then awake.
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

void Waker::clear() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_, &count, sizeof count);
}

}  // namespace ringside::bridge
