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
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "tools/launch/child_process.h"
#include "tools/launch/signal_queue.h"

namespace ringside::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Child {
  std::string name;  // "trainer rank 1", "worker 0"
  bool trainer = false;
  ChildSpec spec;
  pid_t pid = 0;  // 0: not running
  Clock::time_point started;
  std::optional<Clock::time_point> restart_at;
  int deaths = 0;  // in a row
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

// Running: all is well. Leaving: trainers are done, workers may go by themselves. Stopping: SIGTERM
// is out. Killing: SIGKILL is out.
enum class Phase { kRunning, kLeaving, kStopping, kKilling };

class Supervisor {
 public:
  explicit Supervisor(const LaunchOptions& options)
      : options_(options), children_(make_children(options)) {}

  // Only left early by an exception; then nothing may stay behind either.
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
      const auto signal = signals_.wait(next_deadline());
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
    child.pid = spawn(child.spec);
    child.started = Clock::now();
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
    std::optional<Clock::time_point> next = phase_deadline_;
    for (const Child& child : children_) {
      if (child.restart_at && (!next || *child.restart_at < *next)) next = child.restart_at;
    }
    return next;
  }

  void on_deadline() {
    const auto now = Clock::now();
    for (Child& child : children_) {
      if (child.restart_at && *child.restart_at <= now) restart(child);
    }
    if (!phase_deadline_ || *phase_deadline_ > now) return;
    if (phase_ == Phase::kLeaving) {
      report("workers did not leave within " + seconds(options_.leave) + "; stopping them");
      stop(SIGTERM);
    } else if (phase_ == Phase::kStopping) {
      kill_all();
    }
  }

  void on_signal(int signal) {
    if (phase_ == Phase::kStopping && interrupted_) {
      kill_all();
    } else if (phase_ != Phase::kKilling) {
      interrupted_ = true;
      if (result_.ok()) {
        result_ = {128 + signal, "interrupted by signal " + std::to_string(signal) + " (SIG" +
                                     sigabbrev_np(signal) + ")"};
      }
      stop(signal);
    }
  }

  void reap_all() {
    std::string failures;
    for (Child& child : children_) {
      if (child.pid == 0) continue;
      const auto status = reap(child.pid);
      if (!status) continue;
      const std::string obituary =
          child.name + " (pid " + std::to_string(child.pid) + ") " + status->describe();
      child.pid = 0;
      if (!child.trainer) {
        on_worker_exit(child, *status, obituary);
      } else if (!status->ok() && phase_ == Phase::kRunning) {
        failures += (failures.empty() ? "" : "; ") + obituary;
      }
    }
    if (!failures.empty()) {
      result_ = {1, failures};
      stop(SIGTERM);
    } else if (phase_ == Phase::kRunning && !trainers_running()) {
      enter(Phase::kLeaving, options_.leave);
      for (Child& child : children_) child.restart_at.reset();
    }
  }

  void on_worker_exit(Child& child, const ExitStatus& status, const std::string& obituary) {
    if (phase_ == Phase::kStopping || phase_ == Phase::kKilling) return;
    if (status.ok() || phase_ == Phase::kLeaving || !options_.restart_workers) {
      if (!status.ok()) report(obituary);
      return;
    }
    if (Clock::now() - child.started > options_.max_backoff) child.deaths = 0;
    schedule_restart(child, obituary);
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

  void stop(int signal) {
    for (Child& child : children_) {
      child.restart_at.reset();
      if (child.pid != 0) signal_group(child.pid, signal);
    }
    enter(Phase::kStopping, options_.grace);
  }

  void kill_all() {
    for (const Child& child : children_) {
      if (child.pid == 0) continue;
      report(child.name + " (pid " + std::to_string(child.pid) + ") did not stop; killing it");
      signal_group(child.pid, SIGKILL);
    }
    phase_ = Phase::kKilling;
    phase_deadline_.reset();
  }

  void enter(Phase phase, milliseconds limit) {
    phase_ = phase;
    phase_deadline_ = Clock::now() + limit;
  }

  void report(const std::string& sentence) const {
    if (options_.report) options_.report(sentence);
  }

  const LaunchOptions& options_;
  SignalQueue signals_;  // before any child: no SIGCHLD may be missed
  std::vector<Child> children_;
  Phase phase_ = Phase::kRunning;
  std::optional<Clock::time_point> phase_deadline_;
  bool interrupted_ = false;
  LaunchResult result_;
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
