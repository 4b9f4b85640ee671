// Server of published weights: answers chunk requests of workers. Trainer's end of the weights
// socket.
//
// It has its own socket and thread, so control messages do not queue behind gigabytes. It keeps no
// state about workers: a lost request is repeated by the worker.
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
#include "rollout_bridge/weights/weight_transport.h"

namespace ringside::bridge {

class WeightServer final : public WeightSender {
 public:
  // Binds at once and starts the thread. `gate`, if not null, must outlive the server.
  // Throws: as bind_router does.
  WeightServer(zmq::context_t& context, const std::string& address, std::string run_id,
               int64_t trainer_term, const Limits& limits, ZapAuthenticator* gate = nullptr);
  ~WeightServer() override;  // stops and joins

  const std::string& address() const { return address_; }
  // The offer needs nothing: WELCOME has the address.
  void describe(const WeightSnapshot&, OfferBody&) const override {}
  // Serves this snapshot and the one before it; requests for older ones are answered "gone".
  // Blocks: never on a worker.
  // Thread safety: any thread.
  std::shared_ptr<const WeightSnapshot> serve(
      std::shared_ptr<const WeightSnapshot> snapshot) override;
  uint64_t bytes_served() const { return bytes_served_.load(std::memory_order_relaxed); }
  // Counts of requests, and of refused ones by Reason.
  // Thread safety: any thread.
  uint64_t requests() const { return requests_.load(std::memory_order_relaxed); }
  std::array<uint64_t, kReasonCount> rejected() const;
  // Rethrows the exception that ended the thread, if any.
  // Thread safety: any thread.
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
