// A simulated trainer: the product's TrainerState, Journal and step_policy(), with an owner that
// takes, trains, publishes and checkpoints as the product's does, and dies and starts again on
// request.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "rl/rollouts/step_policy.h"
#include "rollout_bridge/trainer/trainer_state.h"
#include "rollout_bridge/weights/snapshot.h"
#include "tests/simulator/disk.h"
#include "tests/simulator/judge.h"
#include "tests/simulator/network.h"
#include "tests/simulator/recipe.h"

namespace ringside::simulator {

struct TrainerPlan {
  int64_t prompts_per_step = 4;
  int64_t group_size = 4;
  int64_t max_staleness = 0;
  int64_t steps = 8;
  int64_t checkpoint_every = 2;
  int64_t refill_rounds = 1;
  Span train_time = milliseconds(500);
  bridge::FsyncPolicy fsync = bridge::FsyncPolicy::kOff;
  uint64_t journal_max_bytes = 0;
  uint64_t journal_compact_bytes = 2000;
  int64_t window_bytes = 1 << 20;
  int64_t full_every = 4;
  seconds assignment_timeout{60};
  int64_t evaluate_every = 0;  // steps; 0: never
  int64_t held_out_prompts = 2;
  bridge::ImageBounds images = {};
  milliseconds straggler_timeout{0};  // 0: all samples are waited for
  int64_t min_group_size = 2;
  std::optional<RecipePlan> recipe = {};  // without: rollouts have no settings of their own
};

// What became of images, over all starts of a trainer.
struct ImageFigures {
  uint64_t received = 0;  // and stored
  uint64_t asked = 0;     // rollouts answered with a request for images
  uint64_t dropped = 0;   // for want of room
  uint64_t trained = 0;   // steps' images
};

// What everything simulated shares.
struct World {
  EventQueue events;
  Random random;
  FaultCounts faults;
  Trace trace;
  Network network;
  Disk disk;
  Judge judge;
  std::unique_ptr<Recipe> recipe;  // null: without one
  World(uint64_t seed, bool verbose)
      : random(seed), trace(events, verbose), network(events, random, faults), disk(random) {}
};

class SimTrainer final : public TrainerPort {
 public:
  SimTrainer(World& world, const TrainerPlan& plan) : world_(world), plan_(plan) {}

  void start();
  // The process dies; it starts again after `away`.
  void crash(Span away);
  // It does nothing for a while: SIGSTOP, a long collective, a busy machine.
  void stop(Span span) { stopped_until_ = world_.events.now() + span; }

  bool is_up() const { return state_ != nullptr; }
  bool is_finished() const { return finished_; }
  int64_t step() const { return step_; }
  int64_t published_version() const { return published_version_; }
  std::string summary() const;
  ImageFigures images() const;
  bridge::TrainerState* state() { return state_.get(); }

  void on_packet(const std::string& identity, Packet packet) override;
  // A CHUNK, or an ERROR, for a CHUNK_REQUEST; nullopt while it is away.
  std::optional<Packet> answer_chunk(const bridge::Header& header,
                                     const bridge::ChunkBody& request) const;

 private:
  template <class Action>
  void guarded(Action action);
  void schedule_round();
  void round();
  void handle(const std::string& identity, const Packet& packet);
  void end_process();
  void flush();
  std::set<std::string> journalled() const;
  void check_replay() const;
  void publish_first();
  void publish(int64_t version);
  void checkpoint();
  void release(int64_t first_group);
  void train_if_ready();
  void trained();
  void evaluate();
  void take_evaluation();
  void on_ack(const std::string& identity, const bridge::AckBody& ack);
  void watch_credits();
  void check_stand_ins(const std::vector<bridge::Rollout>& rollouts);

  World& world_;
  TrainerPlan plan_;
  // What outlives the process.
  int64_t trainer_term_ = 0;
  int64_t checkpoint_ = 0;  // the step of the latest
  int64_t checkpoint_content_ = 1;
  std::vector<std::pair<int64_t, int64_t>> starts_;  // trainer_term, restored version
  int64_t last_content_ = 1;
  bool finished_ = false;
  ImageFigures images_;  // of the processes before
  // The process.
  uint64_t life_ = 0;
  std::unique_ptr<bridge::TrainerState> state_;
  bridge::GroupPolicy policy_;
  std::unique_ptr<bridge::DeltaChain> chain_;
  std::deque<std::shared_ptr<const bridge::WeightSnapshot>> held_;
  std::deque<std::pair<std::string, Packet>> inbox_;
  int64_t step_ = 0;     // trained
  int64_t content_ = 1;  // of the weights after it
  bool first_is_published_ = false;
  int64_t published_version_ = -1;
  bool training_ = false;
  std::optional<Time> evaluation_ends_;         // when it is given up; nullopt: none is open
  std::map<std::string, int> rejected_in_row_;  // of each identity
  std::map<std::pair<int64_t, int32_t>, Time> asked_since_;  // samples, first
  std::vector<int64_t> unrestorable_;  // slots of the step in training, by the judge's reckoning
  Time stopped_until_{};
};

}  // namespace ringside::simulator
