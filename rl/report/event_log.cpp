#include "rl/report/event_log.h"

#include <cctype>

namespace ringside::rl {
namespace {

constexpr std::chrono::seconds kWindow{10};
constexpr int64_t kOfOneKind = 5;
constexpr int64_t kOfAllKinds = 40;
constexpr std::size_t kMaxKinds = 64;  // distinguished kinds in one window

std::string kind_of(const std::string& text) {
  std::string kind;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) {
      kind += c;
    }
  }
  return kind;
}

}  // namespace

void EventLog::add(const std::string& text, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  end_window(now);
  const std::string name = kind_of(text);
  Kind& kind = kinds_[kinds_.contains(name) || kinds_.size() < kMaxKinds ? name : ""];
  ++kind.seen;
  if (kind.seen > kOfOneKind || written_ >= kOfAllKinds) {
    ++left_out_;
    kind.last = text;
    return;
  }
  ++written_;
  write_(text);
}

void EventLog::tick(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  end_window(now);
}

void EventLog::end_window(Clock::time_point now) {
  if (now - window_begin_ < kWindow) {
    return;
  }
  const Kind* most = nullptr;
  for (const auto& [name, kind] : kinds_) {
    if (!kind.last.empty() && (most == nullptr || kind.seen > most->seen)) {
      most = &kind;
    }
  }
  if (most != nullptr) {
    write_(std::to_string(left_out_) +
           " more events within 10 s were left out; of the most frequent kind: " + most->last);
  }
  window_begin_ = now;
  kinds_.clear();
  written_ = 0;
  left_out_ = 0;
}

}  // namespace ringside::rl
