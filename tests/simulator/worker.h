// A simulated worker: the product's WorkerState and one of its two loops, over the simulated
// network, with a model or an inference server that takes virtual time and goes wrong on request.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rl/worker/embedded_loop.h"
#include "rl/worker/server_loop.h"
#include "rollout_bridge/worker/worker_state.h"
#include "tests/simulator/agents.h"
#include "tests/simulator/session_side.h"
#include "tests/simulator/trainer.h"
#include "tests/simulator/weights.h"

namespace ringside::simulator {

struct WorkerPlan {
  bool with_server = false;
  std::size_t batch_samples = 16;
  int64_t capacity_samples = 16;
  std::size_t max_pending = 1024;
  Span sample_time = milliseconds(300);  // of a batch, or of one request
  rl::ServerConfig server;
  bool server_labels = true;            // its answers name their version
  double failures = 0;                  // of samples
  double hangs = 0;                     // of requests, or of the model's batches
  bool stops = false;                   // completions stop, and go on in the next batch
  int64_t pictures = 0;                 // that its tools return; 0: none
  std::optional<SessionPlan> sessions;  // its samples are sessions of agents
  // What it does against the protocol.
  double spoils = 0;           // share of its rollouts that break a rule
  bool never_answers = false;  // is alive and sends no rollout
  bool never_stages = false;   // is alive and fetches no weights
  bool nobody_claims() const { return sessions && sessions->agents == 0; }
  bool keeps_the_rules() const {
    return spoils == 0 && !never_answers && !never_stages && !nobody_claims();
  }
};

// What the product's loops see of a WorkerState; WorkerEndpoint without a thread.
class SimLink final : public bridge::TrainerLink {
 public:
  SimLink(bridge::WorkerState& state, World& world, const WorkerPlan& plan)
      : state_(state), world_(world), plan_(plan) {}
  std::optional<bridge::WorkerEvent> next_event() override;
  bool has_room() const override { return state_.rollouts().has_room(); }
  bridge::Status send(const bridge::Rollout& rollout) override;
  bridge::Status commit_weights(int64_t version, const std::string& root_hash) override {
    return state_.commit_weights(version, root_hash);
  }
  void pause() override { state_.pause(); }
  void resume() override { state_.resume(); }
  void set_queue_depth(int64_t samples) override { state_.set_queue_depth(samples); }

 private:
  bridge::WorkerState& state_;
  World& world_;
  const WorkerPlan& plan_;
  std::string last_id_;  // of the rollout before
};

// How much longer the next request or batch takes than it should.
Span draw_hang(World& world, const WorkerPlan& plan);

// A model in the worker's process. Time that passes in a call is added up in `busy`.
class SimModel final : public rl::BatchSampler {
 public:
  SimModel(World& world, const WorkerPlan& plan, std::string worker_id)
      : world_(world), plan_(plan), worker_id_(std::move(worker_id)) {}
  std::string install(const bridge::WeightSnapshot& snapshot) override;
  std::vector<bridge::Rollout> sample(const std::vector<bridge::GrantedSample>& samples,
                                      int64_t version,
                                      const std::function<bool()>& should_stop) override;
  std::size_t unfinished() const override { return unfinished_.size(); }
  void damage_next_install() { damages_ = true; }
  Span take_busy() { return std::exchange(busy_, Span{}); }

 private:
  // A sample with what was drawn so far.
  struct Begun {
    bridge::GrantedSample sample;
    std::vector<SampledPart> with = {};
  };
  std::vector<bridge::Rollout> by_recipe(const std::vector<bridge::GrantedSample>& samples,
                                         int64_t version);

  World& world_;
  const WorkerPlan& plan_;
  std::string worker_id_;
  int64_t content_ = -1;
  int64_t version_ = -1;
  int64_t trainer_term_ = -1;
  bool is_verified_ = false;
  std::pair<int64_t, int64_t> previous_{-1, -1};  // version and content before, of the same term
  std::vector<Begun> unfinished_;
  bool damages_ = false;
  Span busy_{};
};

// An inference server beside the worker: it may die and come back with other weights.
class SimServer final : public rl::ServedPolicy {
 public:
  SimServer(World& world, const WorkerPlan& plan, std::string worker_id)
      : world_(world), plan_(plan), worker_id_(std::move(worker_id)) {}
  void submit(const bridge::GrantedSample& sample, const bridge::Manifest& weights) override;
  std::vector<rl::ServedAnswer> take_answers() override;
  std::vector<bridge::GrantedSample> withdraw() override;
  std::size_t running() const override { return running_.size(); }
  bridge::Status install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) override;
  bridge::Status verify() override;
  bridge::Status interrupt() override;
  std::string root_hash() const override { return root_of(installed_); }
  std::vector<bridge::Rollout> rollouts(std::vector<rl::ServedAnswer> answers,
                                        int64_t version) override;
  bridge::Rollout failed(const rl::ServedAnswer& answer, int64_t version) override;

  // Its process dies and is up again, with the weights it was installed with, after `away`.
  void restart(Span away);
  // The worker's process died, and its connections with it.
  void drop_requests() { running_.clear(); }
  Span take_busy() { return std::exchange(busy_, Span{}); }

 private:
  struct Request {
    bridge::GrantedSample sample;
    Time done{};
    uint64_t process = 0;
    bool is_aborted = false;
    std::vector<SampledPart> with = {};  // several, if it goes on under new weights
  };
  bool keeps_requests() const { return plan_.server.pause == rl::ServerPause::kKeep; }
  SampledPart with_now() const;
  static void add_spans(const std::vector<SampledPart>& with, bridge::GenerateResult& result);
  bridge::Rollout by_recipe(const rl::ServedAnswer& answer, int64_t version);
  bool is_up() const { return world_.events.now() >= up_since_; }

  World& world_;
  const WorkerPlan& plan_;
  std::string worker_id_;
  std::vector<Request> running_;
  int64_t content_ = -1;                      // what the server runs
  int64_t installed_ = -1;                    // what the worker believes
  int64_t version_ = -1, trainer_term_ = -1;  // of these
  // Of answers that are not rollouts yet: what their tokens were sampled from.
  std::map<std::pair<int64_t, int32_t>, std::vector<SampledPart>> answered_;
  std::string label_ = "default";
  uint64_t process_ = 1;
  Time up_since_{};
  Span busy_{};
};

// Fetches chunks over the simulated network.
class SimFetcher final : public bridge::WeightFetcher {
 public:
  using Ask = std::function<void(const bridge::Header&, const bridge::ChunkBody&)>;
  explicit SimFetcher(Ask ask) : ask_(std::move(ask)) {}
  bool begin(const bridge::WeightSession& session, const bridge::OfferBody&,
             const bridge::Manifest&) override {
    session_ = session;
    return true;
  }
  bool prefers_changes() const override { return true; }
  bridge::Result<bridge::FetchState> fetch(bridge::WeightReceiver& receiver,
                                           bridge::WeightReceiver::Clock::time_point now) override;
  const char* encoding(bool builds_on_base) const override {
    return builds_on_base ? "overwrite" : "dense";
  }
  void close() override { answers_.clear(); }
  void on_answer(Packet packet) { answers_.push_back(std::move(packet)); }

 private:
  Ask ask_;
  bridge::WeightSession session_;
  std::deque<Packet> answers_;
};

// What the sessions of all workers share.
struct SessionWorld {
  explicit SessionWorld(const EventQueue& events) : judge(events) {}
  SessionTexts texts;
  SessionJudge judge;
};

class SimWorker final : public WorkerPort {
 public:
  // sessions: for a plan with sessions.
  SimWorker(World& world, SimTrainer& trainer, const WorkerPlan& plan, std::string worker_id,
            SessionWorld* sessions = nullptr);

  void start();
  // The process dies; the launcher starts it again after `away`.
  void crash(Span away);
  // SIGSTOP, a suspended machine.
  void stop(Span span) { stopped_until_ = world_.events.now() + span; }
  void restart_server(Span away);
  // The harness's process ends, or one of its agents is killed.
  void end_harness();
  void kill_agent(Span away);
  // The agents' connections lose nothing more, and no further sample hangs.
  void heal();
  void damage_next_install();

  const std::string& id() const { return worker_id_; }
  const WorkerPlan& plan() const { return plan_; }
  bool is_over() const { return over_; }
  std::string summary() const;

  void on_connected() override;
  void on_closed() override;
  void on_packet(Packet packet) override;

 private:
  // Of one process.
  struct Process {
    Process(World& world, const WorkerPlan& plan, SimServer& server, SessionWorld* sessions,
            const bridge::WorkerOptions& options, SimFetcher::Ask ask, uint64_t life);
    std::chrono::milliseconds turn();
    bool is_over() const;
    Span take_busy();

    std::shared_ptr<SimFetcher> fetcher;
    bridge::WorkerState state;
    SimLink link;
    SimModel model;
    SimServer& server;
    std::optional<rl::EmbeddedLoop> embedded;
    std::optional<rl::ServerLoop> served;
    std::unique_ptr<SessionSide> sessions;
  };

  void schedule_tick();
  void tick();
  void round();  // as WorkerEndpoint's thread
  void follow_link();
  void flush();
  Packet next_packet();
  Packet other_pixels(const bridge::Message& message);
  void fetch_weights();
  void ask_for_chunk(const bridge::Header& header, const bridge::ChunkBody& request);
  void on_chunk(uint64_t life, uint64_t incarnation, Packet packet);
  void schedule_turn(Span after);
  void turn();
  void end_process(Span away);
  void arrive(const ClientRequest& request, const Respond& respond);

  World& world_;
  SimTrainer& trainer_;
  WorkerPlan plan_;
  std::string worker_id_;
  SimServer server_;
  SessionWorld* sessions_;
  std::unique_ptr<SimHarness> harness_;
  uint64_t life_ = 0;
  std::unique_ptr<Process> process_;
  std::string identity_;  // of the connection; empty: none is wanted
  uint64_t opened_for_ = 0;
  bool connected_ = false;
  bool over_ = false;
  Time stopped_until_{};
  std::deque<Packet> inbox_;
  Time busy_until_{};
  uint64_t turns_ = 0;  // the latest scheduled one counts
};

}  // namespace ringside::simulator
