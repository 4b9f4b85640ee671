// The few ZeroMQ calls the endpoints share: sockets with every option set, whole messages in and
// out, addresses that are safe to bind. Sockets belong to one thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "rollout_bridge/protocol/wire.h"
#include "rollout_bridge/transport/bind_error.h"

namespace ringside::bridge {

class ZapAuthenticator;
struct CurveClient;

// Without CURVE only loopback TCP (127.*, [::1], localhost; any other host name counts as a network
// address), ipc and inproc may be bound; with it any tcp, ipc or inproc address, wildcards too.
// Throws std::invalid_argument with the reason otherwise.
void check_bind_address(const std::string& address, bool curve = false);

struct SocketLimits {
  std::size_t max_frame_bytes = 0;    // ZMQ_MAXMSGSIZE: a peer that sends more is disconnected
  int send_high_water_mark = 1000;    // messages
  int receive_high_water_mark = 128;  // messages held for us before TCP pushes back
  std::chrono::milliseconds linger{1000};
};

// ROUTER with MANDATORY and without HANDOVER; a CURVE server when there is a gate, which must
// outlive it. Throws std::invalid_argument for an unsafe address, BindError when it cannot be
// bound.
zmq::socket_t bind_router(zmq::context_t& context, const std::string& address,
                          const SocketLimits& limits, ZapAuthenticator* gate = nullptr);
// The address a socket is really bound to (port filled in).
std::string bound_address(const zmq::socket_t& socket);

// DEALER that queues nothing before it is connected, with capped reconnect backoff. An empty
// routing id lets the peer invent one. With keys it talks to the holder of that server key only.
zmq::socket_t connect_dealer(zmq::context_t& context, const std::string& address,
                             const std::string& routing_id, const SocketLimits& limits,
                             std::chrono::milliseconds backoff_max,
                             const CurveClient* curve = nullptr);

// What became of a socket's attempts to connect, oldest first.
enum class ConnectionEvent {
  kConnected,    // TCP stands; the handshake follows
  kReady,        // the handshake is done: messages flow
  kRefused,      // this side's key is not let in
  kNoHandshake,  // the other side speaks another protocol, or plain where this side has keys
  kClosed,       // the other side closed, or the network did
  kNotReached,   // nobody takes connections there; it is tried again
};

// Watches one connecting socket. Belongs to the socket's thread and must not outlive the socket.
class ConnectionMonitor {
 public:
  ConnectionMonitor(zmq::context_t& context, zmq::socket_t& watched);
  std::optional<ConnectionEvent> next();

 private:
  zmq::socket_t events_;
};

// A message as it came: the bytes stay here while a Message looks at them.
struct Incoming {
  std::string identity;  // ROUTER only
  std::string user;      // public key of the sender; "" on a plain connection
  std::vector<zmq::message_t> frames;
  bool too_many_frames = false;  // the rest was read and dropped

  Result<Message> parse(const Limits& limits) const;
};
// Takes one message if there is one. Never blocks.
bool receive(zmq::socket_t& socket, bool from_router, const Limits& limits, Incoming& out);

enum class SendResult { kSent, kFull, kUnreachable };
// Sends header and buffers without copying the buffers. `identity` null on a DEALER. Never blocks.
SendResult send(zmq::socket_t& socket, const std::string* identity, const std::string& header,
                const Payload& payload);

// Wakes a thread out of zmq::poll from any other thread.
class Waker {
 public:
  Waker();  // throws std::system_error
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  void wake();
  void clear();
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace ringside::bridge
