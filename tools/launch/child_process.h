// Child process: start, signals and reaping.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ringside::tools {

struct ChildSpec {
  std::string executable;                        // a path; "/proc/self/exe" for this program
  std::vector<std::string> args;                 // arguments after the program's name
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

// Starts a child in a process group of its own, so that a terminal's Ctrl-C reaches only the
// parent. Standard input is /dev/null and signal handling is the default. The child gets SIGKILL
// when the calling *thread* ends. Call it from the main thread, so that no child outlives the
// parent even if the parent is killed by SIGKILL.
// Blocks: until the exec has succeeded.
// Throws: std::system_error when the process cannot be started.
pid_t spawn(const ChildSpec& spec);

// The child's exit status if it has ended, else nullopt. Processes that the child left in its
// process group are killed. Does not block.
// Throws: std::system_error when `pid` is no child of this process.
std::optional<ExitStatus> reap(pid_t pid);

// Whether the process is stopped by SIGSTOP, SIGTSTP or the like, and not by a debugger. False for
// a pid that does not exist.
bool is_stopped(pid_t pid);

// Sends a signal to the child's whole process group. A group that no longer exists is not an error.
void signal_group(pid_t pid, int signal);

// Sends SIGKILL to the child's group and waits for the child to end. For clean-up paths: never
// throws.
void kill_and_reap(pid_t pid) noexcept;

}  // namespace ringside::tools
