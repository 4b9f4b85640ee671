#include "rollout_bridge/result.h"

#include <algorithm>

namespace ringside::bridge {
namespace {

constexpr std::array<const char*, kReasonCount> kNames = {
    "malformed",       "unsupported",  "limit",  "frames", "checksum", "invalid_field", "wrong_run",
    "unknown_session", "sequence_gap", "fenced", "busy",   "gone",     "timeout",       "closed",
    "denied"};

}  // namespace

const char* reason_name(Reason reason) { return kNames[static_cast<std::size_t>(reason)]; }

Reason reason_from_name(const std::string& name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Reason>(i);
  }
  return Reason::kMalformed;
}

std::string clip_text(const std::string& text, std::size_t limit) {
  std::size_t end = std::min(text.size(), limit);
  const auto continues = [&](std::size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U;
  };
  while (end > 0 && end < text.size() && continues(end)) --end;
  std::string out = text.substr(0, end);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = '?';
  }
  return out;
}

}  // namespace ringside::bridge
