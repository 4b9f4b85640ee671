// What the bridge returns where trouble is expected: a value, or a counted reason with a sentence.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <variant>

namespace ringside::bridge {

// Why a message, rollout or request was not taken. The names travel on the wire (reason_name) and
// index the trainer's rejection counters.
enum class Reason {
  kMalformed,       // not msgpack, a missing or mistyped field, trailing bytes
  kUnsupported,     // protocol version or message type this side does not know
  kLimit,           // a count or length above Limits
  kFrames,          // frames that do not match the header's list (count, bytes, dtype, shape)
  kChecksum,        // bytes that do not match their hash
  kInvalidField,    // well-formed, but a value breaks the rules of validate()
  kWrongRun,        // another run_id, or a trainer_term from the future
  kUnknownSession,  // no HELLO from this identity, or the session was given up
  kSequenceGap,     // messages were lost inside the session; say HELLO again
  kFenced,          // a newer incarnation of the same worker is in
  kBusy,            // no room now; send again later
  kGone,            // the weight version is not held any more
  kTimeout,
  kClosed,
  kDenied,          // another key's session
  kNotFinite,       // NaN or infinity where a rollout needs a number
  kLengths,         // parts of a rollout that must be equally long are not
  kUnknownGroup,    // a rollout of a group that this trainer start granted to nobody
  kNotGranted,      // a rollout of a sample that was granted to other workers only
  kUnknownVersion,  // a rollout of weights that this trainer start never published
  kVocabulary,      // a token id that the trainer's model does not have
  kPrompt,          // a prompt other than the one that the group stands for
  kTooLong,         // longer than the model's positions or the recipe's limits
  kSampling,        // sampled with settings other than the trainer's, or that it cannot train on
  kRewards,         // missing, unknown, doubled or out of bounds
  kStale,           // of weights too old for its group, or lost with a restart
  kSettings,        // HELLO of a worker whose settings would make training wrong
};
inline constexpr std::size_t kReasonCount = 27;

// The wire name, e.g. "sequence_gap". Never null.
const char* reason_name(Reason reason);
// The reason of a wire name; kMalformed for an unknown name.
Reason reason_from_name(const std::string& name);

// `text` as it may stand in a log line or travel in a message: a peer's words may be in it. Control
// characters and bytes that are no UTF-8 become '?'; what is longer than `limit` bytes is cut,
// never within a UTF-8 character.
std::string clip_text(const std::string& text, std::size_t limit = 1024);

struct Error {
  Reason reason;
  std::string detail;  // what was wrong, where, what was expected
};

struct Success {};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // Throw std::bad_variant_access when the other alternative is held.
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

using Status = Result<Success>;

}  // namespace ringside::bridge
