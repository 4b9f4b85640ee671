// Loop of a worker whose samples are sessions of a harness (rl/gateway): opens one for each granted
// sample, samples what their requests ask for, and sends the rollouts of those that have ended.
// Torch-free: the model is behind SessionModel.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rl/gateway/session_desk.h"
#include "rl/worker/link_events.h"
#include "rollout_bridge/worker/trainer_link.h"
#include "rollout_bridge/worker/worker_queue.h"

namespace ringside::rl {

// What samples the requests of sessions.
class SessionModel {
 public:
  virtual ~SessionModel() = default;
  // Installs the snapshot; no request is running. Returns the root hash recomputed from the
  // installed bytes, or another text when it could not be installed: nothing is sampled then.
  // Throws: c10::Error for tensors that are not the model's.
  virtual std::string install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) = 0;
  // Takes requests, which are to be sampled under the installed weights.
  virtual void submit(std::vector<std::shared_ptr<WaitingRequest>> requests) = 0;
  // Answers requests that are sampled, each with the installed version and its term; one that
  // cannot be sampled gets an exception. Returns whether it answered any.
  // Blocks: a model that computes by itself, until all are answered; otherwise never.
  virtual bool work() = 0;
  // Requests that were submitted and not answered.
  virtual std::size_t running() const = 0;
  // Forgets the requests that were submitted and not answered, because the loop has ended; whoever
  // waits for one is told so.
  virtual void drop_requests() = 0;
};

// What opens sessions and makes rollouts of them.
class SessionMaker {
 public:
  virtual ~SessionMaker() = default;
  // A new session of a granted sample.
  virtual std::shared_ptr<Session> session_of(const bridge::GrantedSample& sample) = 0;
  // The rollout of an ended session, whose first sample was under `version` (or would have been).
  virtual bridge::Rollout rollout_of(const Session& session, int64_t version) = 0;
  // Called at least once a second. Throws: when nobody can end the sessions any more.
  virtual void check_harness() = 0;
};

// Weights change while no request runs, so a sample has one version, and a session may have
// several. Requests that come while weights wait to be installed wait, too.
// A session that nobody has claimed is closed when the trainer takes its sample back.
class SessionLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;

  // most_unclaimed: sessions that are open before a harness claims them; the trainer may have given
  // their samples to others meanwhile, and grant more. The references must outlive this.
  SessionLoop(bridge::TrainerLink& link, SessionDesk& desk, SessionModel& model,
              SessionMaker& maker, std::size_t most_unclaimed, WorkerSettings settings, Now now);
  // Closes the desk, and refuses the requests that the model has not answered.
  ~SessionLoop();

  // Handles all pending events, delivers rollouts, opens sessions, and lets the model work. Returns
  // how long to wait for the link before the next turn.
  // Blocks: as the model.
  // Throws: what install() and check_harness() throw; std::runtime_error when the trainer rejects
  // this worker.
  std::chrono::milliseconds turn();

  bool is_over() const { return events_.is_over(); }
  bool ended() const { return events_.ended(); }

 private:
  void handle(const bridge::Connected& connected);
  void handle(const bridge::Granted& granted);
  void handle(const bridge::WeightsReady& ready) { wanted_ = ready.snapshot; }
  template <class Other>
  void handle(const Other& event) {
    events_.handle(event);
  }
  void finish(const Session& session);
  void put_back_unclaimed();
  void install();
  void open_sessions();
  void check_harness();
  void note_unclaimed();

  bridge::TrainerLink& link_;
  SessionDesk& desk_;
  SessionModel& model_;
  SessionMaker& maker_;
  const std::size_t most_unclaimed_;
  LinkEvents events_;
  Now now_;
  bridge::WorkerQueue queue_;
  int64_t version_ = -1, trainer_term_ = -1;              // installed
  std::shared_ptr<const bridge::WeightSnapshot> wanted_;  // to be installed
  bool is_verified_ = false;  // the installed root hash is the published one
  Clock::time_point next_check_{}, next_notice_{};
};

}  // namespace ringside::rl
