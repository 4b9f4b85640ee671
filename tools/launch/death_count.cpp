#include "tools/launch/death_count.h"

namespace ringside::tools {
namespace {

constexpr int kExits = 3;
constexpr int kSignals = 5;

// "worker 12 has 3 files" -> "worker # has # files".
std::string without_numbers(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      plain += c;
    } else if (plain.empty() || plain.back() != '#') {
      plain += '#';
    }
  }
  return plain;
}

}  // namespace

int DeathCount::add(const ExitStatus& status, const std::string& last_words, int64_t progress) {
  // The last output before a signal is unrelated to it.
  const std::string how = status.describe() + (status.signalled ? "" : without_numbers(last_words));
  const bool equal = count_ > 0 && how == how_ && progress == progress_;
  count_ = equal ? count_ + 1 : 1;
  how_ = how;
  progress_ = progress;
  return count_ >= (status.signalled ? kSignals : kExits) ? count_ : 0;
}

}  // namespace ringside::tools
