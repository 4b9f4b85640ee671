// Stands between a worker and its trainer, passes every message on, and makes the first commits
// name a root hash that was never published: what a worker looks like whose installed bytes are
// wrong.
#pragma once

#include <cerrno>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rollout_bridge/transport/zmq_io.h"

namespace ringside::bridge::test {

class CommitSpoiler {
 public:
  // For one worker without keys. `count`: the commits to be spoilt.
  CommitSpoiler(const std::string& trainer, int count)
      : trainer_(trainer),
        left_(count),
        front_(bind_router(context_, "tcp://127.0.0.1:*", limits())),
        address_(bound_address(front_)) {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pass();
      }
    });
  }
  const std::string& address() const { return address_; }

 private:
  using Frames = std::vector<zmq::message_t>;

  static SocketLimits limits() { return {.max_frame_bytes = std::size_t{1} << 20}; }

  // What has come, within some milliseconds.
  void pass() {
    std::vector<zmq::pollitem_t> items{{front_, 0, ZMQ_POLLIN, 0}};
    zmq::poll(items, std::chrono::milliseconds(2));
    for (Frames frames = take(front_); !frames.empty(); frames = take(front_)) {
      if (frames.front().to_string() !=
          identity_) {  // the worker's first connection, or it came back
        identity_ = frames.front().to_string();
        back_ =
            connect_dealer(context_, trainer_, identity_, limits(), std::chrono::milliseconds(100));
        back_->set(zmq::sockopt::sndtimeo, 1000);  // the trainer may be gone
      }
      frames.erase(frames.begin());
      spoil(frames.front());
      give(*back_, frames);
    }
    if (!back_) {
      return;
    }
    for (Frames frames = take(*back_); !frames.empty(); frames = take(*back_)) {
      frames.emplace(frames.begin(), identity_);
      give(front_, frames);
    }
  }

  static Frames take(zmq::socket_t& socket) {
    Frames frames;
    for (bool more = true; more;) {
      zmq::message_t frame;
      if (!socket.recv(frame, frames.empty() ? zmq::recv_flags::dontwait : zmq::recv_flags::none)) {
        break;
      }
      more = frame.more();
      frames.push_back(std::move(frame));
    }
    return frames;
  }

  // What is for somebody who has gone meanwhile is lost, as it is without a proxy.
  static void give(zmq::socket_t& socket, Frames& frames) {
    try {
      for (std::size_t i = 0; i < frames.size(); ++i) {
        const bool last = i + 1 == frames.size();
        if (!socket.send(frames[i], last ? zmq::send_flags::none : zmq::send_flags::sndmore)) {
          return;
        }
      }
    } catch (const zmq::error_t& error) {
      if (error.num() != EHOSTUNREACH) {
        throw;
      }
    }
  }

  // The root hash is a string of hexadecimal digits behind its name and two bytes of length.
  void spoil(zmq::message_t& head) {
    const std::string name = "root_hash";
    const std::string text = head.to_string();
    const std::size_t at = text.find(name);
    if (left_ == 0 || text.find("COMMITTED") == std::string::npos || at == std::string::npos) {
      return;
    }
    char& digit = head.data<char>()[at + name.size() + 2];
    digit = digit == '0' ? '1' : '0';
    --left_;
  }

  std::string trainer_;
  int left_;
  zmq::context_t context_;
  zmq::socket_t front_;
  std::string address_;
  std::string identity_;
  std::optional<zmq::socket_t> back_;
  std::jthread thread_;
};

}  // namespace ringside::bridge::test
