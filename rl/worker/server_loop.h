// Loop of a worker that drives an inference server: decides when to load weights, when the server
// must be verified, and how its answers are used. Torch-free: the server, the model beside it and
// the rewards are behind ServedPolicy.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rl/config/config.h"
#include "rl/worker/link_events.h"
#include "rollout_bridge/servers/inference_server.h"
#include "rollout_bridge/worker/trainer_link.h"
#include "rollout_bridge/worker/worker_queue.h"

namespace ringside::rl {

struct ServedAnswer {
  bridge::GrantedSample sample;
  std::vector<int64_t> prompt_ids;
  bridge::Result<bridge::GenerateResult> result;
};

// An inference server with several concurrent requests.
class ServedPolicy {
 public:
  virtual ~ServedPolicy() = default;

  // Requests a completion under `weights`, the installed ones.
  // Blocks: never.
  // Throws: for a prompt that cannot be encoded.
  virtual void submit(const bridge::GrantedSample& sample, const bridge::Manifest& weights) = 0;
  // The answers received so far.
  // Blocks: never.
  virtual std::vector<ServedAnswer> take_answers() = 0;
  // Takes back the requests that have not started.
  virtual std::vector<bridge::GrantedSample> withdraw() = 0;
  // Number of requests submitted whose answers were not taken, without withdrawn ones.
  virtual std::size_t running() const = 0;

  // Loads weights and verifies that the server runs them (ServedWeights::install).
  // Blocks: until both are done.
  virtual bridge::Status install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) = 0;
  // Verifies that the server still runs the weights installed last.
  // Blocks: until the server has answered, at most its deadlines.
  virtual bridge::Status verify() = 0;
  // Makes the server answer running requests at once, as aborted. install() follows.
  // Blocks: until the server has taken the command, at most its deadline.
  virtual bridge::Status interrupt() = 0;
  // Root hash of the installed version.
  virtual std::string root_hash() const = 0;

  // Scored rollouts of answers received under `version`, one per answer. An answer whose log-probs
  // cannot be computed becomes a failed sample.
  virtual std::vector<bridge::Rollout> rollouts(std::vector<ServedAnswer> answers,
                                                int64_t version) = 0;
  // The rollout of a sample that failed under `version`.
  virtual bridge::Rollout failed(const ServedAnswer& answer, int64_t version) = 0;
};

// Nothing is sampled from unverified weights. The server must return the probe's log-probs after
// each loading, after any connection error and after an idle period. `options` set what happens to
// running requests when new weights arrive, how many requests run at a time, and how long a server
// may take to load.
class ServerLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;

  // `link` and `policy` must outlive this.
  ServerLoop(bridge::TrainerLink& link, ServedPolicy& policy, WorkerSettings settings,
             const ServerConfig& options, Now now);

  // Handles all pending events, delivers answers, then installs weights or submits requests.
  // Returns how long to wait for the link before the next turn.
  // Blocks: as install(), verify(), interrupt() and rollouts() of the policy.
  // Throws: std::runtime_error when the trainer rejects this worker, or when the server fails
  // verification for longer than twice options.load_timeout_s.
  std::chrono::milliseconds turn();

  bool is_over() const { return events_.is_over(); }
  bool ended() const { return events_.ended(); }

 private:
  using Snapshot = std::shared_ptr<const bridge::WeightSnapshot>;

  void handle(const bridge::Connected& connected);
  void handle(const bridge::Granted& granted) { queue_.on_granted(granted); }
  void handle(const bridge::WeightsReady& ready);
  template <class Other>
  void handle(const Other& event) {
    events_.handle(event);
  }
  // Sets the weights to install. No request is started before `snapshot` is installed and verified.
  void want(Snapshot snapshot);
  void try_install();
  void interrupt_if_due();
  void installed();
  void feed();
  // The server may have been replaced: the same weights must be loaded and verified again.
  void distrust(const std::string& why);
  void take(std::vector<ServedAnswer> answers);
  // Whether the answer is complete and, as far as can be determined, from the installed weights.
  bool is_ours(const bridge::GenerateResult& result);
  void failed(const ServedAnswer& answer);
  // Queues a sample again whose request ended without a completion.
  void put_back(const bridge::GrantedSample& sample);
  // Puts the sample back, or gives it up after the last attempt.
  void try_again(const ServedAnswer& answer, const std::string& why);
  // Sends a failed sample, which the trainer grants again.
  void give_up(const ServedAnswer& answer, const std::string& why);
  void finish(bridge::Rollout rollout);
  std::chrono::milliseconds load_timeout() const;
  int64_t version() const { return current_->manifest.version; }

  bridge::TrainerLink& link_;
  ServedPolicy& policy_;
  LinkEvents events_;
  ServerConfig options_;
  Now now_;
  bridge::WorkerQueue queue_;
  using Key = std::pair<int64_t, int32_t>;  // group, sample
  std::map<Key, int> tries_;                // attempts of samples that the server has not completed
  // Of running requests: the trainer term of the weights that they began under. A server that keeps
  // requests while it loads weights answers them under those of a later term.
  std::map<Key, int64_t> begun_in_;
  Snapshot current_;  // the weights that are sampled from; null before the first
  Snapshot wanted_;   // to be installed; while set, no request is started
  Clock::time_point wanted_since_{}, next_try_{}, last_contact_{};
  bool interrupted_ = false;
  bool in_doubt_ = false;    // set after an error, until the next installation
  bool is_offered_ = false;  // wanted_ was offered by the trainer, which waits for its commit
};

}  // namespace ringside::rl
