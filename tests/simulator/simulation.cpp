#include "tests/simulator/simulation.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/simulator/worker.h"

namespace ringside::simulator {
namespace {

using std::chrono::minutes;

// The longest wait that the code under test may choose, several times over.
constexpr minutes kEndsWithin{30};

TrainerPlan draw_trainer(Random& random) {
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
  return plan;
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
  return plan;
}

class Simulation {
 public:
  Simulation(uint64_t seed, bool verbose)
      : world_(seed, verbose),
        plan_(draw_trainer(world_.random)),
        trainer_(world_, plan_),
        mean_gap_(world_.random.between(Span(milliseconds(20)), Span(seconds(3)))),
        is_unreliable_(world_.random.chance(0.2)) {
    const int64_t workers = world_.random.between(1, 3);
    for (int64_t i = 0; i < workers; ++i) {
      workers_.push_back(std::make_unique<SimWorker>(
          world_, trainer_, draw_worker(world_.random, plan_), "w" + std::to_string(i)));
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
      for (auto& worker : workers_) worker->start();
      const Time quiet =
          world_.events.now() + world_.random.between(Span(seconds(20)), Span(seconds(120)));
      if (is_unreliable_) world_.network.set_unreliable(0.02);
      schedule_fault(quiet);
      world_.events.at(quiet, [this] { heal(); });
      const Time deadline = quiet + kEndsWithin;
      while (!is_over() && world_.events.now() < deadline) world_.events.step();
      outcome.ok = is_over();
      if (!outcome.ok)
        outcome.trouble = "the run has not ended " + std::to_string(kEndsWithin.count()) +
                          " min after the last fault\n" + summary();
    } catch (const std::exception& error) {
      outcome.ok = false;
      outcome.trouble = std::string(error.what()) + "\n" + summary();
    }
    outcome.faults = world_.faults;
    outcome.events = world_.events.steps();
    outcome.checks = world_.judge.checks();
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
    if (world_.events.now() + gap >= quiet) return;
    world_.events.after(gap, [this, quiet] {
      if (trainer_.is_finished()) return heal();  // what is left is to say END
      inject();
      schedule_fault(quiet);
    });
  }

  void heal() {
    world_.trace("-- no more faults");
    world_.network.heal();
    world_.disk.set_full(false);
    world_.disk.crash_at_append(0);
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
    const int64_t kind = world_.random.between(0, 99);
    if (kind < 75) {
      inject_worker_fault(any_worker(), kind);
    } else {
      inject_trainer_fault(kind);
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
    } else if (kind < 92) {
      fault("machine dies", "");
      if (!trainer_.is_up()) return;
      world_.disk.machine_crash();
      if (plan_.fsync != bridge::FsyncPolicy::kEvery) world_.judge.forgive_losses();
      trainer_.crash(away);
    } else if (kind < 96) {
      fault("trainer stops", "");
      trainer_.stop(away);
    } else {
      fault("disk full", "");
      world_.disk.set_full(true);
      world_.events.after(random.between(Span(milliseconds(10)), Span(seconds(10))),
                          [this] { world_.disk.set_full(false); });
    }
  }

  std::string summary() const {
    std::string text = trainer_.summary();
    for (const auto& worker : workers_) text += "\n" + worker->summary();
    return text;
  }

  World world_;
  TrainerPlan plan_;
  SimTrainer trainer_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  Span mean_gap_;
  bool is_unreliable_;
};

}  // namespace

Outcome simulate(uint64_t seed, bool verbose) { return Simulation(seed, verbose).run(); }

}  // namespace ringside::simulator
