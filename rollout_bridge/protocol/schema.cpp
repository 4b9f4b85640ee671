#include "rollout_bridge/protocol/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "rollout_bridge/base/utf8.h"

namespace ringside::bridge {
namespace {

constexpr std::array<const char*, 4> kFinishNames = {"stop", "length", "aborted", "error"};

Error invalid(const Rollout& r, const std::string& what, Reason reason = Reason::kInvalidField) {
  return {reason, "rollout '" + r.rollout_id + "': " + what};
}
Error not_finite(const Rollout& r, const std::string& what) {
  return invalid(r, what, Reason::kNotFinite);
}
Error lengths(const Rollout& r, const std::string& what) {
  return invalid(r, what, Reason::kLengths);
}

std::string number(double value) { return std::to_string(value); }

template <class T>
std::string str(T value) {
  return std::to_string(value);
}

Status check_utf8(const Rollout& r, const std::string& field, const std::string& text) {
  const auto wrong = first_byte_not_utf8(text);
  if (!wrong) {
    return Success{};
  }
  return invalid(r, field + " is not UTF-8: byte " + str(*wrong));
}

Status check_ids(const Rollout& r, const Limits& limits) {
  if (r.rollout_id.empty()) {
    return invalid(r, "rollout_id is empty");
  }
  const auto check_text = [&](const char* field, const std::string& text) -> Status {
    if (text.size() > limits.max_string_bytes) {
      return invalid(r, std::string(field) + " has " + str(text.size()) + " bytes, limit " +
                            str(limits.max_string_bytes));
    }
    return check_utf8(r, field, text);
  };
  if (Status s = check_text("rollout_id", r.rollout_id); !s) {
    return s;
  }
  if (Status s = check_text("prompt_id", r.prompt_id); !s) {
    return s;
  }
  if (Status s = check_text("failure", r.failure); !s) {
    return s;
  }
  if (r.attempt < 0) {
    return invalid(r, "attempt " + str(r.attempt) + " is below 0");
  }
  if (r.group_id < 0 || r.group_id > kMaxGroupId) {
    return invalid(r, "group_id " + str(r.group_id) + " is outside [0, 2^62]");
  }
  if (r.group_size < 1 || r.group_size > limits.max_group_size) {
    return invalid(r, "group_size " + str(r.group_size) + " is outside [1, " +
                          str(limits.max_group_size) + "]");
  }
  if (r.sample_index < 0 || r.sample_index >= r.group_size) {
    return invalid(r, "sample_index " + str(r.sample_index) + " is outside [0, group_size " +
                          str(r.group_size) + ")");
  }
  if (r.trainer_term < 0) {
    return invalid(r, "trainer_term " + str(r.trainer_term) + " is below 0");
  }
  return Success{};
}

Status check_tokens(const Rollout& r, const char* field, const std::vector<int64_t>& ids,
                    const Limits& limits) {
  if (ids.size() > limits.max_tokens) {
    return invalid(r, std::string(field) + " has " + str(ids.size()) + " tokens, limit " +
                          str(limits.max_tokens));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] > std::numeric_limits<int32_t>::max()) {
      return invalid(
          r, std::string(field) + "[" + str(i) + "] = " + str(ids[i]) + " is outside [0, 2^31)");
    }
  }
  return Success{};
}

Status check_completion_fields(const Rollout& r) {
  const size_t length = r.completion_ids.size();
  const bool cut =
      r.finish_reason == FinishReason::kAborted || r.finish_reason == FinishReason::kError;
  if (length == 0 && !cut) {
    return invalid(r, std::string("completion_ids has 0 tokens with finish_reason ") +
                          finish_reason_name(r.finish_reason) + ", expected at least 1");
  }
  if (!r.loss_mask.empty() && r.loss_mask.size() != length) {
    return lengths(
        r, "loss_mask has " + str(r.loss_mask.size()) + " entries, completion_ids " + str(length));
  }
  for (size_t i = 0; i < r.loss_mask.size(); ++i) {
    if (r.loss_mask[i] > 1) {
      return invalid(
          r, "loss_mask[" + str(i) + "] = " + str(int{r.loss_mask[i]}) + ", expected 0 or 1");
    }
  }
  if (r.logprobs.size() != length) {
    return lengths(
        r, "logprobs has " + str(r.logprobs.size()) + " entries, completion_ids " + str(length));
  }
  for (size_t i = 0; i < length; ++i) {
    if (!std::isfinite(r.logprobs[i])) {
      return not_finite(r, "logprobs[" + str(i) + "] = " + number(r.logprobs[i]));
    }
    if (r.logprobs[i] < kMinLogprob || r.logprobs[i] > kMaxLogprob) {
      return invalid(r, "logprobs[" + str(i) + "] = " + number(r.logprobs[i]) + ", expected " +
                            number(kMinLogprob) + " to " + number(kMaxLogprob));
    }
  }
  return Success{};
}

Status check_versions(const Rollout& r, const Limits& limits) {
  if (r.versions.size() > limits.max_list_items) {
    return invalid(r, "versions has " + str(r.versions.size()) + " spans, limit " +
                          str(limits.max_list_items));
  }
  int64_t covered = 0;
  for (const VersionSpan& span : r.versions) {
    if (span.version < 0) {
      return invalid(r, "versions: version " + str(span.version) + " < 0");
    }
    if (span.begin != covered || span.end <= span.begin) {
      return invalid(r, "versions: span [" + str(span.begin) + ", " + str(span.end) +
                            ") must begin at " + str(covered) + " and not be empty");
    }
    covered = span.end;
  }
  if (covered != static_cast<int64_t>(r.completion_ids.size())) {
    return lengths(r, "versions cover " + str(covered) + " tokens, completion_ids has " +
                          str(r.completion_ids.size()));
  }
  return Success{};
}

Status check_sampling(const Rollout& r) {
  if (!std::isfinite(r.temperature)) {
    return not_finite(r, "temperature = " + number(r.temperature));
  }
  if (r.temperature <= 0) {
    return invalid(r, "temperature = " + number(r.temperature) + ", expected > 0");
  }
  if (!std::isfinite(r.top_p)) {
    return not_finite(r, "top_p = " + number(r.top_p));
  }
  if (!(r.top_p > 0 && r.top_p <= 1)) {
    return invalid(r, "top_p = " + number(r.top_p) + ", expected in (0, 1]");
  }
  if (r.top_k < 0) {
    return invalid(r, "top_k = " + str(r.top_k) + ", expected >= 0");
  }
  return Success{};
}

Status check_rewards(const Rollout& r, const Limits& limits) {
  if (r.rewards.size() > limits.max_list_items) {
    return invalid(r, "rewards has " + str(r.rewards.size()) + " entries, limit " +
                          str(limits.max_list_items));
  }
  for (size_t i = 0; i < r.rewards.size(); ++i) {
    const auto& [name, value] = r.rewards[i];
    if (name.empty() || name.size() > limits.max_string_bytes) {
      return invalid(r, "rewards: a name of " + str(name.size()) + " bytes, expected 1 to " +
                            str(limits.max_string_bytes));
    }
    if (Status s = check_utf8(r, "rewards: name " + str(i), name); !s) {
      return s;
    }
    if (!std::isfinite(value)) {
      return not_finite(r, "rewards['" + name + "'] is not finite");
    }
  }
  return Success{};
}

// Checks the texts that frame 0 carries. The rest of it needs the last quarter.
Status check_header(const Rollout& r, const Limits& limits) {
  constexpr size_t kOfOneReward = 16;  // its value, and the length of its name
  const size_t limit = limits.max_header_bytes / 4 * 3;
  size_t bytes = r.rollout_id.size() + r.prompt_id.size() + r.failure.size();
  for (const auto& [name, value] : r.rewards) {
    bytes += name.size() + kOfOneReward;
  }
  if (bytes <= limit) {
    return Success{};
  }
  return invalid(r, "names of rewards, ids and the failure take " + str(bytes) + " bytes, limit " +
                        str(limit));
}

Status check_message(const Rollout& r, const Limits& limits) {
  const uint64_t bytes = wire_bytes(r) + limits.max_header_bytes;
  if (bytes <= limits.max_message_bytes) {
    return Success{};
  }
  return invalid(r,
                 "a message of " + str(bytes) + " bytes, limit " + str(limits.max_message_bytes));
}

Status check_turns(const Rollout& r, const Limits& limits) {
  if (r.turn_offsets.size() > limits.max_turns) {
    return invalid(r, "turn_offsets has " + str(r.turn_offsets.size()) + " entries, limit " +
                          str(limits.max_turns));
  }
  int64_t previous = -1;
  for (const int32_t offset : r.turn_offsets) {
    if (offset <= previous || offset >= static_cast<int64_t>(r.completion_ids.size())) {
      return invalid(r, "turn_offsets: " + str(offset) + " must be above " + str(previous) +
                            " and below " + str(r.completion_ids.size()));
    }
    previous = offset;
  }
  if (!r.turn_rewards.empty() && r.turn_rewards.size() != r.turn_offsets.size()) {
    return lengths(r, "turn_rewards has " + str(r.turn_rewards.size()) + " entries, turn_offsets " +
                          str(r.turn_offsets.size()));
  }
  for (size_t i = 0; i < r.turn_rewards.size(); ++i) {
    if (!std::isfinite(r.turn_rewards[i])) {
      return not_finite(r, "turn_rewards[" + str(i) + "] = " + number(r.turn_rewards[i]) +
                               ", expected a finite value");
    }
  }
  return Success{};
}

Status check_advantages(const Rollout& r) {
  if (!r.advantages.empty() && r.advantages.size() != r.completion_ids.size()) {
    return lengths(r, "advantages has " + str(r.advantages.size()) + " entries, completion_ids " +
                          str(r.completion_ids.size()));
  }
  for (size_t i = 0; i < r.advantages.size(); ++i) {
    if (!std::isfinite(r.advantages[i])) {
      return not_finite(r, "advantages[" + str(i) + "] = " + number(r.advantages[i]) +
                               ", expected a finite value");
    }
  }
  return Success{};
}

// The token that a branch continues is in an earlier branch, because all tokens before its begin
// are.
Status check_branches(const Rollout& r, const Limits& limits) {
  if (r.branches.size() > limits.max_branches) {
    return invalid(r, "branches has " + str(r.branches.size()) + " entries, limit " +
                          str(limits.max_branches));
  }
  const auto length = static_cast<int64_t>(r.completion_ids.size());
  int64_t previous = 0;
  for (size_t i = 0; i < r.branches.size(); ++i) {
    const auto [begin, context_end] = r.branches[i];
    if (begin <= previous || begin >= length) {
      return invalid(r, "branches[" + str(i) + "]: begin " + str(begin) + " must be above " +
                            str(previous) + " and below " + str(length));
    }
    if (context_end < 0 || context_end > begin) {
      return invalid(r, "branches[" + str(i) + "]: context_end " + str(context_end) +
                            " is outside [0, begin " + str(begin) + "]");
    }
    previous = begin;
  }
  return Success{};
}

// Whether a place of the completion has tokens of one image on both sides.
bool is_within_image(const Rollout& r, int64_t place) {
  const auto after = std::upper_bound(
      r.images.begin(), r.images.end(), place,
      [](int64_t at, const ConversationImage& image) { return at <= image.begin; });
  return after != r.images.begin() && place < std::prev(after)->end;
}

// Checks an image that follows the one that ends at `previous`.
Status check_image(const Rollout& r, size_t i, int64_t previous, const Limits& limits) {
  const ConversationImage& image = r.images[i];
  const std::string name = "images[" + str(i) + "]";
  if (Status s = validate(image.head(), limits); !s) {
    return invalid(r, name + ": " + s.error().detail, s.error().reason);
  }
  const auto length = static_cast<int64_t>(r.completion_ids.size());
  if (image.begin < previous || image.end <= image.begin || image.end > length) {
    return invalid(r, name + ": tokens [" + str(image.begin) + ", " + str(image.end) +
                          ") must begin at " + str(previous) + " or later, not be empty, and end " +
                          "at " + str(length) + " or before");
  }
  const auto masked = r.loss_mask.begin();
  const bool is_context =
      !r.loss_mask.empty() &&
      std::all_of(masked + image.begin, masked + image.end, [](uint8_t on) { return on == 0; });
  if (!is_context) {
    return invalid(r, name + ": tokens [" + str(image.begin) + ", " + str(image.end) +
                          ") must have loss_mask 0: nobody sampled them");
  }
  return Success{};
}

Status check_images(const Rollout& r, const Limits& limits) {
  if (r.images.size() > limits.max_images) {
    return invalid(
        r, "images has " + str(r.images.size()) + " entries, limit " + str(limits.max_images));
  }
  int64_t previous = 0;
  for (size_t i = 0; i < r.images.size(); ++i) {
    if (Status s = check_image(r, i, previous, limits); !s) {
      return s;
    }
    previous = r.images[i].end;
  }
  for (size_t i = 0; i < r.branches.size(); ++i) {
    if (is_within_image(r, r.branches[i].begin) || is_within_image(r, r.branches[i].context_end)) {
      return invalid(r, "branches[" + str(i) + "] cuts the tokens of an image");
    }
  }
  uint64_t bytes = 0;
  std::map<std::string, ImageHead> heads;
  for (const ConversationImage& image : r.images) {
    const auto [at, is_new] = heads.emplace(image.hash, image.head());
    if (at->second != image.head()) {
      return invalid(r, "image " + image.hash + " is there with two sizes");
    }
    bytes += is_new ? image.head().bytes() : 0;
  }
  if (bytes > limits.max_rollout_image_bytes) {
    return invalid(r,
                   "its images have " + str(bytes) + " bytes together, limit " +
                       str(limits.max_rollout_image_bytes),
                   Reason::kLimit);
  }
  return Success{};
}

// The first id of a [rows, layers, K] table that occurs twice in one token's layer, by its index.
std::optional<size_t> first_repeated_id(const RoutedExperts& routed, size_t ids) {
  // 1 + the group that used the id last.
  std::vector<size_t> last_use(routed.id_bytes == 1 ? 256 : kMaxExpertId + 1, 0);
  for (size_t i = 0; i < ids; ++i) {
    const size_t group = 1 + i / static_cast<size_t>(routed.per_token);
    if (std::exchange(last_use[routed.id(i)], group) == group) {
      return i;
    }
  }
  return std::nullopt;
}

Status check_routed_shape(const Rollout& r, const Limits& limits) {
  const RoutedExperts& routed = r.routed_experts;
  if (routed.layers.empty() || routed.layers.size() > limits.max_list_items) {
    return invalid(r, "routed_experts has " + str(routed.layers.size()) +
                          " layers, expected 1 to " + str(limits.max_list_items));
  }
  int64_t previous = -1;
  for (const int32_t layer : routed.layers) {
    if (layer <= previous) {
      return invalid(r, "routed_layers: " + str(layer) + " must be above " + str(previous));
    }
    previous = layer;
  }
  if (routed.per_token < 1 || routed.per_token > limits.max_experts_per_token) {
    return invalid(r, "routed_experts has " + str(routed.per_token) +
                          " experts a token, expected 1 to " + str(limits.max_experts_per_token));
  }
  if (routed.id_bytes != 1 && routed.id_bytes != 2) {
    return invalid(r,
                   "routed_experts has ids of " + str(routed.id_bytes) + " bytes, expected 1 or 2");
  }
  if (routed.ids.size() > limits.max_frame_bytes) {
    return invalid(r, "routed_experts has " + str(routed.ids.size()) + " bytes, limit " +
                          str(limits.max_frame_bytes));
  }
  const size_t tokens = r.prompt_ids.size() + r.completion_ids.size();
  if (routed.ids.size() != (tokens - 1) * routed.row_bytes()) {
    return lengths(r, "routed_experts has " + str(routed.ids.size()) + " bytes, expected " +
                          str(tokens - 1) + " rows of " + str(routed.row_bytes()) +
                          ": one for each of " + str(tokens) + " tokens but the last");
  }
  return Success{};
}

Status check_routed(const Rollout& r, const Limits& limits) {
  const RoutedExperts& routed = r.routed_experts;
  if (routed.empty()) {
    if (routed == RoutedExperts{}) {
      return Success{};
    }
    return lengths(r, "routed_experts has layers and no rows");
  }
  if (Status s = check_routed_shape(r, limits); !s) {
    return s;
  }
  const auto k = static_cast<size_t>(routed.per_token);
  const auto place = [&](size_t i) {
    return "routed_experts[" + str(i / (k * routed.layers.size())) + "][" +
           str(i / k % routed.layers.size()) + "][" + str(i % k) + "] = " + str(routed.id(i));
  };
  const size_t count = routed.ids.size() / static_cast<size_t>(routed.id_bytes);
  for (size_t i = 0; i < count; ++i) {
    if (routed.id(i) > kMaxExpertId) {
      return invalid(r, place(i) + " is outside [0, " + str(kMaxExpertId) + "]");
    }
  }
  if (const auto repeated = first_repeated_id(routed, count)) {
    return invalid(r, place(*repeated) + " is there twice for one token and layer");
  }
  return Success{};
}

Status check_kept_set(const Rollout& r, size_t token, size_t begin) {
  const KeptSets& kept = r.kept_sets;
  const auto count = static_cast<size_t>(kept.counts[token]);
  bool has_token = false;
  for (size_t i = begin; i < begin + count; ++i) {
    const std::string place =
        "kept_ids[" + str(i) + "] = " + str(kept.ids[i]) + " of token " + str(token);
    if (kept.ids[i] < 0) {
      return invalid(r, place + " is below 0");
    }
    if (i > begin && kept.ids[i] <= kept.ids[i - 1]) {
      return invalid(r, place + " must be above " + str(kept.ids[i - 1]));
    }
    has_token = has_token || kept.ids[i] == r.completion_ids[token];
  }
  if (count > 0 && !has_token) {
    return invalid(r, "the kept set of token " + str(token) + " lacks the token itself, " +
                          str(r.completion_ids[token]));
  }
  return Success{};
}

Status check_kept_sets(const Rollout& r, const Limits& limits) {
  const KeptSets& kept = r.kept_sets;
  if (kept.ids.size() * sizeof(int32_t) > limits.max_frame_bytes) {
    return invalid(r,
                   "kept_ids has " + str(kept.ids.size()) + " ids, limit " +
                       str(limits.max_frame_bytes / sizeof(int32_t)) + "; sample with a top_k",
                   Reason::kLimit);
  }
  if (!kept.counts.empty() && kept.counts.size() != r.completion_ids.size()) {
    return lengths(r, "kept_counts has " + str(kept.counts.size()) + " entries, completion_ids " +
                          str(r.completion_ids.size()));
  }
  size_t begin = 0;
  for (size_t token = 0; token < kept.counts.size(); ++token) {
    if (kept.counts[token] < 0 ||
        static_cast<size_t>(kept.counts[token]) > kept.ids.size() - begin) {
      return lengths(r, "kept_counts[" + str(token) + "] = " + str(kept.counts[token]) +
                            ", kept_ids has " + str(kept.ids.size() - begin) + " left");
    }
    if (Status s = check_kept_set(r, token, begin); !s) {
      return s;
    }
    begin += static_cast<size_t>(kept.counts[token]);
  }
  if (begin != kept.ids.size()) {
    return lengths(
        r, "kept_ids has " + str(kept.ids.size()) + " ids, kept_counts adds up to " + str(begin));
  }
  return Success{};
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  return kFinishNames[static_cast<size_t>(reason)];
}

std::optional<FinishReason> finish_reason_from_name(const std::string& name) {
  for (size_t i = 0; i < kFinishNames.size(); ++i) {
    if (name == kFinishNames[i]) {
      return static_cast<FinishReason>(i);
    }
  }
  return std::nullopt;
}

Status validate(const Rollout& r, const Limits& limits) {
  if (Status s = check_ids(r, limits); !s) {
    return s;
  }
  if (r.prompt_ids.empty()) {
    return invalid(r, "prompt_ids has 0 tokens, expected at least 1");
  }
  if (Status s = check_tokens(r, "prompt_ids", r.prompt_ids, limits); !s) {
    return s;
  }
  if (Status s = check_tokens(r, "completion_ids", r.completion_ids, limits); !s) {
    return s;
  }
  if (Status s = check_completion_fields(r); !s) {
    return s;
  }
  if (Status s = check_versions(r, limits); !s) {
    return s;
  }
  if (Status s = check_sampling(r); !s) {
    return s;
  }
  if (Status s = check_rewards(r, limits); !s) {
    return s;
  }
  if (Status s = check_header(r, limits); !s) {
    return s;
  }
  if (Status s = check_turns(r, limits); !s) {
    return s;
  }
  if (Status s = check_advantages(r); !s) {
    return s;
  }
  if (Status s = check_branches(r, limits); !s) {
    return s;
  }
  if (Status s = check_images(r, limits); !s) {
    return s;
  }
  if (Status s = check_routed(r, limits); !s) {
    return s;
  }
  if (Status s = check_kept_sets(r, limits); !s) {
    return s;
  }
  return check_message(r, limits);
}

std::vector<ImageHead> distinct_images(const Rollout& rollout) {
  std::vector<ImageHead> heads;
  std::set<std::string> seen;
  for (const ConversationImage& image : rollout.images) {
    if (seen.insert(image.hash).second) {
      heads.push_back(image.head());
    }
  }
  return heads;
}

uint64_t wire_bytes(const Rollout& r) {
  return (r.prompt_ids.size() + r.completion_ids.size()) * sizeof(int32_t) +
         (r.logprobs.size() + r.advantages.size()) * sizeof(float) + r.loss_mask.size() +
         r.versions.size() * 3 * sizeof(int64_t) + r.turn_offsets.size() * sizeof(int32_t) +
         r.turn_rewards.size() * sizeof(double) + r.branches.size() * 2 * sizeof(int64_t) +
         r.images.size() * (16 + 4 * sizeof(int64_t)) + r.routed_experts.ids.size() +
         r.routed_experts.layers.size() * sizeof(int32_t) +
         (r.kept_sets.counts.size() + r.kept_sets.ids.size()) * sizeof(int32_t);
}

uint64_t dtype_size(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64") {
    return 8;
  }
  if (dtype == "F32" || dtype == "I32") {
    return 4;
  }
  if (dtype == "BF16" || dtype == "F16" || dtype == "I16") {
    return 2;
  }
  if (dtype == "U8" || dtype == "I8" || dtype == "BOOL") {
    return 1;
  }
  return 0;
}

bool has_failed(const Rollout& rollout) {
  return rollout.finish_reason == FinishReason::kAborted ||
         rollout.finish_reason == FinishReason::kError;
}

}  // namespace ringside::bridge
