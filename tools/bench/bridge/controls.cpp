// Baselines ("controls") of bench_bridge: the same bytes through memcpy and through ZeroMQ alone.
#include <cstring>
#include <latch>
#include <thread>
#include <zmq.hpp>

#include "rollout_bridge/base/content_hash.h"
#include "tools/bench/bridge/bench.h"

namespace ringside::bench {
namespace {

void keep(void* /*data*/, void* /*hint*/) {}

zmq::message_t share(std::span<const std::byte> bytes) {
  return zmq::message_t(const_cast<std::byte*>(bytes.data()), bytes.size(), keep, nullptr);
}

zmq::socket_t bind_raw(zmq::context_t& context, const Keys* keys) {
  zmq::socket_t socket(context, zmq::socket_type::router);
  socket.set(zmq::sockopt::sndhwm, 0);
  socket.set(zmq::sockopt::rcvhwm, 0);
  if (keys != nullptr) {
    socket.set(zmq::sockopt::curve_server, true);
    socket.set(zmq::sockopt::curve_secretkey, keys->trainer.secret_key);
  }
  socket.bind("tcp://127.0.0.1:*");
  return socket;
}

zmq::socket_t connect_raw(zmq::context_t& context, const std::string& address, const Keys* keys) {
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::sndhwm, 0);
  socket.set(zmq::sockopt::rcvhwm, 0);
  if (keys != nullptr) {
    socket.set(zmq::sockopt::curve_serverkey, keys->trainer.public_key);
    socket.set(zmq::sockopt::curve_publickey, keys->worker.public_key);
    socket.set(zmq::sockopt::curve_secretkey, keys->worker.secret_key);
  }
  socket.connect(address);
  return socket;
}

// A blocking receive without a timeout always returns a message.
void take(zmq::socket_t& socket, zmq::message_t& message) { (void)socket.recv(message); }

// The first request opens the connection and is answered with chunk 0, before the timed part.
// Received data is discarded, or with `keep` copied there and hashed.
void pull(const std::string& address, std::size_t chunks, std::size_t window, const Keys* keys,
          std::span<std::byte> keep, std::latch& connected) {
  zmq::context_t context;
  zmq::socket_t socket = connect_raw(context, address, keys);
  zmq::message_t got;
  const auto ask = [&](std::size_t index) { socket.send(zmq::buffer(&index, sizeof index)); };
  ask(0);
  take(socket, got);
  bridge::Hash128 hash;
  connected.arrive_and_wait();
  std::size_t asked = 0;
  while (asked < std::min(window, chunks)) {
    ask(asked++);
  }
  for (std::size_t i = 0; i < chunks; ++i) {
    take(socket, got);
    if (asked < chunks) {
      ask(asked++);
    }
    if (keep.empty()) {
      continue;
    }
    std::memcpy(keep.data(), got.data(), got.size());
    hash.update(keep.first(got.size()));
    keep = keep.subspan(got.size());
  }
}

}  // namespace

double memcpy_seconds(const std::vector<Frames>& messages, int times) {
  std::size_t total = 0;
  for (const Frames& frames : messages) {
    for (const auto frame : frames) {
      total += frame.size();
    }
  }
  std::vector<std::byte> target(total);
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) {
    std::byte* at = target.data();
    for (const Frames& frames : messages) {
      for (const auto frame : frames) {
        std::memcpy(at, frame.data(), frame.size());
        at += frame.size();
      }
    }
  }
  return seconds_since(start);
}

double first_touch_seconds(std::size_t bytes, std::size_t block) {
  const auto start = Clock::now();
  std::vector<std::vector<std::byte>> blocks;
  for (std::size_t at = 0; at < bytes; at += block) {
    blocks.emplace_back(std::min(block, bytes - at));
  }
  return seconds_since(start);
}

double raw_pull_seconds(const Frames& chunks, int clients, std::size_t window, const Keys* keys,
                        bool keep) {
  std::size_t bytes = 0;
  for (const auto chunk : chunks) {
    bytes += keep ? chunk.size() : 0;
  }
  std::vector<std::vector<std::byte>> kept(static_cast<std::size_t>(clients),
                                           std::vector<std::byte>(bytes));  // touched
  zmq::context_t context;
  zmq::socket_t router = bind_raw(context, keys);
  const std::string address = router.get(zmq::sockopt::last_endpoint);
  std::jthread server([&] {
    const std::size_t requests = (chunks.size() + 1) * static_cast<std::size_t>(clients);
    zmq::message_t identity;
    zmq::message_t request;
    for (std::size_t i = 0; i < requests; ++i) {
      take(router, identity);
      take(router, request);
      router.send(identity, zmq::send_flags::sndmore);
      router.send(share(chunks[*request.data<std::size_t>()]), zmq::send_flags::none);
    }
  });
  std::latch connected(clients + 1);
  std::vector<std::jthread> pullers;
  for (int i = 0; i < clients; ++i) {
    pullers.emplace_back([&, to = std::span(kept[static_cast<std::size_t>(i)])] {
      pull(address, chunks.size(), window, keys, to, connected);
    });
  }
  connected.arrive_and_wait();
  const auto start = Clock::now();
  pullers.clear();  // joins
  const double seconds = seconds_since(start);
  server.join();
  return seconds;
}

double raw_push_seconds(const std::vector<Frames>& messages, const Keys* keys) {
  zmq::context_t context;
  zmq::socket_t router = bind_raw(context, keys);
  const std::string address = router.get(zmq::sockopt::last_endpoint);
  zmq::message_t part;
  const auto receive_all = [&] {
    do {
      take(router, part);
    } while (part.more());
  };
  std::latch connected(2);
  std::jthread sender([&] {
    zmq::context_t own;
    zmq::socket_t dealer = connect_raw(own, address, keys);
    dealer.send(zmq::str_buffer("hello"));
    connected.arrive_and_wait();
    for (const Frames& frames : messages) {
      for (std::size_t i = 0; i < frames.size(); ++i) {
        const bool last = i + 1 == frames.size();
        dealer.send(share(frames[i]), last ? zmq::send_flags::none : zmq::send_flags::sndmore);
      }
    }
  });
  receive_all();
  connected.arrive_and_wait();
  const auto start = Clock::now();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    receive_all();
  }
  return seconds_since(start);
}

}  // namespace ringside::bench
