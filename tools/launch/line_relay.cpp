#include "tools/launch/line_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

namespace ringside::tools {
namespace {

constexpr std::string_view kLastWords = "ringside: ";
// Removes the screen of rank 0, which draws it again (rl/report/log.cpp).
constexpr std::string_view kClearBelow = "\r\x1b[J";
constexpr std::size_t kMaxLine = 64 * 1024;
constexpr std::size_t kMaxHeld = 4 * 1024;

void write_to_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return;  // standard error is closed: not a reason to end the run
    }
    text.remove_prefix(written > 0 ? static_cast<std::size_t>(written) : 0);
  }
}

}  // namespace

LineRelay::LineRelay(std::function<void(const std::string&)> copy)
    : copy_(std::move(copy)), terminal_(isatty(STDERR_FILENO) == 1) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "pipe for a child's standard error");
  }
  fd_ = ends[0];
  child_end_ = ends[1];
  fcntl(fd_, F_SETFL, O_NONBLOCK);  // this end only: the child's writes still block
}

LineRelay::~LineRelay() {
  close_child_end();
  if (fd_ >= 0) {
    close(fd_);
  }
}

void LineRelay::close_child_end() {
  if (child_end_ >= 0) {
    close(child_end_);
  }
  child_end_ = -1;
}

void LineRelay::pump() {
  char chunk[4096];
  while (fd_ >= 0) {
    const ssize_t got = read(fd_, chunk, sizeof(chunk));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return;  // nothing more for now
    }
    if (got == 0) {
      close(fd_);
      fd_ = -1;
      return;
    }
    partial_.append(chunk, static_cast<std::size_t>(got));
    for (auto end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
      pass_on(partial_.substr(0, end));
      partial_.erase(0, end + 1);
    }
    if (partial_.size() > kMaxLine) {
      pass_on(partial_);
      partial_.clear();
    }
  }
}

void LineRelay::finish() {
  pump();
  if (!partial_.empty()) {
    pass_on(partial_);
    partial_.clear();
  }
}

void LineRelay::pass_on(const std::string& line) {
  const bool last_words = line.starts_with(kLastWords);
  if ((last_words || !held_.empty()) && held_.size() + line.size() < kMaxHeld) {
    held_ = last_words ? line.substr(kLastWords.size()) : held_ + "\n" + line;
    return;
  }
  if (!line.empty()) {
    last_line_ = line;
  }
  if (copy_) {
    copy_(line);
  }
  write_to_stderr((terminal_ ? std::string(kClearBelow) : "") + line + "\n");
}

}  // namespace ringside::tools
