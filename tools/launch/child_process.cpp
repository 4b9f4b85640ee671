#include "tools/launch/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

namespace ringside::tools {
namespace {

[[noreturn]] void throw_errno(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!variables.contains(text.substr(0, text.find('=')))) {
      entries.push_back(text);
    }
  }
  for (const auto& [name, value] : variables) {
    entries.push_back(name + "=" + value);
  }
  return entries;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (auto& text : strings) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

// Between fork and exec: only async-signal-safe calls, nothing that allocates.
[[noreturn]] void become(const char* executable, char** argv, char** envp, pid_t parent,
                         int stderr_fd, int error_pipe) {
  setpgid(0, 0);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE}) {
    ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above took effect.
  if (getppid() != parent) {
    _exit(127);
  }
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) {
    dup2(null, STDIN_FILENO);
  }
  if (stderr_fd >= 0) {
    dup2(stderr_fd, STDERR_FILENO);
  }
  execve(executable, argv, envp);
  const int error = errno;
  if (write(error_pipe, &error, sizeof(error)) < 0) {
    _exit(126);
  }
  _exit(127);
}

}  // namespace

std::string ExitStatus::describe() const {
  if (!signalled) {
    return "exited with status " + std::to_string(code);
  }
  std::string text = "was killed by signal " + std::to_string(code);
  const char* name = sigabbrev_np(code);
  if (name != nullptr) {
    text.append(" (SIG").append(name).append(")");
  }
  return text;
}

pid_t spawn(const ChildSpec& spec) {
  std::vector<std::string> words = {"ringside"};
  words.insert(words.end(), spec.args.begin(), spec.args.end());
  std::vector<std::string> entries = merged_environment(spec.variables);
  const std::vector<char*> argv = pointers_to(words);
  const std::vector<char*> envp = pointers_to(entries);

  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) {
    throw_errno(errno, "pipe");
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    become(spec.executable.c_str(), const_cast<char**>(argv.data()),
           const_cast<char**>(envp.data()), parent, spec.stderr_fd, error_pipe[1]);
  }
  const int fork_error = errno;
  close(error_pipe[1]);
  if (pid < 0) {
    close(error_pipe[0]);
    throw_errno(fork_error, "fork");
  }
  // Both sides set the group: whichever runs second finds it done.
  setpgid(pid, pid);
  int exec_error = 0;
  ssize_t got = 0;
  do {
    got = read(error_pipe[0], &exec_error, sizeof(exec_error));
  } while (got < 0 && errno == EINTR);
  close(error_pipe[0]);
  if (got == sizeof(exec_error)) {
    waitpid(pid, nullptr, 0);
    throw_errno(exec_error, "cannot execute " + spec.executable);
  }
  return pid;
}

std::optional<ExitStatus> reap(pid_t pid) {
  siginfo_t info{};
  // Only peeks first: while the zombie exists, its process group id cannot be reused during the
  // kill.
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    throw_errno(errno, "waitid " + std::to_string(pid));
  }
  if (info.si_pid == 0) {
    return std::nullopt;
  }
  signal_group(pid, SIGKILL);
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED) != 0) {
    throw_errno(errno, "waitid " + std::to_string(pid));
  }
  return ExitStatus{.signalled = info.si_code != CLD_EXITED, .code = info.si_status};
}

bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const std::size_t after_name = stat.rfind(") ");  // the name may hold any character
  return after_name != std::string::npos && stat.compare(after_name, 4, ") T ") == 0;
}

void signal_group(pid_t pid, int signal) { kill(-pid, signal); }

void kill_and_reap(pid_t pid) noexcept {
  kill(-pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace ringside::tools
