// Receiver of prime-rl's batch transport.
//
// The orchestrator binds a PUB socket at the given port and a PULL socket at the next one. A
// receiver subscribes to "data_rank|N|", then pushes its rank in decimal to the PULL socket. The
// orchestrator publishes nothing before every data rank has done so. A message is two frames: the
// topic with its closing bar, and the step's micro-batches.
//
// The connection is neither encrypted nor authenticated, because prime-rl has no keys: any process
// at the address can send rollouts.
//
// Source: src/prime_rl/transports/batch/zmq.py; codec.h has the commit.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <zmq.hpp>

namespace ringside::bridge::prime_rl {

struct StreamOptions {
  std::string address;  // tcp://HOST:PORT of the PUB socket
  int data_rank = 0;
  int64_t max_message_bytes = int64_t{1} << 30;  // a peer that exceeds it is disconnected
  // Received messages queued; the publisher drops messages beyond its own mark of 10.
  int high_water_mark = 16;
};

struct StreamCounters {
  int64_t joined = 0;    // READY announcements sent, one a connection
  int64_t lost = 0;      // connections to the publisher that ended
  int64_t messages = 0;  // valid messages returned
  int64_t refused = 0;   // invalid messages: not two frames, or another topic
};

// Receiver for one data rank.
// Thread safety: none.
class StepStream {
 public:
  // Starts connecting and returns at once.
  // Throws: std::invalid_argument for an address that is not tcp://HOST:PORT with PORT in [1,
  // 65534].
  explicit StepStream(StreamOptions options);
  ~StepStream();
  StepStream(const StepStream&) = delete;
  StepStream& operator=(const StepStream&) = delete;

  // The second frame of the next message; nullopt after `timeout`. Sends READY when the
  // subscription is connected, and again after each reconnection, because a restarted publisher
  // waits for it.
  // Blocks: at most `timeout`.
  // Throws: zmq::error_t.
  std::optional<zmq::message_t> receive(std::chrono::milliseconds timeout);

  // True when READY was sent on the current connection.
  bool joined() const { return connected_ && !announce_; }
  const StreamCounters& counters() const { return counters_; }
  const std::string& address() const { return options_.address; }

 private:
  void take_events();
  void announce();
  void renew();
  std::optional<zmq::message_t> take_message();

  StreamOptions options_;
  std::string ready_address_;
  std::string topic_;
  zmq::context_t context_;
  zmq::socket_t data_;
  zmq::socket_t events_;
  zmq::socket_t ready_;
  bool connected_ = false;
  bool announce_ = false;
  bool renew_ = false;
  StreamCounters counters_;
};

}  // namespace ringside::bridge::prime_rl
