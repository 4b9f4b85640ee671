#include "tools/launch/launcher.h"

#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "tools/launch/child_process.h"
#include "tools/launch/death_count.h"
#include "tools/launch/line_relay.h"
#include "tools/launch/signal_queue.h"

namespace ringside::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kUsageExit = 2;  // of a child whose command line is wrong

struct Child {
  std::string name;  // "trainer rank 1", "worker 0"
  bool trainer = false;
  bool relayed = true;  // its standard error comes through this process
  ChildSpec spec;
  pid_t pid = 0;  // 0: not running
  std::unique_ptr<LineRelay> relay;
  Clock::time_point started;
  std::optional<Clock::time_point> restart_at;
  // Time of SIGKILL: set when the child is asked to stop, and while a worker is stopped (SIGSTOP).
  std::optional<Clock::time_point> kill_at;
  bool stopped = false;      // by SIGSTOP or the like
  bool killed_here = false;  // SIGKILL came from this process
  int deaths = 0;            // in a row
  DeathCount alike_deaths;
};

std::string seconds(milliseconds duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(duration.count()) / 1000);
  return text;
}

std::vector<Child> make_children(const LaunchOptions& options) {
  const int port = options.master_port != 0 ? options.master_port : pick_free_port();
  std::vector<Child> children;
  for (int rank = 0; rank < options.num_trainers; ++rank) {
    Child child;
    child.name = "trainer rank " + std::to_string(rank);
    child.trainer = true;
    child.relayed = rank != 0 || isatty(STDERR_FILENO) != 1;  // rank 0 draws a bar on a terminal
    child.spec = {options.executable,
                  options.trainer_args,
                  {{kLaunchedVariable, child.relayed ? "relayed" : "direct"},
                   {"RANK", std::to_string(rank)},
                   {"WORLD_SIZE", std::to_string(options.num_trainers)},
                   {"LOCAL_RANK", std::to_string(rank)},
                   {"MASTER_ADDR", options.master_addr},
                   {"MASTER_PORT", std::to_string(port)}}};
    children.push_back(std::move(child));
  }
  for (std::size_t i = 0; i < options.worker_args.size(); ++i) {
    Child child;
    child.name = "worker " + std::to_string(i);
    child.spec = {options.executable, options.worker_args[i], {{kLaunchedVariable, "relayed"}}};
    children.push_back(std::move(child));
  }
  return children;
}

// The kernel sends SIGKILL when memory runs out, and nobody else does so often.
std::string cause_of(const ExitStatus& status) {
  return status.signalled && status.code == SIGKILL ? ": out of memory? (`dmesg` tells)" : "";
}

// Whether a rank's last output says that it waited in vain for another rank.
bool tells_timeout(const std::string& text) {
  return text.find("imed out") != std::string::npos || text.find("timeout") != std::string::npos;
}

// Whether the status is 0, that of a program that stops at the signal, or death by it.
bool ended_by(const ExitStatus& status, int signal) {
  return status.ok() || status.code == (status.signalled ? signal : 128 + signal);
}

// Running: no stop requested. Leaving: trainers have finished, workers may exit by themselves.
// Stopping: every child was asked to stop and has a time at which it is killed. Killing: SIGKILL
// was sent.
enum class Phase { kRunning, kLeaving, kStopping, kKilling };

class Supervisor {
 public:
  explicit Supervisor(const LaunchOptions& options)
      : options_(options), children_(make_children(options)) {
    if (options.longest.count() > 0) {
      run_deadline_ = Clock::now() + options.longest;
    }
  }

  // Runs early only after an exception; even then no child may be left.
  ~Supervisor() {
    for (const Child& child : children_) {
      if (child.pid != 0) {
        kill_and_reap(child.pid);
      }
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  LaunchResult run() {
    for (Child& child : children_) {
      start(child);
    }
    while (any_running()) {
      const auto signal = signals_.wait(next_deadline(), relays());
      pump_relays();
      if (!signal) {
        on_deadline();
      } else if (*signal == SIGCHLD) {
        note_stopped();
        reap_all();
      } else {
        on_signal(*signal);
      }
    }
    if (!hung_.empty() && tells_timeout(result_.error)) {
      result_.error = hung_ + "; the others waited for it: " + result_.error;
    }
    return result_;
  }

 private:
  void start(Child& child) {
    child.restart_at.reset();
    child.stopped = child.killed_here = false;
    child.relay = child.relayed ? std::make_unique<LineRelay>(options_.copy_line) : nullptr;
    child.spec.stderr_fd = child.relay ? child.relay->child_end() : -1;
    child.pid = spawn(child.spec);
    if (child.relay) {
      child.relay->close_child_end();
    }
    child.started = Clock::now();
  }

  std::vector<int> relays() const {
    std::vector<int> fds;
    for (const Child& child : children_) {
      if (child.relay && child.relay->fd() >= 0) {
        fds.push_back(child.relay->fd());
      }
    }
    return fds;
  }
  void pump_relays() {
    for (Child& child : children_) {
      if (child.relay) {
        child.relay->pump();
      }
    }
  }

  bool any_running() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.pid != 0; });
  }
  bool trainers_running() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.trainer && child.pid != 0; });
  }

  std::optional<Clock::time_point> next_deadline() const {
    std::optional<Clock::time_point> next = leave_deadline_;
    if (run_deadline_ && (!next || *run_deadline_ < *next)) {
      next = run_deadline_;
    }
    for (const Child& child : children_) {
      for (const auto& deadline : {child.restart_at, child.kill_at}) {
        if (deadline && (!next || *deadline < *next)) {
          next = deadline;
        }
      }
    }
    return next;
  }

  void on_deadline() {
    const auto now = Clock::now();
    for (Child& child : children_) {
      if (child.restart_at && *child.restart_at <= now) {
        restart(child);
      }
      if (child.kill_at && *child.kill_at <= now) {
        kill_child(child);
      }
    }
    if (run_deadline_ && *run_deadline_ <= now) {
      run_deadline_.reset();
      fail("the run has not ended within " + seconds(options_.longest));
    }
    if (leave_deadline_ && *leave_deadline_ <= now) {
      report("workers did not leave within " + seconds(options_.leave) + "; stopping them");
      stop(SIGTERM, options_.grace);
    }
  }

  // Notes which children were stopped or continued. A stopped worker is replaced after a while, a
  // stopped rank is waited for: it holds a part of the model.
  void note_stopped() {
    for (Child& child : children_) {
      const bool stopped = child.pid != 0 && is_stopped(child.pid);
      if (phase_ != Phase::kRunning || stopped == child.stopped) {
        continue;
      }
      child.stopped = stopped;
      const std::string name = child.name + " (pid " + std::to_string(child.pid) + ")";
      if (!stopped) {
        child.kill_at.reset();
        report(name + " continues");
      } else if (child.trainer) {
        report(name + " is stopped (SIGSTOP); the run waits for it");
      } else {
        child.kill_at = Clock::now() + options_.stopped_limit;
        report(name + " is stopped (SIGSTOP); it is replaced after " +
               seconds(options_.stopped_limit));
      }
    }
  }

  void on_signal(int signal) {
    const bool again = interrupt_ != 0 && Clock::now() - interrupted_at_ < kOneRequest;
    // Each line that nobody reads brings one more SIGPIPE.
    if (again || (signal == SIGPIPE && phase_ != Phase::kRunning)) {
      return;
    }
    if (phase_ == Phase::kStopping && interrupt_ != 0) {
      kill_all();
    } else if (phase_ != Phase::kKilling) {
      if (signal == SIGPIPE) {
        ::signal(SIGPIPE, SIG_IGN);  // what is written from now on must not kill this process
      }
      // The children's own output goes to this process, so SIGPIPE would tell them nothing.
      interrupt_ = signal == SIGPIPE ? SIGTERM : signal;
      interrupted_at_ = Clock::now();
      if (result_.ok()) {
        result_ = {128 + signal, "interrupted by signal " + std::to_string(signal) + " (SIG" +
                                     sigabbrev_np(signal) + ")"};
      }
      const bool saves = phase_ == Phase::kRunning;
      if (saves) {
        report(result_.error +
               ": the trainer finishes its step and saves; a second signal stops at once");
      }
      stop(interrupt_, saves ? options_.save_grace : options_.grace);
    }
  }

  void reap_all() {
    std::string failures;
    std::string advice;
    for (Child& child : children_) {
      if (child.pid == 0) {
        continue;
      }
      const auto status = reap(child.pid);
      if (!status) {
        continue;
      }
      const std::string ending = record_end(child, *status);
      if (!child.trainer) {
        on_worker_exit(child, *status, ending);
      } else if (!status->ok() && phase_ == Phase::kRunning) {
        failures += (failures.empty() ? "" : "; ") + ending;
        advice = advice.empty() ? advice_after(*status) : advice;
        reason_told_ = reason_told_ || knows_reason(child);
      } else if (interrupt_ != 0 && !ended_by(*status, interrupt_)) {
        report(ending);  // it was expected to save a checkpoint
      } else if (interrupt_ == 0 && !reason_told_ && !status->signalled && knows_reason(child)) {
        result_.error += "; " + ending;  // this rank knows the reason but did not die first
        reason_told_ = true;
      }
    }
    if (!failures.empty()) {
      fail(failures + advice);
    } else if (phase_ == Phase::kRunning && !trainers_running()) {
      phase_ = Phase::kLeaving;
      leave_deadline_ = Clock::now() + options_.leave;
      for (Child& child : children_) {
        child.restart_at.reset();
      }
    }
  }

  // "worker 0 (pid 7) exited with status 1: its last words".
  std::string record_end(Child& child, const ExitStatus& status) {
    std::string ending =
        child.name + " (pid " + std::to_string(child.pid) + ") " + status.describe();
    child.pid = 0;
    child.kill_at.reset();
    if (child.relay) {
      child.relay->finish();
    }
    if (!child.killed_here) {
      ending += cause_of(status);
    }
    // A signal comes from outside: the child's last output is unrelated to it.
    if (!status.ok() && !status.signalled && !last_words(child).empty()) {
      ending += ": " + last_words(child);
    }
    return ending;
  }

  static std::string last_words(const Child& child) {
    return child.relay ? child.relay->reason() : std::string();
  }

  // Other output is no reason, and was forwarded when it came.
  static bool knows_reason(const Child& child) { return child.relay && child.relay->holds_words(); }

  void on_worker_exit(Child& child, const ExitStatus& status, const std::string& ending) {
    if (phase_ == Phase::kStopping || phase_ == Phase::kKilling) {
      return;
    }
    if (status.ok() || phase_ == Phase::kLeaving || !options_.restart_workers) {
      if (!status.ok()) {
        report(ending);
      }
      return;
    }
    const bool usage = !status.signalled && status.code == kUsageExit;
    const std::string hopeless = usage || child.killed_here ? "" : count_death(child, status);
    if (usage || !hopeless.empty()) {
      reason_told_ = true;
      fail(ending + hopeless + advice_after(status));
      return;
    }
    if (Clock::now() - child.started > options_.max_backoff) {
      child.deaths = 0;
    }
    schedule_restart(child, ending);
  }

  // Why a restart would not help, such as " (three times in the same way)"; "" if it may.
  std::string count_death(Child& child, const ExitStatus& status) const {
    const int count = child.alike_deaths.add(status, last_words(child),
                                             options_.progress ? options_.progress() : 0);
    return count == 0 ? "" : " (" + std::to_string(count) + " times in the same way)";
  }

  std::string advice_after(const ExitStatus& status) const {
    return status.signalled && options_.advice ? options_.advice(status.code) : "";
  }

  void fail(const std::string& why) {
    result_ = {1, why};
    stop(SIGTERM, options_.grace);
  }

  void schedule_restart(Child& child, const std::string& why) {
    // 2^20 times any sensible first delay is beyond any sensible cap; the bound keeps the shift
    // defined.
    const milliseconds delay = std::min(
        options_.max_backoff, options_.backoff * (int64_t{1} << std::min(child.deaths, 20)));
    ++child.deaths;
    child.restart_at = Clock::now() + delay;
    report(why + "; restarting it in " + seconds(delay));
  }

  void restart(Child& child) {
    try {
      start(child);
      report(child.name + " is running again (pid " + std::to_string(child.pid) + ")");
    } catch (const std::system_error& e) {
      schedule_restart(child, child.name + " cannot be started: " + e.what());
    }
  }

  // Asks every child to stop. Trainers get `trainer_grace`, workers always options.grace.
  void stop(int signal, milliseconds trainer_grace) {
    phase_ = Phase::kStopping;
    leave_deadline_.reset();
    for (Child& child : children_) {
      child.restart_at.reset();
      if (child.pid != 0) {
        signal_group(child.pid, signal);
        child.kill_at = Clock::now() + (child.trainer ? trainer_grace : options_.grace);
      }
    }
  }

  void kill_child(Child& child) {
    const std::string name = child.name + " (pid " + std::to_string(child.pid) + ")";
    const bool stopped = is_stopped(child.pid);
    child.kill_at.reset();
    if (phase_ == Phase::kRunning && !stopped) {
      return;  // it continued meanwhile
    }
    report(name + (phase_ == Phase::kRunning ? " is still stopped" : " did not stop") +
           "; killing it");
    if (child.trainer && interrupt_ == 0) {
      hung_ += (hung_.empty() ? "" : "; ") + name +
               (stopped ? " hung (it was stopped by a signal)" : " hung") + " and was killed";
    }
    child.killed_here = true;
    signal_group(child.pid, SIGKILL);
  }

  void kill_all() {
    phase_ = Phase::kKilling;
    for (Child& child : children_) {
      if (child.pid != 0) {
        kill_child(child);
      }
    }
  }

  void report(const std::string& sentence) const {
    if (options_.report) {
      options_.report(sentence);
    }
  }

  const LaunchOptions& options_;
  SignalQueue signals_;  // before any child: no SIGCHLD may be missed
  std::vector<Child> children_;
  Phase phase_ = Phase::kRunning;
  std::optional<Clock::time_point> leave_deadline_;
  std::optional<Clock::time_point> run_deadline_;
  int interrupt_ = 0;  // the last signal to this process
  Clock::time_point interrupted_at_;
  LaunchResult result_;
  std::string hung_;  // ranks that were killed because they did not stop when another failed
  bool reason_told_ = false;  // a child's last output is part of the result
};

}  // namespace

int pick_free_port() {
  const auto check = [](bool good, const char* what) {
    if (!good) {
      throw std::system_error(errno, std::generic_category(), what);
    }
  };
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(fd >= 0, "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  check(bound, "binding a free port");
  return ntohs(address.sin_port);
}

LaunchResult launch(const LaunchOptions& options) {
  if (options.num_trainers < 1) {
    throw std::invalid_argument("launch: num_trainers is " + std::to_string(options.num_trainers) +
                                ", expected at least 1");
  }
  return Supervisor(options).run();
}

}  // namespace ringside::tools
