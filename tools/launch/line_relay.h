// Line relay: forwards one child's standard error line by line to this process's standard error.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace ringside::tools {

// Without a relay, a child that writes to a terminal breaks a progress bar that another process
// draws there. A relay forwards whole lines, and on a terminal clears the current line first. It
// keeps the child's last output for the report of its death (reason()). A line longer than 64 KiB
// is forwarded in pieces.
// Thread safety: none.
class LineRelay {
 public:
  // copy: also receives each line that is forwarded; may be empty.
  // Throws: std::system_error when no pipe can be created.
  explicit LineRelay(std::function<void(const std::string&)> copy = {});
  ~LineRelay();
  LineRelay(const LineRelay&) = delete;
  LineRelay& operator=(const LineRelay&) = delete;

  // The pipe's end for the child. Call close_child_end() once the child has inherited it.
  int child_end() const { return child_end_; }
  void close_child_end();

  // Readable when pump() has something to read; -1 after the end of the stream.
  int fd() const { return fd_; }

  // Forwards the complete lines that have arrived. Does not block. Holds back everything from a
  // line that begins with "ringside: ", because such lines are the executable's last output.
  void pump();

  // Call when the child has ended: forwards the rest of its last line.
  void finish();

  // The child's last output: the lines held back, else its last line that is not empty.
  const std::string& reason() const { return held_.empty() ? last_line_ : held_; }
  // Whether reason() is what the executable said last, and not just its last line.
  bool holds_words() const { return !held_.empty(); }

 private:
  void pass_on(const std::string& line);

  std::function<void(const std::string&)> copy_;
  int fd_ = -1;
  int child_end_ = -1;
  bool terminal_;
  std::string partial_;
  std::string held_;
  std::string last_line_;
};

}  // namespace ringside::tools
