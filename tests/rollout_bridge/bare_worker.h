// A worker whose messages a test writes one by one.
#pragma once

#include <optional>
#include <string>

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/transport/curve_keys.h"
#include "rollout_bridge/transport/zmq_io.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge::test {

// A worker as bare as PROTOCOL.md allows: messages are sent and read one by one.
class BareWorker {
 public:
  explicit BareWorker(const std::string& address, const CurveClient* curve = nullptr,
                      const std::string& id = "bare", uint64_t incarnation = 1)
      : id_(id),
        incarnation_(incarnation),
        socket_(connect_dealer(context_, address, id + "/" + std::to_string(incarnation),
                               {.max_frame_bytes = 1 << 20}, std::chrono::milliseconds(100),
                               curve)) {
    socket_.set(zmq::sockopt::sndtimeo, static_cast<int>(kPatience.count()));
    socket_.set(zmq::sockopt::linger, 0);
    send(make_payload(MessageType::kHello, HelloBody{4, -1, -1, "", "bare"}), 1);
  }
  void send(const Payload& payload, uint64_t seq) {
    const Header header{payload.type, "run", 1, id_, incarnation_, seq};
    const std::string packed = pack_header(header, payload);
    const bool buffers = !payload.buffers.empty();
    socket_.send(zmq::buffer(packed), buffers ? zmq::send_flags::sndmore : zmq::send_flags::none);
    for (std::size_t i = 0; i < payload.buffers.size(); ++i) {
      const bool more = i + 1 < payload.buffers.size();
      socket_.send(
          zmq::const_buffer(payload.buffers[i].bytes.data(), payload.buffers[i].bytes.size()),
          more ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  // The body of the next message of `type`, skipping others; nullopt when none comes.
  template <class Body>
  std::optional<Body> await(MessageType type) {
    std::optional<Body> found;
    eventually([&] {
      Incoming incoming;
      while (!found && receive(socket_, false, {}, incoming)) {
        const auto message = incoming.parse({});
        if (message && message.value().header().type == type) {
          found = message.value().body<Body>().value();
        }
      }
      return found.has_value();
    });
    return found;
  }

 private:
  std::string id_;
  uint64_t incarnation_;
  zmq::context_t context_;
  zmq::socket_t socket_;
};

}  // namespace ringside::bridge::test
