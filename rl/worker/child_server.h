// An inference server as a child process of a rollout worker.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace ringside::rl {

// `command` with every {model} and {port} filled in, quoted for a shell.
std::string filled_command(std::string command, const std::string& model, int port);

// The port of http://host[:port][/prefix]. Throws std::invalid_argument when there is none in [1,
// 65535].
int port_of(const std::string& url);

class ChildServer {
 public:
  // Runs the command line by /bin/sh in a process group of its own, with standard input from
  // /dev/null and output where ours goes. It is killed when the calling *thread* ends, however that
  // ends. Returns at once. Throws std::system_error when there is no process to be had.
  explicit ChildServer(const std::string& command);
  // SIGTERM to the group; SIGKILL to what is left of it after ten seconds. Blocks until it is gone.
  ~ChildServer();
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;

  // How it ended; nullopt while it runs.
  std::optional<std::string> ended();

 private:
  pid_t pid_;
  std::optional<std::string> ended_;
};

}  // namespace ringside::rl
