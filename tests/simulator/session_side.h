// The sessions of a simulated worker: the product's desk, gateway and session loop, between the
// simulated network and agents. HTTP threads and the model take virtual time.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "rl/gateway/gateway.h"
#include "rl/worker/session_loop.h"
#include "tests/simulator/session_judge.h"
#include "tests/simulator/trainer.h"

namespace ringside::simulator {

struct SessionPlan {
  bool with_server = false;  // several requests at a time; otherwise all that wait as one batch
  Span sample_time = milliseconds(300);
  Span timeout = seconds(30);  // of a session
  int64_t max_turns = 6;
  int64_t max_new_tokens = 8;
  std::size_t threads = 8;  // of HTTP
  int64_t capacity = 16;    // samples that the worker asks for
  double failures = 0;      // of requests
  int64_t agents = 2;       // 0: no harness claims anything
  double mischief = 0.3;    // share of an agent's steps that are none of a plain conversation
  double losses = 0.1;      // share of requests and answers that a connection loses
};

// What an agent sends, and gets. Status 0: the connection was refused.
enum class Route { kClaim, kChat, kText, kReward };
struct ClientRequest {
  Route route = Route::kClaim;
  std::string session;
  nlohmann::ordered_json body;
};
struct ClientResponse {
  int status = 0;
  nlohmann::ordered_json body = {};
};
using Respond = std::function<void(ClientResponse)>;

// The model of a worker with sessions: DecoderSessions, or ServerSessions with its server.
class SimSessionModel final : public rl::SessionModel {
 public:
  SimSessionModel(World& world, SessionJudge& judge, const SessionPlan& plan)
      : world_(world), judge_(judge), plan_(plan) {}
  std::string install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) override;
  void submit(std::vector<std::shared_ptr<rl::WaitingRequest>> requests) override;
  bool work() override;
  std::size_t running() const override { return running_.size(); }
  void drop_requests() override { running_.clear(); }

  void damage_next_install() { damages_ = true; }
  // The server restarts with other weights. The worker ends when it finds out.
  void restart_server() { has_restarted_ = plan_.with_server; }
  Span take_busy() { return std::exchange(busy_, Span{}); }

 private:
  struct Running {
    std::shared_ptr<rl::WaitingRequest> request;
    Time done{};
  };
  void answer(rl::WaitingRequest& request);

  World& world_;
  SessionJudge& judge_;
  const SessionPlan& plan_;
  std::vector<Running> running_;
  int64_t content_ = -1, version_ = -1, trainer_term_ = -1;
  bool damages_ = false, has_restarted_ = false;
  Span busy_{};
};

// Opens sessions as SessionJobs does.
class SimSessionMaker final : public rl::SessionMaker {
 public:
  SimSessionMaker(World& world, SessionJudge& judge, const SessionPlan& plan, std::string worker_id,
                  std::string process)
      : world_(world),
        judge_(judge),
        plan_(plan),
        worker_id_(std::move(worker_id)),
        process_(std::move(process)) {}
  std::shared_ptr<rl::Session> session_of(const bridge::GrantedSample& sample) override;
  bridge::Rollout rollout_of(const rl::Session& session, int64_t version) override;
  // Throws: when the harness has ended.
  void check_harness() override;
  void end_harness() { harness_has_ended_ = true; }

 private:
  rl::StatedSampling sampling_of(const bridge::GrantedSample& sample);
  rl::StatedSampling expected_of(const bridge::GrantedSample& sample) const;

  World& world_;
  SessionJudge& judge_;
  const SessionPlan& plan_;
  std::string worker_id_, process_;
  int64_t opened_ = 0;
  bool harness_has_ended_ = false;
};

// The routes of GatewayServer, served by as many threads as it has: each request keeps one until it
// is answered, and others wait.
class SimHttp {
 public:
  SimHttp(World& world, SessionJudge& judge, rl::Gateway& gateway, std::string process,
          std::size_t threads)
      : world_(world),
        judge_(judge),
        gateway_(gateway),
        process_(std::move(process)),
        threads_(threads) {}

  void arrive(ClientRequest request, Respond respond);
  // The loop has made a turn, which takes `busy`: what it opened and answered goes out after it.
  void after_turn(Span busy);
  // The desk is closed: every request is refused, and none goes on waiting.
  void finish_all();
  // Samples that requests wait for.
  std::size_t sampling() const;

 private:
  struct Claim {
    Time until{};
    Respond respond;
  };
  struct Chat {
    std::shared_ptr<rl::Session> session;
    std::optional<rl::PendingAnswer> pending;
    rl::SessionDesk::Answers answers;
    Respond respond;
    bool is_due = false;  // its thread will wake

    bool are_sampled() const;
  };

  bool has_thread() const { return claims_.size() + chats_.size() < threads_; }
  void serve_queue();
  void serve(ClientRequest request, const Respond& respond);
  void claim(const ClientRequest& request, const Respond& respond);
  bool try_claim(const Respond& respond);
  void reward(const ClientRequest& request, const Respond& respond);
  void chat(const ClientRequest& request, const Respond& respond);
  void finish(Chat& chat);

  World& world_;
  SessionJudge& judge_;
  rl::Gateway& gateway_;
  std::string process_;
  std::size_t threads_;
  std::deque<std::pair<ClientRequest, Respond>> queue_;
  std::deque<Claim> claims_;
  std::vector<std::shared_ptr<Chat>> chats_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // events ask whether this is
};

// Texts and ids of all workers of a run.
struct SessionTexts {
  SessionTexts();
  engine::Tokenizer tokenizer;
  rl::ChatText chat;
};

// Tells the judge what the trainer asks for and gets.
class WatchedLink final : public bridge::TrainerLink {
 public:
  WatchedLink(bridge::TrainerLink& link, SessionJudge& judge, std::string process)
      : link_(link), judge_(judge), process_(std::move(process)) {}
  std::optional<bridge::WorkerEvent> next_event() override;
  bool has_room() const override { return link_.has_room(); }
  bridge::Status send(const bridge::Rollout& rollout) override;
  bridge::Status commit_weights(int64_t version, const std::string& root_hash) override {
    return link_.commit_weights(version, root_hash);
  }
  void pause() override { link_.pause(); }
  void resume() override { link_.resume(); }
  void set_queue_depth(int64_t samples) override { link_.set_queue_depth(samples); }

 private:
  bridge::TrainerLink& link_;
  SessionJudge& judge_;
  std::string process_;
};

// All of one process.
class SessionSide {
 public:
  SessionSide(World& world, SessionJudge& judge, SessionTexts& texts, const SessionPlan& plan,
              bridge::TrainerLink& link, const std::string& worker_id, uint64_t life);
  // The process has died.
  ~SessionSide();

  std::chrono::milliseconds turn();
  bool is_over() const { return loop_->is_over(); }
  // As the process ends by itself: nothing may go on waiting. Call before the destructor.
  void leave();
  Span take_busy() { return std::exchange(busy_, Span{}); }
  SimHttp& http() { return http_; }
  SimSessionModel& model() { return model_; }
  SimSessionMaker& maker() { return maker_; }

 private:
  SessionJudge& judge_;
  const SessionPlan& plan_;
  std::string process_;
  WatchedLink link_;
  SimSessionModel model_;
  SimSessionMaker maker_;
  rl::SessionDesk desk_;
  rl::Gateway gateway_;
  SimHttp http_;
  std::unique_ptr<rl::SessionLoop> loop_;
  Span busy_{};
};

}  // namespace ringside::simulator
