// Transports of weights: the ways in which the bytes of a version reach a worker.
//
// Each transport has two ends. The trainer's end (WeightSender) serves published versions and says
// in their offer where the bytes are. The worker's end (WeightFetcher) moves the bytes of an
// offered version into a WeightReceiver, which verifies them. The session on either side knows only
// that a version is offered, fetched or failed.
//
// Transports: the weights socket (WeightServer, WireFetcher) and shared memory (SharedSender,
// SharedFetcher).
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/wire.h"
#include "rollout_bridge/weights/snapshot.h"
#include "rollout_bridge/weights/weight_receiver.h"

namespace ringside::bridge {

// The trainer's end.
class WeightSender {
 public:
  virtual ~WeightSender() = default;
  // Adds to the offer of this snapshot where its bytes are.
  virtual void describe(const WeightSnapshot& snapshot, OfferBody& offer) const = 0;
  // Serves this snapshot from now on, beside earlier ones. Returns a snapshot that is no longer
  // served, if any, so that the caller chooses when to free its gigabytes.
  virtual std::shared_ptr<const WeightSnapshot> serve(
      std::shared_ptr<const WeightSnapshot> snapshot) = 0;
};

// A WEIGHTS_OFFER as a worker received it.
struct WeightOffer {
  OfferBody where;
  Manifest manifest;
  std::vector<std::byte> payloads;  // of all overwrites, when they came with the offer
};

// The session in which a worker fetches weights.
struct WeightSession {
  Header header;             // of the messages on the weights socket
  std::string address;       // of the weights socket
  uint64_t chunk_bytes = 0;  // largest CHUNK the trainer serves
};

enum class FetchState {
  kMoved,     // bytes arrived; call again at once
  kWaiting,   // nothing to do until the trainer answers
  kUnusable,  // this transport cannot go on; another one fetches the rest
};

// The worker's end. Belongs to one thread.
class WeightFetcher {
 public:
  virtual ~WeightFetcher() = default;
  // Prepares to fetch an offered version. Returns false when this transport cannot reach its bytes.
  virtual bool begin(const WeightSession& session, const OfferBody& where,
                     const Manifest& manifest) = 0;
  // False when a whole tensor costs less than applying its changes.
  virtual bool prefers_changes() const = 0;
  // Moves a part of the bytes into the receiver.
  // Blocks: never.
  // Errors: kChecksum when a tensor keeps failing its hash; kGone when the trainer no longer serves
  // the version.
  virtual Result<FetchState> fetch(WeightReceiver& receiver,
                                   WeightReceiver::Clock::time_point now) = 0;
  // The `encoding` that STAGED reports for a version that this transport completed.
  virtual const char* encoding(bool builds_on_base) const = 0;
  // The session has ended.
  virtual void close() = 0;
};

}  // namespace ringside::bridge
