// Starting, signalling and reaping one child process.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ringside::tools {

struct ChildSpec {
  std::string executable;                        // a path; "/proc/self/exe" for this very program
  std::vector<std::string> args;                 // what follows the program's name
  std::map<std::string, std::string> variables;  // added to this process's environment, replacing
  int stderr_fd = -1;  // becomes its standard error; -1: this process's own
};

// How a process ended.
struct ExitStatus {
  bool signalled = false;
  int code = 0;  // the signal's number, or the exit status

  bool ok() const { return !signalled && code == 0; }
  // "exited with status 3" or "was killed by signal 9 (SIGKILL)".
  std::string describe() const;
};

// Starts a child in a process group of its own (a terminal's Ctrl-C reaches the parent alone), with
// standard input from /dev/null, default signal handling, and SIGKILL when this *thread* ends: call
// it from the main thread, so that no child outlives the parent even when that is killed by
// SIGKILL. Returns after the exec has succeeded. Throws std::system_error when the process cannot
// be started.
pid_t spawn(const ChildSpec& spec);

// The child's exit status once it has ended, else nullopt. Whatever the child left in its process
// group is killed. Does not block. Throws std::system_error when `pid` is no child of this process.
std::optional<ExitStatus> reap(pid_t pid);

// Sends a signal to the child's whole process group; a group that is gone is not an error.
void signal_group(pid_t pid, int signal);

// SIGKILL to the child's group, then waits for the child's end. For clean-up paths: never throws.
void kill_and_reap(pid_t pid) noexcept;

}  // namespace ringside::tools
