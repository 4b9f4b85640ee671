// ZeroMQ helpers of the endpoints: configured sockets, whole messages in and out, checks of
// addresses to bind.
//
// Throws: zmq::error_t when an operation on a socket fails.
// Thread safety: a socket belongs to one thread.
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

// Checks an address before it is bound. Without CURVE: loopback TCP (127.*, [::1], localhost), ipc
// and inproc; any other host name counts as a network address. With CURVE: any TCP, ipc or inproc
// address, also wildcards.
// Throws: std::invalid_argument with the reason.
void check_bind_address(const std::string& address, bool curve = false);

struct SocketLimits {
  std::size_t max_frame_bytes = 0;    // ZMQ_MAXMSGSIZE: a peer that exceeds it is disconnected
  int send_high_water_mark = 1000;    // messages
  int receive_high_water_mark = 128;  // received messages queued before TCP pushes back
  std::chrono::milliseconds linger{1000};
};

// A bound ROUTER with MANDATORY and without HANDOVER. A CURVE server when `gate` is not null; the
// gate must outlive it.
// Throws: std::invalid_argument for an unsafe address; BindError when it cannot be bound.
zmq::socket_t bind_router(zmq::context_t& context, const std::string& address,
                          const SocketLimits& limits, ZapAuthenticator* gate = nullptr);
// The address a socket is bound to, with the port filled in.
std::string bound_address(const zmq::socket_t& socket);

// A connecting DEALER that queues nothing before it is connected and reconnects with capped
// backoff. With an empty routing id the peer assigns one. With keys it talks only to the holder of
// that server key.
zmq::socket_t connect_dealer(zmq::context_t& context, const std::string& address,
                             const std::string& routing_id, const SocketLimits& limits,
                             std::chrono::milliseconds backoff_max,
                             const CurveClient* curve = nullptr);

// Results of a socket's connection attempts, oldest first.
enum class ConnectionEvent {
  kConnected,    // TCP is connected; the handshake follows
  kReady,        // the handshake is done: messages flow
  kRefused,      // the peer refused this side's key
  kNoHandshake,  // the peer speaks another protocol, or has no CURVE while this side has
  kClosed,       // closed by the peer or the network
  kNotReached,   // nobody accepts connections there; it is retried
};

// Monitor of one connecting socket. Belongs to the socket's thread; the socket must outlive it.
class ConnectionMonitor {
 public:
  // Throws: zmq::error_t.
  ConnectionMonitor(zmq::context_t& context, zmq::socket_t& watched);
  // The next event; nullopt when there is none. Does not block.
  std::optional<ConnectionEvent> next();

 private:
  zmq::socket_t events_;
};

// A received message. It owns the bytes that a Message points into.
struct Incoming {
  std::string identity;  // ROUTER only
  std::string user;      // public key of the sender; "" on a plain connection
  std::vector<zmq::message_t> frames;
  bool too_many_frames = false;  // the rest was read and discarded

  // As parse_message(); too many frames are an error.
  Result<Message> parse(const Limits& limits) const;
};
// Receives one message if there is one.
// Blocks: never.
bool receive(zmq::socket_t& socket, bool from_router, const Limits& limits, Incoming& out);

enum class SendResult { kSent, kFull, kUnreachable };
// Sends header and buffers without copying the buffers. `identity` is null on a DEALER.
// Blocks: never.
SendResult send(zmq::socket_t& socket, const std::string* identity, const std::string& header,
                const Payload& payload);

// Wakes a thread that waits in zmq::poll. Callable from any thread.
class Waker {
 public:
  Waker();  // throws std::system_error
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  // Makes fd() readable, from any thread; makes it wait again, in the thread that polls.
  void wake();
  void clear();
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace ringside::bridge
