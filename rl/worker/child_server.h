// Inference server as a child process of a rollout worker.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace ringside::rl {

// `command` with every {model} replaced by the shell-quoted path and every {port} by the number.
std::string filled_command(std::string command, const std::string& model, int port);

// The port of http://host[:port][/prefix]; 80 without one.
// Throws: std::invalid_argument for a port outside [1, 65535].
int port_of(const std::string& url);

class ChildServer {
 public:
  // Runs the command line with /bin/sh in a process group of its own. Standard input is /dev/null;
  // output goes to this process's output. The server is killed when the calling *thread* ends, in
  // any way.
  // Blocks: never. A command that cannot be run shows in ended().
  // Throws: std::system_error when no process can be started.
  explicit ChildServer(const std::string& command);
  // Sends SIGTERM to the group, and SIGKILL after ten seconds to processes that are left.
  // Blocks: until the server is gone.
  ~ChildServer();
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;

  // How the server ended; nullopt while it runs.
  std::optional<std::string> ended();

 private:
  pid_t pid_;
  std::optional<std::string> ended_;
};

}  // namespace ringside::rl
