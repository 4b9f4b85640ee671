#include "rollout_bridge/prime_rl/stream.h"

#include <charconv>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

namespace ringside::bridge::prime_rl {
namespace {

using std::chrono::milliseconds;

constexpr const char* kEvents = "inproc://prime-rl-events";
constexpr int kHeartbeatMs = 2000;
constexpr int kHeartbeatTimeoutMs = 6000;
constexpr int kReconnectMs = 100;
constexpr int kReconnectMaxMs = 2000;
constexpr int kLingerMs = 1000;

// The address with the port after the given one.
std::string next_port(const std::string& address) {
  const auto colon = address.rfind(':');
  const std::string scheme = "tcp://";
  int port = 0;
  if (address.starts_with(scheme) && colon != std::string::npos && colon > scheme.size()) {
    const char* end = address.data() + address.size();
    const auto parsed = std::from_chars(address.data() + colon + 1, end, port);
    port = parsed.ec == std::errc() && parsed.ptr == end ? port : 0;
  }
  if (port < 1 || port > 65534) {
    throw std::invalid_argument(
        "prime-rl: '" + address +
        "' is no address of a publisher; expected tcp://HOST:PORT with PORT in [1, 65534]");
  }
  return address.substr(0, colon + 1) + std::to_string(port + 1);
}

void set_common(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::linger, kLingerMs);
  socket.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMs);
  socket.set(zmq::sockopt::heartbeat_timeout, kHeartbeatTimeoutMs);
  socket.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
  socket.set(zmq::sockopt::reconnect_ivl_max, kReconnectMaxMs);
}

}  // namespace

StepStream::StepStream(StreamOptions options)
    : options_(std::move(options)),
      ready_address_(next_port(options_.address)),
      topic_("data_rank|" + std::to_string(options_.data_rank) + "|"),
      data_(context_, zmq::socket_type::sub),
      events_(context_, zmq::socket_type::pair) {
  set_common(data_);
  data_.set(zmq::sockopt::maxmsgsize, options_.max_message_bytes);
  data_.set(zmq::sockopt::rcvhwm, options_.high_water_mark);
  data_.set(zmq::sockopt::subscribe, topic_);
  if (zmq_socket_monitor(data_.handle(), kEvents,
                         ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0) {
    throw zmq::error_t();
  }
  events_.set(zmq::sockopt::linger, 0);
  events_.connect(kEvents);
  data_.connect(options_.address);
}

StepStream::~StepStream() { zmq_socket_monitor(data_.handle(), nullptr, 0); }

// Processes connection events since the last call.
void StepStream::take_events() {
  zmq::message_t event, peer;
  while (events_.recv(event, zmq::recv_flags::dontwait)) {
    if (event.more() && !events_.recv(peer, zmq::recv_flags::none)) {
      return;
    }
    uint16_t kind = 0;
    if (event.size() >= sizeof kind) {
      std::memcpy(&kind, event.data(), sizeof kind);
    }
    const bool now_connected = kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    counters_.lost += connected_ && !now_connected ? 1 : 0;
    connected_ = announce_ = now_connected;
    renew_ = !now_connected;
    if (now_connected) {
      // A new socket, so that READY cannot go to an earlier connection of the publisher.
      ready_ = zmq::socket_t(context_, zmq::socket_type::push);
      set_common(ready_);
      ready_.set(zmq::sockopt::immediate, true);
      ready_.connect(ready_address_);
    }
  }
}

void StepStream::announce() {
  const std::string rank = std::to_string(options_.data_rank);
  if (announce_ && ready_.send(zmq::buffer(rank), zmq::send_flags::dontwait)) {
    announce_ = false;
    ++counters_.joined;
  }
}

// Reconnects after a message over the limit. ZeroMQ reconnects by itself after other disconnects,
// but not after one that it caused for the message size.
void StepStream::renew() {
  if (std::exchange(renew_, false)) {
    zmq_disconnect(data_.handle(),
                   options_.address.c_str());  // the old connection is forgotten
    data_.connect(options_.address);
  }
}

std::optional<zmq::message_t> StepStream::take_message() {
  zmq::message_t topic, payload;
  while (data_.recv(topic, zmq::recv_flags::dontwait)) {
    std::size_t frames = 1;
    bool more = topic.more();
    while (more) {
      zmq::message_t frame;
      if (!data_.recv(frame, zmq::recv_flags::none)) {
        break;
      }
      more = frame.more();
      if (++frames == 2) {
        payload = std::move(frame);
      }
    }
    if (frames == 2 && topic.to_string_view() == topic_) {
      ++counters_.messages;
      return payload;
    }
    ++counters_.refused;
  }
  return std::nullopt;
}

std::optional<zmq::message_t> StepStream::receive(milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    take_events();
    announce();
    if (auto message = take_message()) {
      return message;
    }
    renew();  // after the read, so that received messages are not lost
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return std::nullopt;
    }
    std::vector<zmq::pollitem_t> items = {{data_.handle(), 0, ZMQ_POLLIN, 0},
                                          {events_.handle(), 0, ZMQ_POLLIN, 0}};
    if (announce_) {
      items.push_back({ready_.handle(), 0, ZMQ_POLLOUT, 0});
    }
    zmq::poll(items, left);
  }
}

}  // namespace ringside::bridge::prime_rl
