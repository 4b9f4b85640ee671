// The trainer's doorkeeper: makes sockets CURVE servers, lets in the keys of an allow-list and
// counts everybody else. It is the ZAP handler (ZeroMQ RFC 27) of its context, and it listens to
// the sockets' monitors for handshakes that fail before a key is known.
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
  // Binds inproc://zeromq.zap.01 and starts the thread: one ZapAuthenticator a context, before the
  // first guarded socket. Throws std::invalid_argument for keys that are none, zmq::error_t when
  // the context has a handler already.
  ZapAuthenticator(zmq::context_t& context, const CurveServer& keys);
  ~ZapAuthenticator();  // stops and joins; the guarded sockets are closed before

  // Makes `socket` a CURVE server of this gate; before it binds. From the thread that owns it.
  void guard(zmq::socket_t& socket);

  // Connections turned away so far, on all guarded sockets. Thread-safe.
  uint64_t denied() const;
  // Sentences about them since the last call. A cause is told at its 1st, 2nd, 4th, 8th...
  // repetition, at most 64 sentences are kept: whoever knocks for ever does not fill the log.
  std::vector<std::string> drain_denials();
  // Rethrows what ended the thread, if anything did. Thread-safe.
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
  std::vector<zmq::socket_t> arriving_;  // monitors the thread takes over
  int guarded_ = 0;
  uint64_t denied_ = 0;
  std::map<std::string, uint64_t> causes_;
  std::vector<std::string> denials_;
  std::exception_ptr failure_;
  Waker waker_;
  std::jthread thread_;
};

// The public key (Z85) a message's connection was let in with; "" on a plain connection.
std::string user_of(const zmq::message_t& message);

}  // namespace ringside::bridge
