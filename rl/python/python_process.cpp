#include "rl/python/python_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "rl/python/scripts.h"

extern char** environ;

namespace ringside::rl {
namespace {

constexpr int kChildChannel = 3;
// For a start: a file of rewards may load a model.
constexpr double kStartSeconds = 300.0;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of one answer

std::vector<std::string> words_of(const std::string& command) {
  std::istringstream text(command);
  std::vector<std::string> words;
  for (std::string word; text >> word;) {
    words.push_back(word);
  }
  return words;
}

// Descriptors, signals and process group of the child.
class SpawnSettings {
 public:
  explicit SpawnSettings(int channel) {
    posix_spawn_file_actions_init(&files_);
    posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files_, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files_, channel, kChildChannel);
    posix_spawn_file_actions_addclosefrom_np(&files_, kChildChannel + 1);
    posix_spawnattr_init(&attributes_);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&files_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  const posix_spawn_file_actions_t* files() const { return &files_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

}  // namespace

PythonProcess::PythonProcess(PythonProgram program) : program_(std::move(program)) {}

PythonProcess::~PythonProcess() { stop(); }

void PythonProcess::start() {
  if (pid_ < 0) {
    spawn();
    try {
      call("setup", program_.setup, std::max(program_.timeout_s, kStartSeconds));
    } catch (const PythonError&) {
      stop();
      throw;
    }
  }
}

nlohmann::json PythonProcess::ask(const nlohmann::ordered_json& value) {
  // A process that has ended since the last request is started again.
  if (pid_ >= 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) {
    ::close(std::exchange(channel_, -1));
    pid_ = -1;
  }
  start();
  return call("answer", value, program_.timeout_s);
}

void PythonProcess::spawn() {
  std::vector<std::string> words = words_of(program_.command);
  if (words.empty()) {
    throw PythonUnavailable("the Python command is empty");
  }
  words.insert(words.end(), {"-u", "-c", program_.script + "\n" + serve_script()});
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw PythonUnavailable(std::string("no socket pair: ") + std::strerror(errno));
  }
  // Above the child's descriptor, since dup2 of a descriptor to itself would leave it
  // close-on-exec.
  const int child_end = ::fcntl(ends[1], F_DUPFD_CLOEXEC, kChildChannel + 1);
  ::close(ends[1]);
  const SpawnSettings settings(child_end);
  const int failed = posix_spawnp(&pid_, arguments[0], settings.files(), settings.attributes(),
                                  arguments.data(), environ);
  ::close(child_end);
  if (failed != 0) {
    pid_ = -1;
    ::close(ends[0]);
    throw PythonUnavailable("cannot start " + words[0] + ": " + std::strerror(failed) +
                            (failed == ENOENT ? "; install Debian's python3" : ""));
  }
  channel_ = ends[0];
  ::fcntl(channel_, F_SETFL, O_NONBLOCK);
  received_.clear();
}

void PythonProcess::stop() {
  if (pid_ < 0) {
    return;
  }
  ::kill(-pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  ::close(std::exchange(channel_, -1));
}

nlohmann::json PythonProcess::call(const char* function, const nlohmann::ordered_json& value,
                                   double seconds) {
  const Limit limit{seconds, Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                std::chrono::duration<double>(seconds))};
  const nlohmann::ordered_json request{{function, value}};
  send(request.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n",
       limit);
  const nlohmann::json reply =
      nlohmann::json::parse(receive(limit), nullptr, /*allow_exceptions=*/false);
  if (reply.is_object() && reply.contains("value")) {
    return reply["value"];
  }
  if (!reply.is_object() || !reply.contains("error") || !reply["error"].is_string()) {
    stop();
    throw PythonUnavailable("the Python process wrote something else than an answer");
  }
  throw PythonError(reply["error"].get<std::string>());
}

void PythonProcess::wait(short events, const Limit& limit) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(limit.deadline - Clock::now())
            .count();
    struct pollfd channel = {channel_, events, 0};
    const int ready =
        left <= 0 ? 0 : ::poll(&channel, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
    if (ready > 0) {
      return;
    }
    if (ready == 0 && Clock::now() >= limit.deadline) {
      stop();
      std::ostringstream seconds;
      seconds << limit.seconds;
      throw PythonUnavailable("no answer within " + seconds.str() + " s; its process was killed");
    }
  }
}

void PythonProcess::ended() {
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  ::close(std::exchange(channel_, -1));
  throw PythonUnavailable("its Python process ended in the middle of a call, " +
                          (WIFEXITED(status)
                               ? "with exit status " + std::to_string(WEXITSTATUS(status))
                               : "by signal " + std::to_string(WTERMSIG(status))));
}

void PythonProcess::send(const std::string& line, const Limit& limit) {
  for (std::size_t at = 0; at < line.size();) {
    const ssize_t sent = ::send(channel_, line.data() + at, line.size() - at, MSG_NOSIGNAL);
    if (sent > 0) {
      at += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      wait(POLLOUT, limit);
    } else if (errno != EINTR) {
      ended();
    }
  }
}

std::string PythonProcess::receive(const Limit& limit) {
  std::array<char, 65536> block;
  for (;;) {
    const ssize_t got = ::recv(channel_, block.data(), block.size(), 0);
    if (got > 0) {
      received_.append(block.data(), static_cast<std::size_t>(got));
      if (block[static_cast<std::size_t>(got) - 1] == '\n') {
        return std::exchange(received_, "");
      }
      if (received_.size() > kMostBytes) {
        stop();
        throw PythonUnavailable("the answer is longer than 1 GiB");
      }
    } else if (got < 0 && errno == EAGAIN) {
      wait(POLLIN, limit);
    } else if (got == 0 || errno != EINTR) {
      ended();
    }
  }
}

}  // namespace ringside::rl
