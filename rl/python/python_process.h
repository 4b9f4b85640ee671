// Kept Python process that answers requests. It starts at the first request, and again after it has
// ended. Torch-free. Linux only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace ringside::rl {

// There is no answer: no process could be started, it ended, or it took too long.
class PythonUnavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The script raised an exception; the text says which and where.
class PythonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct PythonProgram {
  std::string command = "python3";  // interpreter and its arguments, separated by blanks
  std::string script;               // defines setup(value), answer(value) and describe(exception)
  nlohmann::ordered_json setup;     // what setup() gets after each start
  double timeout_s = 60.0;          // of a request
};

// The script's standard output goes to our standard error, and its standard input is empty. The
// process and what it starts are killed when a request takes too long, and when this process ends.
// Thread safety: one thread at a time.
class PythonProcess {
 public:
  // Starts nothing yet.
  explicit PythonProcess(PythonProgram program);
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  // Starts the process and calls setup(), unless it runs.
  // Blocks: at most timeout_s or 300 s, whichever is longer: setup() may load a model.
  // Throws: as ask().
  void start();

  // What answer(value) returns. Objects keep the order of their members.
  // Blocks: at most timeout_s, and as start() if the process must start.
  // Throws: PythonUnavailable and PythonError.
  nlohmann::json ask(const nlohmann::ordered_json& value);

  // Kills the process and what it started. The next request starts it again.
  void stop();

  // Its process id; -1 when it does not run.
  pid_t id() const { return pid_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Limit {
    double seconds;
    Clock::time_point deadline;
  };

  void spawn();
  nlohmann::json call(const char* function, const nlohmann::ordered_json& value, double seconds);
  void send(const std::string& line, const Limit& limit);
  std::string receive(const Limit& limit);
  void wait(short events, const Limit& limit);
  // Stops the process. Throws PythonUnavailable that says how it ended.
  [[noreturn]] void ended();

  PythonProgram program_;
  pid_t pid_ = -1;
  int channel_ = -1;
  std::string received_;
};

}  // namespace ringside::rl
