#include "tests/simulator/simulation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "tests/simulator/pictures.h"
#include "tests/simulator/worker.h"

namespace ringside::simulator {
namespace {

using std::chrono::minutes;

// Beyond the deadlines of workers that never answer.
constexpr seconds kMostIdle{120};
constexpr seconds kLook{1};

// The longest wait that the code under test may choose, several times over.
constexpr minutes kEndsWithin{30};

// Room for the steps that a restart may use and those that are sampled. Only what cannot be
// restored is consumed before the checkpoint.
void limit_journal(Random& random, TrainerPlan& plan, const Scene& scene) {
  const int64_t kBytesOfRecord = scene.sessions  ? 30'000
                                 : scene.images  ? 800 + kMostPictures * 600
                                 : scene.recipes ? 1500
                                                 : 800;
  const int64_t steps = 2 * (1 + plan.max_staleness) + 2;
  plan.journal_max_bytes = static_cast<uint64_t>(kBytesOfRecord * steps * plan.refill_rounds *
                                                 plan.prompts_per_step * plan.group_size);
  plan.checkpoint_every = random.between(1, plan.steps);
}

// Room for those of one rollout, and perhaps a few more.
void limit_images(Random& random, TrainerPlan& plan) {
  constexpr int64_t kBytesOfMessage = 300;
  plan.images.worker_images = kMostPictures + random.between(0, 3);
  plan.images.worker_bytes =
      static_cast<uint64_t>(kBytesOfMessage * (kMostPictures + random.between(0, 2)));
  plan.images.total_bytes = plan.images.worker_bytes * static_cast<uint64_t>(random.between(1, 2));
}

TrainerPlan draw_trainer(Random& random, const Scene& scene) {
  TrainerPlan plan;
  plan.prompts_per_step = random.between(1, 6);
  plan.group_size = random.between(1, 4);
  plan.max_staleness = random.between(0, 2);
  plan.steps = random.between(4, 12);
  plan.checkpoint_every = random.between(1, 4);
  plan.refill_rounds = random.chance(0.3) ? 3 : 1;
  plan.train_time = random.between(Span(milliseconds(20)), Span(seconds(2)));
  plan.fsync = random.chance(0.5) ? bridge::FsyncPolicy::kEvery : bridge::FsyncPolicy::kOff;
  plan.journal_compact_bytes = random.chance(0.5) ? 2000 : 1 << 20;
  plan.window_bytes = random.chance(0.5) ? 1 << 20 : 100;  // or few rollouts at a time
  plan.full_every = random.between(1, 4);
  if (random.chance(0.25)) {
    plan.evaluate_every = random.between(1, 3);
  }
  if (scene.stragglers) {
    plan.group_size = random.between(3, 6);
    plan.min_group_size = random.between(2, plan.group_size - 1);
    plan.straggler_timeout = milliseconds(random.between(500, 20'000));
  }
  if (random.chance(0.15)) {
    limit_journal(random, plan, scene);
  }
  if (scene.images && random.chance(0.6)) {
    limit_images(random, plan);
  }
  if (scene.recipes) {
    plan.group_size += random.between(0, 1);
    plan.recipe = draw_recipe(random, plan.group_size, scene.sessions, scene.stragglers);
    plan.recipe->prompts_per_step = plan.prompts_per_step;
    plan.recipe->held_out_prompts = plan.held_out_prompts;
  }
  return plan;
}

// Servers record no kept sets. With span labels they may keep requests while they load weights, as
// embedded workers continue completions that stopped.
void draw_worker_by_recipe(Random& random, WorkerPlan& plan, const RecipeFacts& facts) {
  plan.stops = random.chance(0.5);
  plan.with_server = plan.with_server && !facts.has_kept;
  if (random.chance(0.4)) {
    plan.server.pause = rl::ServerPause::kKeep;
  }
}

WorkerPlan draw_worker(Random& random, const TrainerPlan& trainer) {
  const int64_t step = trainer.prompts_per_step * trainer.group_size;
  WorkerPlan plan;
  plan.with_server = random.chance(0.5);
  plan.batch_samples = static_cast<std::size_t>(random.between(1, step));
  plan.capacity_samples = random.between(1, 2 * step);
  plan.max_pending = random.chance(0.5) ? 1024 : static_cast<std::size_t>(random.between(1, 4));
  plan.sample_time = random.between(Span(milliseconds(10)), Span(seconds(2)));
  plan.server.concurrency = random.between(1, 4);
  plan.server.load_timeout_s = 20;
  plan.server.pause = random.chance(0.5) ? rl::ServerPause::kAbort : rl::ServerPause::kDrain;
  plan.server_labels = random.chance(0.5);
  plan.failures = random.chance(0.3) ? 0.1 : 0;
  if (trainer.recipe) {
    draw_worker_by_recipe(random, plan, trainer.recipe->facts);
  }
  return plan;
}

// How a worker breaks the protocol, if it does.
void draw_habits(Random& random, WorkerPlan& plan) {
  const int64_t kind = random.between(0, 9);
  if (kind < 2) {
    plan.spoils = random.chance(0.3) ? 1 : 0.2;
  }
  if (kind == 2) {
    plan.never_answers = true;
  }
  if (kind == 3) {
    plan.never_stages = true;
  }
}

// Its samples become sessions of agents.
void draw_sessions(Random& random, WorkerPlan& plan, bool is_good) {
  SessionPlan sessions;
  sessions.with_server = plan.with_server;
  sessions.sample_time = std::min<Span>(plan.sample_time, milliseconds(500));
  sessions.timeout = seconds(random.between(is_good ? 40 : 5, 60));
  sessions.max_turns = random.between(1, 8);
  sessions.max_new_tokens = random.between(1, 8);
  sessions.capacity = plan.capacity_samples;
  sessions.failures = plan.failures;
  sessions.agents = random.between(1, 8);
  const int64_t threads = 2 * sessions.agents + 8;  // as the product's
  sessions.threads = static_cast<std::size_t>(is_good ? threads : random.between(2, threads));
  sessions.mischief = random.chance(0.2) ? 0 : 0.4;
  sessions.losses = random.chance(0.2) ? 0 : random.chance(0.2) ? 0.3 : 0.08;
  if (!is_good && random.chance(0.1)) {
    sessions.agents = 0;
  }
  plan.spoils = 0;  // whoever breaks a rollout is the judge's of other scenes
  plan.sessions = sessions;
}

class Simulation {
 public:
  Simulation(uint64_t seed, const Scene& scene)
      : world_(seed, scene.verbose),
        plan_(draw_trainer(world_.random, scene)),
        trainer_(world_, plan_),
        mean_gap_(world_.random.between(Span(milliseconds(20)), Span(seconds(3)))),
        is_unreliable_(world_.random.chance(0.2)) {
    if (plan_.recipe) {
      world_.recipe = std::make_unique<Recipe>(*plan_.recipe);
      world_.judge.judge_contents_by(
          [this](const bridge::Rollout& r) { return world_.recipe->judge().sampled_for(r); });
    }
    if (scene.sessions) {
      sessions_ = std::make_unique<SessionWorld>(world_.events);
      world_.judge.judge_contents_by(
          [this](const bridge::Rollout& r) { return sessions_->judge.sampled_for(r); });
    }
    const int64_t workers =
        world_.random.chance(0.2) ? world_.random.between(4, 10) : world_.random.between(1, 3);
    // One keeps the rules, so that the run can end.
    const int64_t good = world_.random.between(0, workers - 1);
    // Few, so that rollouts share them; or more.
    const int64_t pictures =
        scene.images ? world_.random.between(1, world_.random.chance(0.5) ? 12 : 200) : 0;
    for (int64_t i = 0; i < workers; ++i) {
      WorkerPlan plan = draw_worker(world_.random, plan_);
      plan.pictures = pictures;
      plan.hangs = scene.stragglers ? 0.05 : 0;
      if (i != good) {
        draw_habits(world_.random, plan);
      }
      if (scene.sessions) {
        draw_sessions(world_.random, plan, i == good);
      }
      workers_.push_back(std::make_unique<SimWorker>(world_, trainer_, plan,
                                                     "w" + std::to_string(i), sessions_.get()));
    }
  }

  Outcome run() {
    Outcome outcome;
    try {
      if (world_.random.chance(0.1)) {  // while it creates its journal
        fault("trainer dies at a journal record", "");
        world_.disk.crash_at_append(static_cast<int>(world_.random.between(1, 3)));
      }
      trainer_.start();
      for (auto& worker : workers_) {
        worker->start();
      }
      const Time quiet =
          world_.events.now() + world_.random.between(Span(seconds(20)), Span(seconds(120)));
      if (is_unreliable_) {
        world_.network.set_unreliable(0.02);
      }
      schedule_fault(quiet);
      look_for_idle_workers();
      world_.events.at(quiet, [this] { heal(); });
      const Time deadline = quiet + kEndsWithin;
      while (!is_over() && world_.events.now() < deadline) {
        world_.events.step();
      }
      outcome.ok = is_over();
      if (!outcome.ok) {
        outcome.trouble = "the run has not ended " + std::to_string(kEndsWithin.count()) +
                          " min after the last fault\n" + summary();
      }
    } catch (const std::exception& error) {
      outcome.ok = false;
      outcome.trouble = std::string(error.what()) + "\n" + summary();
    }
    outcome.faults = world_.faults;
    outcome.events = world_.events.steps();
    outcome.checks = world_.judge.checks();
    outcome.images = trainer_.images();
    outcome.stand_ins = world_.judge.stand_ins();
    if (sessions_) {
      const SessionJudge& judge = sessions_->judge;
      outcome.checks += judge.checks();
      outcome.sessions = {judge.answers(), judge.branches(), judge.of_several_versions()};
    }
    if (world_.recipe) {
      const RecipeJudge& judge = world_.recipe->judge();
      outcome.checks += judge.checks();
      outcome.recipes = {judge.kept_tokens(), judge.greedy(), judge.chosen(), judge.spanned()};
    }
    outcome.virtual_seconds = std::chrono::duration<double>(world_.events.now() - kBegin).count();
    return outcome;
  }

 private:
  // Everybody has left: the trainer after its last step, the workers after its END.
  bool is_over() const {
    return trainer_.is_finished() && std::all_of(workers_.begin(), workers_.end(),
                                                 [](const auto& w) { return w->is_over(); });
  }

  void schedule_fault(Time quiet) {
    const Span gap = world_.random.between(Span(milliseconds(1)), 2 * mean_gap_);
    if (world_.events.now() + gap >= quiet) {
      return;
    }
    world_.events.after(gap, [this, quiet] {
      if (trainer_.is_finished()) {
        return heal();  // what is left is to say END
      }
      inject();
      schedule_fault(quiet);
    });
  }

  // While one worker holds samples, another one that is ready must not stay without any.
  void look_for_idle_workers() {
    world_.events.after(kLook, [this] {
      if (trainer_.is_finished()) {
        return;
      }
      if (trainer_.is_up()) {
        check_idle_workers();
      }
      look_for_idle_workers();
    });
  }

  // A sample may go from one worker that never answers to the next, each until its deadline.
  Span longest_idle() const {
    const auto mute = std::count_if(workers_.begin(), workers_.end(), [](const auto& w) {
      return w->plan().never_answers || w->plan().nobody_claims();
    });
    return kMostIdle + mute * plan_.assignment_timeout;
  }

  void check_idle_workers() {
    const Time now = world_.events.now();
    const auto statuses = trainer_.state()->workers();
    const bool is_work = std::any_of(statuses.begin(), statuses.end(),
                                     [](const auto& w) { return w.in_flight_samples > 0; });
    std::map<std::string, Time> idle;
    for (const bridge::WorkerStatus& w : statuses) {
      const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                       [&](const auto& one) { return one->id() == w.worker_id; });
      const bool idles = is_work && w.in_flight_samples == 0 && w.state == "ready" &&
                         w.version == trainer_.published_version() &&
                         (*worker)->plan().keeps_the_rules();
      if (!idles) {
        continue;
      }
      const auto before = idle_since_.find(w.worker_id);
      const Time since = before == idle_since_.end() ? now : before->second;
      if (now - since > longest_idle()) {
        throw Breach("worker " + w.worker_id + " idles while others hold samples");
      }
      idle[w.worker_id] = since;
    }
    idle_since_ = std::move(idle);
  }

  void heal() {
    world_.trace("-- no more faults");
    world_.network.heal();
    world_.disk.set_full(false);
    world_.disk.crash_at_append(0);
    for (const auto& worker : workers_) {
      worker->heal();
    }
  }

  void fault(const std::string& kind, const std::string& whom) {
    world_.faults.count(kind);
    world_.trace("FAULT " + kind + " " + whom);
  }

  SimWorker& any_worker() {
    return *workers_[static_cast<std::size_t>(
        world_.random.between(0, static_cast<int64_t>(workers_.size()) - 1))];
  }

  void inject() {
    if (sessions_ && world_.random.chance(0.15)) {
      return inject_agent_fault(any_worker());
    }
    const int64_t kind = world_.random.between(0, 99);
    if (kind < 75) {
      inject_worker_fault(any_worker(), kind);
    } else {
      inject_trainer_fault(kind);
    }
  }

  void inject_agent_fault(SimWorker& worker) {
    if (world_.random.chance(0.05)) {
      fault("harness ends", worker.id());
      worker.end_harness();
    } else {
      worker.kill_agent(world_.random.between(Span(milliseconds(10)), Span(seconds(5))));
    }
  }

  void inject_worker_fault(SimWorker& worker, int64_t kind) {
    Random& random = world_.random;
    const auto up_to = [&](Span longest) { return random.between(Span(milliseconds(1)), longest); };
    if (kind < 25) {
      fault("cut", worker.id());
      world_.network.cut(worker.id());
    } else if (kind < 35) {
      fault("partition", worker.id());
      world_.network.block(worker.id(), up_to(seconds(20)));
    } else if (kind < 45) {
      fault("delay", worker.id());
      world_.network.slow_down(worker.id(), up_to(seconds(3)), up_to(seconds(5)));
    } else if (kind < 55) {
      fault("worker dies", worker.id());
      worker.crash(up_to(seconds(5)));
    } else if (kind < 63) {
      fault("worker stops", worker.id());
      worker.stop(up_to(seconds(15)));
    } else if (kind < 70) {
      fault("server restarts", worker.id());
      worker.restart_server(random.between(Span(milliseconds(2500)), Span(seconds(8))));
    } else {
      fault("damaged install", worker.id());
      worker.damage_next_install();
    }
  }

  void inject_trainer_fault(int64_t kind) {
    Random& random = world_.random;
    const Span away = random.between(Span(milliseconds(50)), Span(seconds(15)));
    if (kind < 85) {
      fault("trainer dies at a journal record", "");
      world_.disk.crash_at_append(static_cast<int>(random.between(1, 12)));
    } else if (kind < 89) {
      fault("trainer dies", "");
      trainer_.crash(away);
    } else if (kind < 90) {
      fault("journal byte damaged", "");
      damage_journal(away);
    } else if (kind < 92) {
      fault("machine dies", "");
      if (!trainer_.is_up()) {
        return;
      }
      world_.disk.machine_crash();
      if (plan_.fsync != bridge::FsyncPolicy::kEvery) {
        world_.judge.forgive_losses();
        world_.judge.forgive_unknown_groups();
      }
      trainer_.crash(away);
    } else if (kind < 96) {
      fault("trainer stops", "");
      trainer_.stop(away);
    } else {
      fault("disk full", "");
      world_.disk.set_full(true);
      // What was granted meanwhile is written later, and lost with a trainer that dies before.
      world_.judge.forgive_unknown_groups();
      world_.events.after(random.between(Span(milliseconds(10)), Span(seconds(10))),
                          [this] { world_.disk.set_full(false); });
    }
  }

  // The trainer dies, and finds another bit in its journal. What lies behind it is sampled again.
  void damage_journal(Span away) {
    constexpr std::size_t kMagicBytes = 8;  // a file without these is refused
    if (!trainer_.is_up() || !world_.disk.flip_bit("/journal/journal.bin", kMagicBytes)) {
      return;
    }
    world_.judge.forgive_losses();
    world_.judge.forgive_unknown_groups();
    trainer_.crash(away);
  }

  std::string summary() const {
    std::string text = trainer_.summary();
    for (const auto& worker : workers_) {
      text += "\n" + worker->summary();
    }
    return text;
  }

  World world_;
  TrainerPlan plan_;
  std::unique_ptr<SessionWorld> sessions_;  // before the workers, which use it
  SimTrainer trainer_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  Span mean_gap_;
  bool is_unreliable_;
  std::map<std::string, Time> idle_since_;
};

}  // namespace

Outcome simulate(uint64_t seed, const Scene& scene) { return Simulation(seed, scene).run(); }

}  // namespace ringside::simulator
