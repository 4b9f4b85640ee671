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
#include "tools/launch/line_relay.h"
#include "tools/launch/signal_queue.h"

namespace ringside::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kAlikeDeaths = 3;  // this many without progress in between end the run
constexpr int kUsageExit = 2;    // of a child whose command line is wrong

struct Child {
  std::string name;  // "trainer rank 1", "worker 0"
  bool trainer = false;
  bool relayed = true;  // its standard error comes through this process
  ChildSpec spec;
  pid_t pid = 0;  // 0: not running
  std::unique_ptr<LineRelay> relay;
  Clock::time_point started;
  std::optional<Clock::time_point> restart_at;
  std::optional<Clock::time_point> kill_at;  // set when asked to stop: time of SIGKILL
  int deaths = 0;                            // in a row
  std::string last_death;                    // how it died, numbers aside
  int alike_deaths = 0;                      // in a row, without progress
  std::int64_t progress_at_death = 0;
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
                  {{"RANK", std::to_string(rank)},
                   {"WORLD_SIZE", std::to_string(options.num_trainers)},
                   {"LOCAL_RANK", std::to_string(rank)},
                   {"MASTER_ADDR", options.master_addr},
                   {"MASTER_PORT", std::to_string(port)}}};
    children.push_back(std::move(child));
  }
  for (std::size_t i = 0; i < options.worker_args.size(); ++i) {
    Child child;
    child.name = "worker " + std::to_string(i);
    child.spec = {options.executable, options.worker_args[i], {}};
    children.push_back(std::move(child));
  }
  return children;
}

// "worker 12 has 3 files" -> "worker # has # files".
std::string without_numbers(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      plain += c;
    } else if (plain.empty() || plain.back() != '#') {
      plain += '#';
    }
  }
  return plain;
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
      if (child.pid != 0) kill_and_reap(child.pid);
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  LaunchResult run() {
    for (Child& child : children_) start(child);
    while (any_running()) {
      const auto signal = signals_.wait(next_deadline(), relays());
      pump_relays();
      if (!signal) {
        on_deadline();
      } else if (*signal == SIGCHLD) {
        reap_all();
      } else {
        on_signal(*signal);
      }
    }
    return result_;
  }

 private:
  void start(Child& child) {
    child.restart_at.reset();
    child.relay = child.relayed ? std::make_unique<LineRelay>() : nullptr;
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

  void on_signal(int signal) {
    if (interrupt_ != 0 && Clock::now() - interrupted_at_ < kOneRequest) {
      return;
    }
    if (phase_ == Phase::kStopping && interrupt_ != 0) {
      kill_all();
    } else if (phase_ != Phase::kKilling) {
      interrupt_ = signal;
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
      stop(signal, saves ? options_.save_grace : options_.grace);
    }
  }

  void reap_all() {
    std::string failures;
    for (Child& child : children_) {
      if (child.pid == 0) continue;
      const auto status = reap(child.pid);
      if (!status) continue;
      const std::string ending = record_end(child, *status);
      if (!child.trainer) {
        on_worker_exit(child, *status, ending);
      } else if (!status->ok() && phase_ == Phase::kRunning) {
        failures += (failures.empty() ? "" : "; ") + ending;
        reason_told_ = reason_told_ || knows_reason(child);
      } else if (interrupt_ != 0 && !ended_by(*status, interrupt_)) {
        report(ending);  // it was expected to save a checkpoint
      } else if (interrupt_ == 0 && !reason_told_ && !status->signalled && knows_reason(child)) {
        result_.error += "; " + ending;  // this rank knows the reason but did not die first
        reason_told_ = true;
      }
    }
    if (!failures.empty()) {
      fail(failures);
    } else if (phase_ == Phase::kRunning && !trainers_running()) {
      phase_ = Phase::kLeaving;
      leave_deadline_ = Clock::now() + options_.leave;
      for (Child& child : children_) child.restart_at.reset();
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
    if (phase_ == Phase::kStopping || phase_ == Phase::kKilling) return;
    if (status.ok() || phase_ == Phase::kLeaving || !options_.restart_workers) {
      if (!status.ok()) report(ending);
      return;
    }
    const bool usage = !status.signalled && status.code == kUsageExit;
    if (usage || dies_alike(child, status)) {
      reason_told_ = true;
      fail(ending + (usage ? "" : " (three times in the same way)"));
      return;
    }
    if (Clock::now() - child.started > options_.max_backoff) child.deaths = 0;
    schedule_restart(child, ending);
  }

  // Counts consecutive equal deaths without progress and returns whether the limit is reached. A
  // death by signal restarts the count, because a signal comes from outside.
  bool dies_alike(Child& child, const ExitStatus& status) {
    const std::string how =
        status.signalled ? "" : without_numbers(status.describe() + last_words(child));
    const std::int64_t progress = options_.progress ? options_.progress() : 0;
    const bool alike =
        !how.empty() && how == child.last_death && progress == child.progress_at_death;
    child.alike_deaths = alike ? child.alike_deaths + 1 : 1;
    child.last_death = how;
    child.progress_at_death = progress;
    return child.alike_deaths >= kAlikeDeaths;
  }

  void fail(const std::string& why) {
    result_ = {1, why};
    stop(SIGTERM, options_.grace);
  }

  void schedule_restart(Child& child, const std::string& why) {
    // 2^20 times any sensible first delay is beyond any sensible cap; the bound keeps the shift
    // defined.
    const milliseconds delay = std::min(
        options_.max_backoff, options_.backoff * (std::int64_t{1} << std::min(child.deaths, 20)));
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
    report(child.name + " (pid " + std::to_string(child.pid) + ") did not stop; killing it");
    signal_group(child.pid, SIGKILL);
    child.kill_at.reset();
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
    if (options_.report) options_.report(sentence);
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
  bool reason_told_ = false;  // a child's last output is part of the result
};

}  // namespace

int pick_free_port() {
  const auto check = [](bool good, const char* what) {
    if (!good) throw std::system_error(errno, std::generic_category(), what);
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
