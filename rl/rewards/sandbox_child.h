// The two processes of a sandbox on the far side of fork: a keeper, and the program it starts.
// Between fork and exec of a process with threads only system calls are allowed: nothing here
// allocates, throws or takes a lock, and everything it needs was prepared before.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace ringside::rl {

struct ChildPlan {
  char* const* argv = nullptr;  // argv[0] absolute
  char* const* environment = nullptr;
  const char* directory = nullptr;
  int input = -1;   // becomes standard input
  int output = -1;  // becomes standard output
  int null = -1;    // becomes standard error
  int report = -1;  // the keeper writes one ChildReport here
  uint32_t user = 0;
  bool change_user = false;
  int64_t processes = 0;
  int64_t memory_bytes = 0;
  int64_t file_bytes = 0;
  int64_t milliseconds = 0;
};

struct ChildReport {
  int32_t timed_out = 0;
  int32_t status = 0;  // as waitpid gives it
};

// Clones the keeper, in namespaces of its own when they are permitted (processes and network, else
// processes alone), and returns its id; -1 with errno when that fails. Without a process namespace
// it starts only a program that changes its user: one that neither has could start processes
// without limit and signal the caller's. The keeper starts the program, waits for it up to the
// plan's time, kills what is left, reports, and exits. It dies with the calling thread.
pid_t start_keeper(const ChildPlan& plan);

}  // namespace ringside::rl
