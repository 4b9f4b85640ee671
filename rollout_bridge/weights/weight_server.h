// Serves the bytes of published weights, chunk by chunk as workers ask for them, on a socket and a
// thread of its own so that control messages never wait behind gigabytes. It keeps no state about
// workers: a request that is lost is simply made again.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <zmq.hpp>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/transport/zmq_io.h"

namespace ringside::bridge {

class WeightServer {
 public:
  // Binds at once (throws like bind_router) and starts the thread. The gate, if any, outlives it.
  WeightServer(zmq::context_t& context, const std::string& address, std::string run_id,
               int64_t trainer_term, const Limits& limits, ZapAuthenticator* gate = nullptr);
  ~WeightServer();  // stops and joins

  const std::string& address() const { return address_; }
  // Serves this snapshot and keeps the one before it for workers still pulling; older ones answer
  // "gone". Returns the one that is no longer served, if any: to free gigabytes takes a while, and
  // the caller knows when. Thread-safe, never waits for a worker.
  std::shared_ptr<const WeightSnapshot> hold(std::shared_ptr<const WeightSnapshot> snapshot);
  uint64_t bytes_served() const { return bytes_served_.load(std::memory_order_relaxed); }
  // Requests so far, and those that were refused, by Reason. Thread-safe.
  uint64_t requests() const { return requests_.load(std::memory_order_relaxed); }
  std::array<uint64_t, kReasonCount> rejected() const;
  // Rethrows what ended the thread, if anything did. Thread-safe.
  void check();

 private:
  void loop(const std::stop_token& stop);
  void answer(const Incoming& incoming);
  Result<Payload> chunk(const Message& request);

  std::string run_id_;
  int64_t trainer_term_;
  Limits limits_;
  zmq::socket_t socket_;
  std::string address_;
  std::mutex mutex_;                                        // guards the two below
  std::deque<std::shared_ptr<const WeightSnapshot>> held_;  // newest last
  std::exception_ptr failure_;
  std::atomic<uint64_t> bytes_served_{0};
  std::atomic<uint64_t> requests_{0};
  std::array<std::atomic<uint64_t>, kReasonCount> rejected_{};
  Waker waker_;
  std::jthread thread_;
};

}  // namespace ringside::bridge
