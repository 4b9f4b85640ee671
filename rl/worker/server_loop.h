// The loop of a worker that drives an inference server: when to load weights, when to trust the
// server, what to do with its answers. Torch-free: the server, the model beside it and the rewards
// are behind ServedPolicy.
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

// An inference server with several requests under way.
class ServedPolicy {
 public:
  virtual ~ServedPolicy() = default;

  // Asks for a completion under `weights`, the installed ones.
  virtual void submit(const bridge::GrantedSample& sample, const bridge::Manifest& weights) = 0;
  // Answers so far. Does not wait.
  virtual std::vector<ServedAnswer> take_answers() = 0;
  // Requests that were not begun; they are the caller's again.
  virtual std::vector<bridge::GrantedSample> withdraw() = 0;
  // Submitted and not yet among the answers (withdrawn ones apart).
  virtual std::size_t running() const = 0;

  // Loads weights and verifies that the server runs them; ServedWeights says more. Blocks.
  virtual bridge::Status install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) = 0;
  // Whether the server still runs what was installed last.
  virtual bridge::Status verify() = 0;
  // Has the server answer what runs at once, as aborted; install() follows.
  virtual bridge::Status interrupt() = 0;
  // Of the installed version.
  virtual std::string root_hash() const = 0;

  // Rollouts of answers that came under `version`, scored; one for each answer. What lacks its
  // log-probs for good becomes a failed sample.
  virtual std::vector<bridge::Rollout> rollouts(std::vector<ServedAnswer> answers,
                                                int64_t version) = 0;
  // A sample that could not be made under `version`.
  virtual bridge::Rollout failed(const ServedAnswer& answer, int64_t version) = 0;
};

// Nothing is sampled from weights that were not verified: after each loading, after any trouble
// with a connection and after an idle time, the server must first give the probe's log-probs.
// `options` say how what runs is dealt with when new weights come, how many requests run at a time,
// and how long a server may take to load.
class ServerLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;

  // `link` and `policy` must outlive this.
  ServerLoop(bridge::TrainerLink& link, ServedPolicy& policy, WorkerSettings settings,
             const ServerConfig& options, Now now);

  // Handles every event, delivers answers, then installs weights or submits requests. Returns how
  // long to wait for the link before the next turn. Throws std::runtime_error when the trainer
  // refuses this worker, or when the server stays wrong for longer than twice
  // options.load_timeout_s.
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
  // From now on nothing is begun before `snapshot` is installed and verified.
  void want(Snapshot snapshot);
  void try_install();
  void interrupt_if_due();
  void installed();
  void feed();
  // The server may not be the one it was: the same weights have to be loaded and verified again.
  void distrust(const std::string& why);
  void take(std::vector<ServedAnswer> answers);
  // Whether the answer is whole and of the weights that are installed, as far as anybody can tell.
  bool is_ours(const bridge::GenerateResult& result);
  void failed(const ServedAnswer& answer);
  void finish(bridge::Rollout rollout);
  std::chrono::milliseconds load_timeout() const;
  int64_t version() const { return current_->manifest.version; }

  bridge::TrainerLink& link_;
  ServedPolicy& policy_;
  LinkEvents events_;
  ServerConfig options_;
  Now now_;
  bridge::WorkerQueue queue_;
  std::map<std::pair<int64_t, int32_t>, int> tries_;  // of samples that found no server
  Snapshot current_;                                  // what is sampled from; null before the first
  Snapshot wanted_;  // to be installed; while there is one, nothing is begun
  Clock::time_point wanted_since_{}, next_try_{}, last_contact_{};
  bool interrupted_ = false;
  bool in_doubt_ = false;    // since some trouble, until the next installation
  bool is_offered_ = false;  // wanted_ comes from the trainer, which waits for its commit
};

}  // namespace ringside::rl
