// ZAP authenticator of the trainer: accepts CURVE clients on an allow-list and counts denied
// connections.
//
// It is the ZAP handler of its ZeroMQ context. It also reads the sockets' monitors, for handshakes
// that fail before a key is known.
// Source: ZeroMQ RFC 27 (ZAP).
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "rollout_bridge/transport/curve_keys.h"
#include "rollout_bridge/transport/zmq_io.h"

namespace ringside::bridge {

class ZapAuthenticator {
 public:
  // Binds inproc://zeromq.zap.01 and starts the thread. One authenticator a context, created before
  // the first guarded socket.
  // Throws: std::invalid_argument for invalid keys; zmq::error_t when the context has a handler
  // already.
  ZapAuthenticator(zmq::context_t& context, const CurveServer& keys);
  ~ZapAuthenticator();  // stops and joins; close the guarded sockets first

  // Makes `socket` a CURVE server that this authenticator guards. Call it before the socket binds,
  // from the thread that owns the socket.
  // Throws: zmq::error_t.
  void guard(zmq::socket_t& socket);

  // Denied connections so far, on all guarded sockets.
  // Thread safety: any thread.
  uint64_t denied() const;
  // Log sentences about denied connections since the last call. Repeated denials are reported with
  // exponential back-off: the 1st, 2nd, 4th, 8th... of a cause. At most 64 sentences are kept.
  // Thread safety: any thread.
  std::vector<std::string> drain_denials();
  // Rethrows the exception that ended the thread, if any.
  // Thread safety: any thread.
  void check() const;

 private:
  void loop(const std::stop_token& stop);
  void adopt_monitors();
  void answer();
  void listen(zmq::socket_t& monitor);
  void deny(const std::string& cause, const std::string& detail);

  zmq::context_t& context_;
  std::string secret_key_;
  std::map<std::string, std::string> names_;  // by public key; const after construction
  zmq::socket_t handler_;                     // the thread's, with monitors_
  std::vector<zmq::socket_t> monitors_;
  mutable std::mutex mutex_;             // guards the rest
  std::vector<zmq::socket_t> arriving_;  // monitors waiting for the thread
  int guarded_ = 0;
  uint64_t denied_ = 0;
  std::map<std::string, uint64_t> causes_;
  std::vector<std::string> denials_;
  std::exception_ptr failure_;
  Waker waker_;
  std::jthread thread_;
};

// The public key (Z85) of the connection that a message came over; "" without CURVE.
std::string user_of(const zmq::message_t& message);

}  // namespace ringside::bridge
