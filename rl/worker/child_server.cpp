#include "rl/worker/child_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace ringside::rl {
namespace {

constexpr std::chrono::seconds kGrace{10};

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

std::string quoted(std::string text) {
  replace_all(text, "'", R"('\'')");
  return "'" + text + "'";
}

// Between fork and exec: only async-signal-safe calls, nothing that allocates.
[[noreturn]] void become(const char* command, pid_t parent) {
  setpgid(0, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE}) {
    ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(127);  // it may have died before the line above took effect
  }
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) {
    dup2(null, STDIN_FILENO);
  }
  execl("/bin/sh", "sh", "-c", command, static_cast<char*>(nullptr));
  _exit(127);
}

}  // namespace

std::string filled_command(std::string command, const std::string& model, int port) {
  replace_all(command, "{port}", std::to_string(port));
  replace_all(command, "{model}", quoted(model));
  return command;
}

int port_of(const std::string& url) {
  const std::size_t host = url.find("://") == std::string::npos ? 0 : url.find("://") + 3;
  const std::size_t end = std::min(url.find('/', host), url.size());
  const std::size_t colon = url.rfind(':', end);
  int port = colon == std::string::npos || colon < host ? 80 : 0;
  if (port == 0) {
    const auto read = std::from_chars(url.data() + colon + 1, url.data() + end, port);
    if (read.ec != std::errc() || read.ptr != url.data() + end) {
      port = 0;
    }
  }
  if (port < 1 || port > 65535) {
    throw std::invalid_argument("no port in the URL " + url);
  }
  return port;
}

ChildServer::ChildServer(const std::string& command) {
  const std::string line = "exec " + command;  // so that the process we signal is the server
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    become(line.c_str(), parent);
  }
  if (pid_ < 0) {
    throw std::system_error(errno, std::generic_category(), "fork");
  }
  setpgid(pid_, pid_);  // parent and child both call it: the order does not matter
}

std::optional<std::string> ChildServer::ended() {
  siginfo_t info{};
  // The zombie is kept, so that its process id cannot become another group's before the destructor
  // has signalled it.
  if (!ended_ && waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid != 0) {
    ended_ = info.si_code == CLD_EXITED ? "exited with status " + std::to_string(info.si_status)
                                        : "was killed by signal " + std::to_string(info.si_status);
  }
  return ended_;
}

ChildServer::~ChildServer() {
  ::kill(-pid_, SIGTERM);
  const auto until = std::chrono::steady_clock::now() + kGrace;
  while (!ended() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(-pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace ringside::rl
