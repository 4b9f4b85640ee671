// Data types of the bridge, independent of their encoding: rollouts, grants of work, weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/base/buffer.h"
#include "rollout_bridge/base/limits.h"
#include "rollout_bridge/base/result.h"
#include "rollout_bridge/protocol/image.h"

namespace ringside::bridge {

// Completion tokens [begin, end) were sampled under weights `version`.
struct VersionSpan {
  int64_t version = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const VersionSpan&) const = default;
};

// A fork of the conversation. Completion tokens [begin, next branch's begin) do not continue the
// token before them. They continue the token before completion position `context_end` (0: the bare
// prompt) and its context. See branches.h.
struct Branch {
  int64_t begin = 0;
  int64_t context_end = 0;
  bool operator==(const Branch&) const = default;
};

enum class FinishReason { kStop, kLength, kAborted, kError };
// "stop", "length", "aborted", "error".
const char* finish_reason_name(FinishReason reason);
// The inverse; nullopt for another name.
std::optional<FinishReason> finish_reason_from_name(const std::string& name);

// Experts that each token used in the layers with experts of the model that sampled it.
struct RoutedExperts {
  std::vector<int32_t> layers;  // indices of these layers in the model, strictly rising from >= 0
  int32_t per_token = 0;        // K: experts a token uses in one layer, >= 1
  int32_t id_bytes = 1;         // bytes of one id: 1, or 2 (little-endian) for ids above 255
  // [rows, layers, K] ids, distinct in one token's layer. Row i belongs to token i of the prompt
  // followed by the completion. The last token has no row: the model never saw it.
  std::vector<uint8_t> ids;
  bool operator==(const RoutedExperts&) const = default;

  bool empty() const { return ids.empty(); }
  // Bytes of one row of ids.
  std::size_t row_bytes() const { return layers.size() * per_token * id_bytes; }
  // Id number `index` of [rows, layers, K], row by row.
  int32_t id(std::size_t index) const {
    return id_bytes == 1 ? ids[index] : ids[2 * index] | ids[2 * index + 1] << 8;
  }
};

// Ids that top_p and top_k left to draw each completion token from.
struct KeptSets {
  std::vector<int32_t> counts;  // [C] ids of each token; 0: not recorded
  std::vector<int32_t> ids;     // those of all tokens one after another, strictly rising in each
  bool operator==(const KeptSets&) const = default;

  bool empty() const { return counts.empty(); }
};

// An image that a tool or the like returned within a conversation. Completion tokens [begin, end)
// stand for it. A worker sends its pixels once, in an IMAGE; see image.h.
struct ConversationImage {
  std::string hash;  // image_hash() of its pixels, which are resized as the model takes them
  int64_t height = 0;
  int64_t width = 0;
  int64_t begin = 0;
  int64_t end = 0;
  // [height, width, 3]; at the worker that made the rollout, and not on the wire.
  Buffer rgb = {};

  ImageHead head() const { return {hash, height, width}; }
  // Of what is on the wire.
  bool operator==(const ConversationImage& other) const {
    return head() == other.head() && begin == other.begin && end == other.end;
  }
};

// Largest id of an expert on the wire.
inline constexpr int32_t kMaxExpertId = 32767;

// One sampled completion with all data that training needs. Lengths are in tokens.
struct Rollout {
  std::string rollout_id;               // unique within a run; UTF-8, as all texts are
  int32_t attempt = 0;                  // 0-based attempt at (group_id, sample_index)
  int64_t group_id = -1;                // the trainer's index into its data order
  int32_t group_size = 0;               // completions of this prompt
  int32_t sample_index = -1;            // in [0, group_size)
  std::string prompt_id;                // the data set's name of the prompt; may be empty
  std::vector<int64_t> prompt_ids;      // [P], P >= 1, in [0, 2^31)
  std::vector<int64_t> completion_ids;  // [C], in [0, 2^31); empty only if aborted or error
  std::vector<uint8_t> loss_mask;       // [C] of 0/1, or empty: all ones
  std::vector<float> logprobs;          // [C], under the distribution that was sampled from
  float temperature = 1.0F;             // > 0
  float top_p = 1.0F;                   // in (0, 1]; 1 is off
  int32_t top_k = 0;                    // >= 0; 0 is off
  std::vector<VersionSpan> versions;    // cover [0, C) in order without gaps
  int64_t trainer_term = -1;            // term of the versions
  FinishReason finish_reason = FinishReason::kStop;
  std::string failure;  // why a sample has failed, for people; may be empty
  std::vector<std::pair<std::string, double>> rewards;  // named, finite
  std::vector<int32_t> turn_offsets;  // strictly rising starts of turns in [0, C); may be empty
  std::vector<double> turn_rewards;   // one per turn, finite; may be empty
  std::vector<float> advantages;      // [C], finite; empty: the trainer computes them
  // Begins strictly rising in [1, C), 0 <= context_end <= begin. Empty: one conversation. Otherwise
  // completion_ids holds the tokens of all branches one after another; the first begins at 0.
  std::vector<Branch> branches;
  // One row for each token but the last. Empty: not recorded. In a forked conversation the last
  // token of a branch that no other branch continues has a row that nobody reads.
  RoutedExperts routed_experts;
  // Empty: not recorded. A token that has a set is in it.
  KeptSets kept_sets;
  // In order and disjoint, each within one branch, with loss_mask 0 on its tokens. An image may be
  // there several times.
  std::vector<ConversationImage> images;
  bool operator==(const Rollout&) const = default;
};

// Checks every rule stated at the fields above and in PROTOCOL.md, and that a message of these
// limits holds the rollout. The error names the field and both numbers.
// Thread safety: pure.
Status validate(const Rollout& rollout, const Limits& limits = {});

// The images of a rollout, each once, in order.
std::vector<ImageHead> distinct_images(const Rollout& rollout);

// Bytes of the rollout's frames on the wire.
uint64_t wire_bytes(const Rollout& rollout);

// Whether the rollout was aborted or has failed: it is not trained on.
bool has_failed(const Rollout& rollout);

// Log-probs this far above zero are rounding; anything above is an error.
inline constexpr float kMaxLogprob = 1e-3F;
// No sampled token has a log-prob below it: its probability would be 0 in any floating-point type.
inline constexpr float kMinLogprob = -1e4F;

inline constexpr int64_t kMaxGroupId = int64_t{1} << 62;
// Groups of held-out prompts have ids from here on; they are no places in the data order.
inline constexpr int64_t kFirstHeldOutGroup = int64_t{1} << 61;

// Samples of a group that somebody shall make: completions of the prompt at `group_id`, under a
// version >= min_version of this trainer_term. CREDIT carries it.
struct Grant {
  int64_t group_id = -1;
  int32_t group_size = 0;
  int64_t min_version = 0;
  int32_t attempt = 0;  // copied into the rollouts
  std::vector<int32_t> sample_indices = {};
  int64_t held_out = -1;  // number of the held-out prompt; -1: a prompt of the data order
};

// Samples of a group that were granted and need not be made any more. CREDIT carries it.
struct Withdrawal {
  int64_t group_id = -1;
  std::vector<int32_t> sample_indices = {};
};

// dtype is a safetensors name: F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL.
struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // of the tensor in the concatenation of all tensors
  uint64_t bytes = 0;
  std::string xxh3;  // XXH3-128 of the bytes, 32 lower-case hex digits, high half first
  // Encoding of the tensor. "dense": fetch the bytes. Only with a base version: "same" (the bytes
  // of the base) and "overwrite" (the base with `changed` elements replaced by a payload of
  // `payload_bytes`, see delta_codec.h). Hashes are of the resulting bytes in every case.
  std::string encoding = "dense";
  uint64_t changed = 0;
  uint64_t payload_bytes = 0;
  bool operator==(const TensorEntry&) const = default;
};

struct Manifest {
  std::string run_id;
  int64_t trainer_term = -1;
  int64_t version = -1;
  std::optional<int64_t> base_version;  // set exactly with encoding "overwrite"
  std::string encoding = "dense";       // or "overwrite": some tensors are deltas to base_version
  std::vector<TensorEntry> tensors;
  std::string root_hash;  // root_hash(tensors), see weights.h
  bool operator==(const Manifest&) const = default;
};

// Bytes of one element of a dtype; 0 for an unknown name.
uint64_t dtype_size(const std::string& dtype);

}  // namespace ringside::bridge
