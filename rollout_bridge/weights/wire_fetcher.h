// Worker's end of the weights socket: requests chunks from the trainer's WeightServer.
//
// Thread safety: none; it belongs to the thread of its socket.
#pragma once

#include <chrono>
#include <optional>
#include <zmq.hpp>

#include "rollout_bridge/base/limits.h"
#include "rollout_bridge/transport/curve_keys.h"
#include "rollout_bridge/transport/zmq_io.h"
#include "rollout_bridge/weights/weight_transport.h"

namespace ringside::bridge {

class WireFetcher final : public WeightFetcher {
 public:
  struct Options {
    Limits limits;
    std::chrono::milliseconds backoff_max{5000};
    std::optional<CurveClient> curve;
  };
  // `context` must outlive the fetcher.
  WireFetcher(zmq::context_t& context, Options options);

  bool begin(const WeightSession& session, const OfferBody& where,
             const Manifest& manifest) override;
  bool prefers_changes() const override { return true; }
  Result<FetchState> fetch(WeightReceiver& receiver,
                           WeightReceiver::Clock::time_point now) override;
  const char* encoding(bool builds_on_base) const override {
    return builds_on_base ? "overwrite" : "dense";
  }
  void close() override { socket_.reset(); }

  // What zmq::poll waits for while a version is fetched; nullopt without a connection. Requests
  // that found no room, such as all before the connection is ready, are sent when the socket is
  // writable.
  std::optional<zmq::pollitem_t> pollitem();

 private:
  void request(WeightReceiver& receiver, WeightReceiver::Clock::time_point now);

  zmq::context_t& context_;
  Options options_;
  WeightSession session_;
  std::optional<zmq::socket_t> socket_;
  bool full_ = false;
  Incoming incoming_;
};

// Gives an answer of the trainer's weights socket to the receiver. Ignores answers of another
// trainer_term or version, and damaged ones: their requests time out and are repeated.
// Errors: as WeightFetcher::fetch.
Status accept_answer(WeightReceiver& receiver, const Result<Message>& answer, int64_t trainer_term);

}  // namespace ringside::bridge
