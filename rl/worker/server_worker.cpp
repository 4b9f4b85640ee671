#include "rl/worker/server_worker.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <variant>

#include "rl/log/log.h"
#include "rl/shared_settings.h"
#include "rl/training_run.h"
#include "rl/worker/make_server.h"
#include "rl/worker/request_pool.h"
#include "rl/worker/served_weights.h"
#include "rl/worker/server_answers.h"

namespace ringside::rl {
namespace {

using bridge::Reason;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kIdlePoll{100};
constexpr milliseconds kBusyPoll{2};           // between looks at the pool's answers
constexpr milliseconds kRetryInstall{1000};
constexpr milliseconds kTrustedSilence{2000};  // a server is not started anew and loaded within it
constexpr milliseconds kSendTimeout{60000};
constexpr milliseconds kByeTimeout{5000};
constexpr int kTriesAtTrouble = 3;  // of one sample whose request found no server

class ServerWorker {
 public:
  ServerWorker(const Config& config, const WorkerSettings& settings)
      : config_(config),
        link_(settings),
        model_(load_model_config(config, config.model.path)),
        control_(connected_server()),
        weights_(config, *control_),
        scorer_(config, model_),
        answers_(config, settings.worker_id, weights_, scorer_),
        jobs_(config),
        pool_([this] { return make_server(config_, model_.vocab_size); },
              static_cast<std::size_t>(config.rollout.server_options.concurrency)),
        endpoint_(worker_options(
            config, settings, shared_settings(config, model_, jobs_.prompts(), scorer_.stops()))) {}

  void run() {
    while (!link_.is_over()) {
      const bool busy = pool_.running() > 0 || !work_.empty();
      if (auto event = endpoint_.poll(busy ? kBusyPoll : kIdlePoll)) {
        std::visit([this](auto& e) { handle(e); }, *event);
        continue;  // take everything that has come: newer weights first of all
      }
      deliver(pool_.take_all());
      if (wanted_) {
        try_install();
      } else {
        feed();
      }
    }
    leave();
  }

 private:
  using Snapshot = std::shared_ptr<const bridge::WeightSnapshot>;

  std::unique_ptr<bridge::InferenceServer> connected_server() const {
    auto server = make_server(config_, model_.vocab_size);
    if (starts_server(config_, *server)) {
      return server;  // there is none before the first weights
    }
    const auto until = Clock::now() + load_timeout();
    auto status = server->connect();
    while (!status && status.error().reason == Reason::kClosed && Clock::now() < until && !link_.is_over()) {
      std::this_thread::sleep_for(kRetryInstall);  // it may still be starting
      status = server->connect();
    }
    if (status) {
      status = server->check_sampling(sampling_settings(config_.rollout));
    }
    if (!status) {
      throw std::runtime_error("rollout.server: " + status.error().detail);
    }
    return server;
  }

  milliseconds load_timeout() const {
    return milliseconds(static_cast<int64_t>(config_.rollout.server_options.load_timeout_s * 1000));
  }

  void handle(const bridge::Connected& connected) {
    log::info("connected to run " + connected.run_id + ", epoch " + std::to_string(connected.run_epoch));
    work_.clear();  // a trainer that was started anew grants anew
  }
  void handle(const bridge::Granted& granted) {
    for (SampleJob& job : jobs_.of(granted.groups)) {
      work_.push_back(std::move(job));
    }
  }
  void handle(const bridge::WeightsReady& ready) {
    is_offered_ = true;
    want(ready.snapshot);
  }
  template <class Other>
  void handle(const Other& event) {
    link_.handle(event);
  }

  // From now on nothing is begun before `snapshot` is installed and verified.
  void want(Snapshot snapshot) {
    if (!wanted_) {
      wanted_since_ = Clock::now();
      next_try_ = wanted_since_;
      interrupted_ = false;
    }
    wanted_ = std::move(snapshot);
    for (PoolRequest& request : pool_.withdraw()) {
      work_.push_front(std::move(request.job));
    }
  }

  void try_install() {
    const ServerPause policy = config_.rollout.server_options.pause;
    const auto now = Clock::now();
    if (pool_.running() > 0 && policy != ServerPause::kKeep) {
      const bool late = now > wanted_since_ + load_timeout();
      if ((policy == ServerPause::kAbort || late) && !interrupted_) {
        interrupted_ = true;
        if (late) {
          log::warn("requests still run " + std::to_string(load_timeout().count() / 1000) +
                    " s after new weights came; aborting them");
        }
        note(weights_.interrupt());
      }
      return;
    }
    if (now < next_try_) {
      return;
    }
    const auto status = weights_.install(wanted_);
    last_contact_ = Clock::now();
    if (status) {
      installed();
      return;
    }
    note(status);
    next_try_ = Clock::now() + kRetryInstall;
    if (Clock::now() > wanted_since_ + 2 * load_timeout()) {
      throw std::runtime_error("the server did not take version " + std::to_string(wanted_->manifest.version) + ": " +
                               status.error().detail);
    }
  }

  void installed() {
    current_ = std::exchange(wanted_, nullptr);
    if (std::exchange(in_doubt_, false)) {
      endpoint_.resume();
    }
    if (std::exchange(is_offered_, false)) {
      note(endpoint_.commit_weights(version(), weights_.root_hash()));
    }
  }

  void feed() {
    if (work_.empty() || !current_) {
      return;
    }
    if (pool_.running() == 0 && Clock::now() > last_contact_ + kTrustedSilence) {
      const auto status = weights_.verify();
      if (!status) {
        distrust(status.error().detail);
        return;
      }
      last_contact_ = Clock::now();
    }
    const auto room = static_cast<std::size_t>(config_.rollout.server_options.concurrency);
    while (!work_.empty() && pool_.running() < room) {
      SampleJob job = std::move(work_.front());
      work_.pop_front();
      pool_.submit({job, request_for(job)});
    }
  }

  // The server may not be the one it was: the same weights have to be loaded and verified again.
  void distrust(const std::string& why) {
    log::warn(why + "; loading version " + std::to_string(current_->manifest.version) + " anew before anything is sampled");
    in_doubt_ = true;
    endpoint_.pause();  // no new work until the server is back, and no hurry
    want(current_);
  }

  bridge::GenerateRequest request_for(const SampleJob& job) const {
    bridge::GenerateRequest request;
    request.prompt_ids = scorer_.encode(job.prompt);
    request.max_tokens = config_.rollout.max_completion_tokens;
    request.sampling = sampling_settings(config_.rollout);
    request.stop_ids = scorer_.stops();
    request.seed = static_cast<int64_t>(job.seed >> 1);  // servers take it as a signed number
    const std::string version = std::to_string(current_->manifest.run_epoch) + "." + std::to_string(current_->manifest.version);
    request.request_id = std::to_string(job.group.group_id) + "-" + std::to_string(job.sample_index) + "-" + version + "-" +
                         link_.settings().worker_id;
    request.cache_salt = current_->manifest.run_id + "." + version;
    return request;
  }

  void deliver(std::vector<PoolAnswer> answers) {
    std::vector<PoolAnswer> good;
    for (PoolAnswer& answer : answers) {
      if (!answer.result) {
        failed(answer);
      } else if (!is_ours(answer.result.value())) {
        work_.push_front(std::move(answer.job));  // to be sampled anew, under the weights to come
      } else if (answers_.complete(answer)) {
        good.push_back(std::move(answer));
      } else {
        send(answers_.failed(answer, version()));
      }
    }
    if (good.empty()) {
      return;
    }
    last_contact_ = Clock::now();
    for (const PoolAnswer& answer : good) {
      tries_.erase({answer.job.group.group_id, answer.job.sample_index});
    }
    for (bridge::Rollout& rollout : answers_.rollouts(good, version())) {
      send(std::move(rollout));
    }
  }

  // Whether the answer is whole and of the weights that are installed, as far as anybody can tell.
  bool is_ours(const bridge::GenerateResult& result) {
    if (result.finish_reason == bridge::FinishReason::kAborted) {
      return false;
    }
    if (ServerAnswers::denies_version(result, version())) {
      if (!wanted_) {
        distrust("the server answers under other weights" + (result.label ? ", " + *result.label : ""));
      }
      return false;
    }
    // While the server is in doubt, whoever answers may be another process than the one that was verified.
    return !in_doubt_ || ServerAnswers::names_version(result, version());
  }

  void failed(PoolAnswer& answer) {
    const bridge::Error& error = answer.result.error();
    const auto key = std::pair(answer.job.group.group_id, answer.job.sample_index);
    const bool trouble = error.reason == Reason::kClosed || error.reason == Reason::kTimeout;
    if (trouble && !wanted_) {
      distrust(error.detail);
    }
    if (trouble && ++tries_[key] < kTriesAtTrouble) {
      work_.push_front(std::move(answer.job));
      return;
    }
    log::warn("no sample " + std::to_string(key.second) + " of group " + std::to_string(key.first) + ": " + error.detail);
    tries_.erase(key);
    send(answers_.failed(answer, version()));
  }

  void send(bridge::Rollout rollout) {
    rollout.run_epoch = current_->manifest.run_epoch;
    const std::string id = rollout.rollout_id;
    const auto status = endpoint_.send_rollout(std::move(rollout), kSendTimeout);
    if (!status) {
      log::warn("rollout " + id + " was not sent: " + status.error().detail);
    }
  }

  void leave() {
    pool_.withdraw();
    if (pool_.running() > 0 && control_->capabilities().pause_abort) {
      note(weights_.interrupt());  // else the pool's threads wait for completions nobody wants
      note(control_->resume());
    }
    endpoint_.bye(link_.ended() ? "the run has ended" : "asked to stop", kByeTimeout);
  }

  int64_t version() const { return current_->manifest.version; }
  static void note(const bridge::Status& status) {
    if (!status) {
      log::warn(status.error().detail);
    }
  }

  Config config_;
  LinkEvents link_;
  engine::ModelConfig model_;
  std::unique_ptr<bridge::InferenceServer> control_;
  ServedWeights weights_;
  PromptScorer scorer_;
  ServerAnswers answers_;
  SampleJobs jobs_;
  std::deque<SampleJob> work_;
  std::map<std::pair<int64_t, int32_t>, int> tries_;  // of samples that found no server
  Snapshot current_;  // what is sampled from; null before the first
  Snapshot wanted_;   // to be installed; while there is one, nothing is begun
  Clock::time_point wanted_since_{}, next_try_{}, last_contact_{};
  bool interrupted_ = false;
  bool in_doubt_ = false;  // since some trouble, until the next installation
  bool is_offered_ = false;  // wanted_ comes from the trainer, which waits for its commit
  RequestPool pool_;
  bridge::WorkerEndpoint endpoint_;
};

}  // namespace

void run_server_worker(const Config& config, const WorkerSettings& settings) {
  ServerWorker(config, settings).run();
}

}  // namespace ringside::rl
