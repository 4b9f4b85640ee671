#include "rollout_bridge/prime_rl/codec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "rollout_bridge/prime_rl/cursor.h"

namespace ringside::bridge::prime_rl {
namespace {

constexpr std::size_t kRequiredFields = 9, kFields = 20;

// The columns of one MicroBatch that a rollout needs. T = tokens, S = sequences.
struct MicroBatch {
  std::vector<int64_t> input_ids;         // [T]
  std::vector<uint8_t> loss_mask;         // [T]
  std::vector<float> advantages;          // [T]
  std::vector<float> logprobs;            // [T]
  std::vector<int64_t> position_ids;      // [T]
  std::vector<int64_t> sequence_lengths;  // [S]
  std::vector<float> temperatures;        // [T]
  std::vector<uint8_t> is_named;          // [T] the token has an environment; padding has none
  std::vector<std::string> environments;  // [S] of the first token
  std::vector<std::string> trace_ids;     // [S], or empty
  std::vector<int64_t> branch_indices;    // [S], or empty
};

std::string str(std::size_t n) { return std::to_string(n); }

// A double beyond fp32's range becomes infinite, which validate() refuses. The cast alone would be
// undefined behaviour.
float to_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return std::abs(value) > kMax ? std::numeric_limits<float>::infinity()
                                : static_cast<float>(value);
}

// Reader of one message's fields in order. Every error names micro-batch and field.
class Reader {
 public:
  Reader(std::span<const std::byte> message, const Limits& limits)
      : cursor_(message), limits_(limits), tokens_left_(limits.max_tokens) {}

  std::vector<MicroBatch> read() {
    const std::size_t count = cursor_.array(kMaxMicroBatches);
    std::vector<MicroBatch> batches;
    for (std::size_t i = 0; i < count; ++i) {
      where_ = "micro-batch " + str(i);
      try {
        batches.push_back(micro_batch());
      } catch (const Refused& refused) {
        throw Refused(where_ + ": " + refused.what());
      }
    }
    if (!cursor_.done()) {
      throw Refused("bytes after the last micro-batch, from byte " + str(cursor_.position()) +
                    " on");
    }
    return batches;
  }

 private:
  MicroBatch micro_batch() {
    fields_ = cursor_.array(std::numeric_limits<uint32_t>::max());
    if (fields_ < kRequiredFields || fields_ > kFields) {
      throw Refused(str(fields_) + " fields, expected " + str(kRequiredFields) + " to " +
                    str(kFields));
    }
    MicroBatch b;
    const std::string batch = where_;
    const auto at = [&](const char* field) { where_ = batch + ", " + field; };
    at("input_ids");
    const std::size_t tokens = cursor_.array(tokens_left_);
    tokens_left_ -= tokens;
    b.input_ids = values<int64_t>(tokens, [&] { return cursor_.integer(); });
    at("loss_mask");
    b.loss_mask = column<uint8_t>(tokens, [&] { return cursor_.boolean(); });
    at("advantages");
    b.advantages = column<float>(tokens, [&] { return finite(); });
    at("inference_logprobs");
    b.logprobs = column<float>(tokens, [&] { return finite(); });
    at("position_ids");
    b.position_ids = column<int64_t>(tokens, [&] { return cursor_.integer(); });
    at("sequence_lengths");
    b.sequence_lengths = lengths(tokens);
    at("temperatures");
    b.temperatures = column<float>(tokens, [&] { return finite(); });
    at("env_names");
    environments(tokens, b);
    at("seq_lens");
    if (lengths(tokens) != b.sequence_lengths) {
      throw Refused("differs from sequence_lengths");
    }
    optional_fields(at, tokens, b);
    where_ = batch;
    return b;
  }

  // True when the next field is present: neither omitted at the end nor nil. Call it in the fields'
  // order.
  bool has(std::size_t field) { return field < fields_ && !cursor_.take_nil(); }

  template <class At>
  void optional_fields(const At& at, std::size_t tokens, MicroBatch& b) {
    at("ref_logprobs");  // only the ref_kl component uses it
    if (has(9)) {
      column<float>(tokens, [&] { return finite(); });
    }
    at("routed_experts");
    if (has(10)) {
      throw Refused("routes in batches of this form are not read; expected nil");
    }
    at("mm_refs");
    if (has(11)) {
      throw Refused("this trainer does not support images; expected nil");
    }
    at("mm_token_type_ids");
    if (has(12)) {
      weights(tokens, 0.0, b, false);
    }
    at("rl_weights");
    if (has(13)) {
      weights(tokens, 1.0, b, true);
    }
    at("ce_weights");
    if (has(14)) {
      weights(tokens, 0.0, b, false);
    }
    at("ref_kl_weights");
    if (has(15)) {
      weights(tokens, 0.0, b, false);
    }
    at("sampling_mask");
    if (has(16)) {
      throw Refused("its log-probs are of a truncated distribution (top-p, top-k); expected nil");
    }
    const std::size_t sequences = b.sequence_lengths.size();
    at("trace_ids");
    if (has(17)) {
      b.trace_ids =
          column<std::string>(sequences, [&] { return cursor_.text(limits_.max_string_bytes); });
    }
    at("branch_indices");
    if (has(18)) {
      b.branch_indices = column<int64_t>(sequences, [&] { return cursor_.integer(); });
    }
    at("payload");
    if (has(19) && cursor_.array(std::numeric_limits<uint32_t>::max()) > 0) {
      throw Refused(
          "expert routing or sampling masks by handle, which this trainer does not read; "
          "expected nil");
    }
  }

  template <class T, class Read>
  std::vector<T> values(std::size_t count, Read read) {
    std::vector<T> out;
    out.reserve(count);  // a value takes at least a byte, so count is bounded by the message
    for (std::size_t i = 0; i < count; ++i) {
      out.push_back(static_cast<T>(read()));
    }
    return out;
  }

  template <class T, class Read>
  std::vector<T> column(std::size_t expected, Read read) {
    expect_length(cursor_.array(std::numeric_limits<uint32_t>::max()), expected);
    return values<T>(expected, read);
  }

  void expect_length(std::size_t got, std::size_t expected) {
    if (got != expected) {
      throw Refused(str(got) + " values, expected " + str(expected));
    }
  }

  float finite() {
    const double value = cursor_.real();
    if (!std::isfinite(value)) {
      throw Refused("a value that is not finite");
    }
    return to_float(value);
  }

  std::vector<int64_t> lengths(std::size_t tokens) {
    const std::size_t count = cursor_.array(limits_.max_tokens);
    std::size_t sum = 0;
    const auto out = values<int64_t>(count, [&] {
      const int64_t length = cursor_.integer();
      if (length < 1 || static_cast<std::size_t>(length) > tokens - sum) {
        throw Refused("a length of " + std::to_string(length) + " with " + str(tokens - sum) +
                      " tokens left");
      }
      sum += static_cast<std::size_t>(length);
      return length;
    });
    expect_length(sum, tokens);
    return out;
  }

  void environments(std::size_t tokens, MicroBatch& b) {
    expect_length(cursor_.array(std::numeric_limits<uint32_t>::max()), tokens);
    b.is_named.reserve(tokens);
    for (const int64_t length : b.sequence_lengths) {
      for (int64_t i = 0; i < length; ++i) {
        const std::string_view name = cursor_.text(limits_.max_string_bytes);
        b.is_named.push_back(!name.empty());
        if (i == 0) {
          b.environments.emplace_back(name);
        }
      }
    }
  }

  // Checks that a column holds `only` on every token, or on the trained ones.
  void weights(std::size_t tokens, double only, const MicroBatch& b, bool trained_only) {
    std::size_t token = 0;
    column<float>(tokens, [&] {
      const float value = finite();
      const bool counts = !trained_only || b.loss_mask[token] != 0;
      if (counts && value != static_cast<float>(only)) {
        throw Refused("token " + str(token) + " has " + std::to_string(value) +
                      "; this trainer knows " + std::to_string(only) + " alone");
      }
      ++token;
      return value;
    });
  }

  Cursor cursor_;
  const Limits& limits_;
  std::size_t tokens_left_;
  std::size_t fields_ = 0;
  std::string where_;
};

std::string prompt_id(const MicroBatch& b, std::size_t sequence) {
  std::string id = b.environments[sequence];
  if (!b.trace_ids.empty() && !b.trace_ids[sequence].empty()) {
    id.append("/").append(b.trace_ids[sequence]);
  }
  if (!b.branch_indices.empty() && b.branch_indices[sequence] >= 0) {
    id.append("/").append(std::to_string(b.branch_indices[sequence]));
  }
  return id;
}

// The single temperature of the trained tokens of [begin, end).
float temperature_of(const MicroBatch& b, int64_t begin, int64_t end) {
  const auto first =
      std::find(b.loss_mask.begin() + begin, b.loss_mask.begin() + end, 1) - b.loss_mask.begin();
  for (int64_t i = first; i < end; ++i) {
    if (b.loss_mask[i] != 0 && b.temperatures[i] != b.temperatures[first]) {
      throw Refused("temperatures " + std::to_string(b.temperatures[first]) + " and " +
                    std::to_string(b.temperatures[i]) +
                    " in one sequence; this trainer supports one a sequence");
    }
  }
  return b.temperatures[first];
}

// The rollout of sequence `sequence`, which has a trained token and without padding is tokens
// [begin, end).
Rollout rollout_of(const MicroBatch& b, std::size_t sequence, int64_t begin, int64_t end,
                   const StepLabel& label, std::size_t index) {
  for (int64_t i = begin; i < end; ++i) {
    if (b.position_ids[i] != i - begin) {
      throw Refused("position " + std::to_string(b.position_ids[i]) + " at token " +
                    std::to_string(i - begin));
    }
  }
  const int64_t split =
      std::find(b.loss_mask.begin() + begin, b.loss_mask.begin() + end, 1) - b.loss_mask.begin();
  if (split == begin) {
    throw Refused("the first token is to be trained on, but nothing comes before it");
  }
  Rollout r;
  r.rollout_id = "prime-rl-" + std::to_string(label.step) + "-" + str(index);
  r.group_id = label.first_group + static_cast<int64_t>(index);
  r.group_size = 1;
  r.sample_index = 0;
  r.prompt_id = prompt_id(b, sequence);
  r.prompt_ids.assign(b.input_ids.begin() + begin, b.input_ids.begin() + split);
  r.completion_ids.assign(b.input_ids.begin() + split, b.input_ids.begin() + end);
  r.loss_mask.assign(b.loss_mask.begin() + split, b.loss_mask.begin() + end);
  r.logprobs.assign(b.logprobs.begin() + split, b.logprobs.begin() + end);
  r.advantages.assign(b.advantages.begin() + split, b.advantages.begin() + end);
  r.temperature = temperature_of(b, begin, end);
  r.versions = {{label.version, 0, end - split}};
  r.trainer_term = label.trainer_term;
  return r;
}

void append(const MicroBatch& b, const StepLabel& label, const Limits& limits, StepRollouts& step) {
  int64_t begin = 0;
  for (std::size_t s = 0; s < b.sequence_lengths.size(); ++s) {
    int64_t end = begin + b.sequence_lengths[s];
    const int64_t next = end;
    while (end > begin && b.is_named[end - 1] == 0 && b.loss_mask[end - 1] == 0) {
      --end;
    }
    step.padding_tokens += next - end;
    if (std::count(b.loss_mask.begin() + begin, b.loss_mask.begin() + end, 1) == 0) {
      ++step.without_loss;
    } else {
      try {
        step.rollouts.push_back(rollout_of(b, s, begin, end, label, step.rollouts.size()));
      } catch (const Refused& refused) {
        throw Refused("sequence " + str(s) + ": " + refused.what());
      }
      const Status status = validate(step.rollouts.back(), limits);
      if (!status) {
        throw Refused(status.error().detail);
      }
    }
    begin = next;
  }
}

}  // namespace

Result<StepRollouts> decode_step(std::span<const std::byte> message, const StepLabel& label,
                                 const Limits& limits) {
  try {
    StepRollouts step;
    const std::vector<MicroBatch> batches = Reader(message, limits).read();
    for (std::size_t i = 0; i < batches.size(); ++i) {
      try {
        append(batches[i], label, limits, step);
      } catch (const Refused& refused) {
        throw Refused("micro-batch " + str(i) + ", " + refused.what());
      }
    }
    return step;
  } catch (const Refused& refused) {
    return Error{Reason::kMalformed, std::string("prime-rl batch: ") + refused.what()};
  }
}

}  // namespace ringside::bridge::prime_rl
