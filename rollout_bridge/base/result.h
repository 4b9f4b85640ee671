// Result of an operation with expected failures: a value, or a counted reason with a sentence.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <variant>

namespace ringside::bridge {

// Reason for refusing a message, rollout or request. The names travel on the wire (reason_name).
// The values index the trainer's rejection counters.
enum class Reason {
  kMalformed,       // not msgpack, an unknown message type, a missing or mistyped field
  kUnsupported,     // another protocol version, or a message that this side does not take
  kLimit,           // a count or length above Limits
  kFrames,          // frames that do not match the header's list (count, bytes, dtype, shape)
  kChecksum,        // bytes that do not match their hash
  kInvalidField,    // well-formed, but a value breaks the rules of validate()
  kWrongRun,        // another run_id, or a trainer_term from the future
  kUnknownSession,  // no HELLO from this identity, or the session has ended
  kSequenceGap,     // messages of the session were lost; send HELLO again
  kFenced,          // a newer incarnation of the same worker has joined
  kBusy,            // no room now; send again later
  kGone,            // the weight version is no longer held
  kTimeout,
  kClosed,
  kDenied,          // the session belongs to another key
  kNotFinite,       // NaN or infinity in a rollout
  kLengths,         // fields of a rollout have different lengths
  kUnknownGroup,    // rollout of a group that this trainer start did not grant
  kNotGranted,      // rollout of a sample that was granted to other workers only
  kUnknownVersion,  // rollout of weights that this trainer start did not publish
  kVocabulary,      // token id outside the trainer's vocabulary
  kPrompt,          // prompt differs from the group's
  kTooLong,         // longer than the model's positions or the recipe's limits
  kSampling,        // sampling settings differ from the trainer's, or cannot be trained on
  kRewards,         // missing, unknown, repeated or out of bounds
  kStale,           // weights too old for the group, or lost with a restart
  kSettings,        // HELLO with settings that would make training wrong
  kRoutes,          // routed experts are missing, or are not those of the trainer's model
  kImages,          // images of a conversation that the trainer's model does not take
};
inline constexpr std::size_t kReasonCount = 29;

// The wire name, e.g. "sequence_gap". Never null.
const char* reason_name(Reason reason);
// The reason of a wire name; kMalformed for an unknown name.
Reason reason_from_name(const std::string& name);

// Makes a peer's text safe for a log line or a message. Replaces control characters and invalid
// UTF-8 by '?'. Cuts text above `limit` bytes, never within a UTF-8 character.
std::string clip_text(const std::string& text, std::size_t limit = 1024);

struct Error {
  Reason reason;
  std::string detail;  // what was wrong, where, what was expected
};

struct Success {};

template <class T>
class [[nodiscard]] Result {
 public:
  // A value, or the reason why there is none.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // Throws: std::bad_variant_access when the other alternative is held.
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

using Status = Result<Success>;

}  // namespace ringside::bridge
