// The receiving end of prime-rl's batch transport (src/prime_rl/transports/batch/zmq.py, see
// codec.h for the commit).
//
// The orchestrator binds a PUB socket at the given port and a PULL socket at the next one. A
// receiver subscribes to "data_rank|N|", then pushes its rank in decimal to the PULL socket; the
// orchestrator publishes nothing before every data rank has done so. A message is two frames: the
// topic with its closing bar, and the step's micro-batches. The connection is plain: prime-rl has
// no keys, so whoever can answer at the address feeds the trainer.
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
  int64_t max_message_bytes = int64_t{1} << 30;  // a peer that sends more is disconnected
  int high_water_mark =
      16;  // messages held for us; the publisher drops what goes beyond its own mark of 10
};

struct StreamCounters {
  int64_t joined = 0;    // READY announcements that went out, one a connection
  int64_t lost = 0;      // connections to the publisher that ended
  int64_t messages = 0;  // of the right form, handed out
  int64_t refused = 0;   // of another: not two frames, or another topic
};

// One receiver of one data rank. Not thread-safe.
class StepStream {
 public:
  // Connects and returns at once, whether or not a publisher is there. Throws std::invalid_argument
  // for an address that is not tcp://HOST:PORT with PORT in [1, 65534].
  explicit StepStream(StreamOptions options);
  ~StepStream();
  StepStream(const StepStream&) = delete;
  StepStream& operator=(const StepStream&) = delete;

  // The next message's second frame, or nothing within `timeout`, for which it blocks at most.
  // READY goes out in here, once the subscription's connection stands, and again after each
  // reconnection: a publisher that was started anew waits for it.
  std::optional<zmq::message_t> receive(std::chrono::milliseconds timeout);

  // Whether READY went out on the present connection.
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
