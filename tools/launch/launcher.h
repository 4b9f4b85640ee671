// Launching parent process: starts the trainer ranks and rollout workers of one machine, monitors
// them, and reports which one died and how. A collective that times out cannot report that.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/launch/child_process.h"

namespace ringside::tools {

// Environment variable of every child: "relayed" if its standard error passes through this process,
// else "direct".
inline constexpr char kLaunchedVariable[] = "RINGSIDE_LAUNCHED";

struct LaunchOptions {
  std::string executable = "/proc/self/exe";
  // Every trainer rank gets these arguments, and RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
  // MASTER_PORT.
  int num_trainers = 1;
  std::vector<std::string> trainer_args;
  // One entry per worker: its arguments.
  std::vector<std::vector<std::string>> worker_args;

  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: a free one is picked

  // From SIGTERM to SIGKILL, whenever processes are stopped.
  std::chrono::milliseconds grace{10'000};
  // The same for trainer ranks after an interrupt: they finish their step and save a checkpoint.
  std::chrono::milliseconds save_grace{600'000};
  // Time that workers have to exit by themselves once every trainer rank has exited with status 0.
  std::chrono::milliseconds leave{10'000};

  // The run is stopped and has failed when it takes longer than this; 0 = no limit.
  std::chrono::milliseconds longest{0};

  // A worker that dies is restarted after `backoff`. The delay doubles at each death up to
  // `max_backoff`, and is reset once the worker has lived longer than `max_backoff`. A worker that
  // exits with status 0 is not replaced. The run ends if a restart would not help: when a worker
  // exits with status 2 (its command line is wrong), and as DeathCount says.
  bool restart_workers = true;
  std::chrono::milliseconds backoff{1'000};
  std::chrono::milliseconds max_backoff{30'000};
  // A worker that has been stopped (SIGSTOP) for this long is killed and restarted.
  std::chrono::milliseconds stopped_limit{30'000};

  // A number that changes whenever the run makes progress, e.g. the size of its metrics file.
  // Empty: nothing counts as progress.
  std::function<int64_t()> progress;

  // Receives one sentence for each event that does not end the run, e.g. "worker 0 (pid 7) was
  // killed by signal 9 (SIGKILL); restarting it in 1.0 s". May be empty. Called on the thread of
  // launch().
  std::function<void(const std::string&)> report;
  // Receives each line of standard error that passes through this process. May be empty.
  std::function<void(const std::string&)> copy_line;
  // Advice for the user after a process was killed by this signal and the run has ended; appended
  // to the error. May be empty.
  std::function<std::string(int signal)> advice;
};

struct LaunchResult {
  // 0; 1 when a trainer rank failed or a worker's deaths ended the run; 128 + n after signal n to
  // this process (130 for Ctrl-C).
  int exit_code = 0;
  // Names role, rank and pid of the process, how it died, and its last output if that passed
  // through this process: "worker 0 (pid 123) exited with status 1: no data". Empty on success. If
  // ranks report a timeout and another rank does not stop, that rank is named first, as the cause.
  std::string error;

  bool ok() const { return exit_code == 0; }
};

// Runs until every trainer rank has exited and every worker is gone. No child is left when it
// returns. If a trainer rank fails, all processes are stopped. SIGINT, SIGTERM or SIGHUP is
// forwarded to all children and stops them; a second such signal kills them at once. SIGPIPE (the
// reader of the output is gone) stops them by SIGTERM, once, and is ignored from then on. Standard
// error of workers and of ranks other than 0 passes through this process line by line
// (line_relay.h), that of rank 0 too unless it is a terminal. Call it from the main thread before
// any other thread is started: children are bound to the calling thread, and only that thread
// blocks SIGCHLD to read it from a signalfd. The signal mask is restored on return. Blocks: until
// all processes have ended. Throws: std::invalid_argument for fewer than 1 trainer;
// std::system_error when a process cannot be started (those already started are killed).
LaunchResult launch(const LaunchOptions& options);

// A TCP port of the loopback interface that is free now.
// Throws: std::system_error.
int pick_free_port();

}  // namespace ringside::tools
