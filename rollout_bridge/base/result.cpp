#include "rollout_bridge/base/result.h"

#include <algorithm>
#include <string_view>

#include "rollout_bridge/base/utf8.h"

namespace ringside::bridge {
namespace {

constexpr std::array<const char*, kReasonCount> kNames = {
    "malformed",   "unsupported",     "limit",        "frames",     "checksum", "invalid_field",
    "wrong_run",   "unknown_session", "sequence_gap", "fenced",     "busy",     "gone",
    "timeout",     "closed",          "denied",       "not_finite", "lengths",  "unknown_group",
    "not_granted", "unknown_version", "vocabulary",   "prompt",     "too_long", "sampling",
    "rewards",     "stale",           "settings",     "routes",     "images"};

// U+0000 to U+001F and U+007F to U+009F, which terminals interpret.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) {
    return first < 0x20 || first == 0x7F;
  }
  return first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

}  // namespace

const char* reason_name(Reason reason) { return kNames[static_cast<std::size_t>(reason)]; }

Reason reason_from_name(const std::string& name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) {
      return static_cast<Reason>(i);
    }
  }
  return Reason::kMalformed;
}

std::string clip_text(const std::string& text, std::size_t limit) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t bytes = utf8_character_bytes(std::string_view(text).substr(i));
    const bool shown = bytes > 0 && !is_control(std::string_view(text).substr(i, bytes));
    const std::size_t width = shown ? bytes : 1;
    if (out.size() + width > limit) {
      break;
    }
    out += shown ? text.substr(i, bytes) : "?";
    i += std::max<std::size_t>(bytes, 1);
  }
  return out;
}

}  // namespace ringside::bridge
