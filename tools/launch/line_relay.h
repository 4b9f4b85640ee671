// The standard error of one child process, passed on line by line to this process's own.
#pragma once

#include <cstddef>
#include <string>

namespace ringside::tools {

// A child that writes to a terminal by itself tears a progress bar that another process draws
// there; through a relay its lines arrive whole, and on a terminal each first clears the line it is
// printed on. What a dying child says last is kept for whoever reports the death (reason()). A line
// longer than 64 KiB is passed on in pieces. Not thread-safe.
class LineRelay {
 public:
  // Throws std::system_error when no pipe can be made.
  LineRelay();
  ~LineRelay();
  LineRelay(const LineRelay&) = delete;
  LineRelay& operator=(const LineRelay&) = delete;

  // The end for the child; closed here by close_child_end() once the child has it.
  int child_end() const { return child_end_; }
  void close_child_end();

  // Readable when there is something to pump; -1 after the end of the stream.
  int fd() const { return fd_; }

  // Passes on the whole lines that have come. Does not block. From a line that begins with
  // "ringside: " on - the executable's last words - lines are held back.
  void pump();

  // The child is gone: passes on what is left of its last line.
  void finish();

  // What the child was heard to die of: the lines held back, else its last line that is not empty.
  const std::string& reason() const { return held_.empty() ? last_line_ : held_; }

 private:
  void pass_on(const std::string& line);

  int fd_ = -1;
  int child_end_ = -1;
  bool terminal_;
  std::string partial_;
  std::string held_;
  std::string last_line_;
};

}  // namespace ringside::tools
