#include "rollout_bridge/result.h"

namespace ringside::bridge {
namespace {

constexpr std::array<const char*, kReasonCount> kNames = {
    "malformed",       "unsupported",  "limit",  "frames", "checksum", "invalid_field", "wrong_run",
    "unknown_session", "sequence_gap", "fenced", "busy",   "gone",     "timeout",       "closed"};

}  // namespace

const char* reason_name(Reason reason) { return kNames[static_cast<std::size_t>(reason)]; }

Reason reason_from_name(const std::string& name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Reason>(i);
  }
  return Reason::kMalformed;
}

}  // namespace ringside::bridge
