// Child processes of a sandbox: a keeper, and the program that it starts. After fork in a process
// with threads, only async-signal-safe calls are allowed until exec. Nothing here allocates, throws
// or takes a lock; all data is prepared before the fork.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "rl/rewards/sandbox.h"
#include "rl/rewards/sandbox_view.h"

namespace ringside::rl {

struct ChildPlan {
  char* const* argv = nullptr;  // argv[0] absolute
  char* const* environment = nullptr;
  const char* directory = nullptr;
  int input = -1;     // becomes standard input
  int output = -1;    // becomes standard output
  int null = -1;      // becomes standard error
  int exchange = -1;  // becomes descriptor 3; -1: none
  int report = -1;    // the keeper writes one ChildReport here
  uint32_t user = 0;
  bool change_user = false;
  const SandboxView* view = nullptr;
  bool permit_view = true;
  int64_t processes = 0;
  int64_t memory_bytes = 0;
  int64_t file_bytes = 0;
  int64_t milliseconds = 0;
};

struct ChildReport {
  int32_t timed_out = 0;
  int32_t status = 0;  // as waitpid gives it
  SandboxFiles files = SandboxFiles::kOpen;
};

// Clones the keeper and returns its process id; -1 with errno on failure. The keeper gets
// namespaces of its own if they are permitted (processes, network and mounts; else fewer). Without
// a process namespace it only starts a program that changes its user: a program with neither could
// start unlimited processes and signal the caller's. With a mount namespace the program gets the
// plan's view, otherwise its limits by Landlock. Without either only a program that changes its
// user is started. The keeper starts the program, waits for it up to the plan's time limit, kills
// the remaining processes, writes its report and exits. It is killed when the calling thread ends.
pid_t start_keeper(const ChildPlan& plan);

}  // namespace ringside::rl
