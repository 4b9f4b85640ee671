// Oracle for what is accepted: the same bytes as a tree, unpacked by the msgpack library.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "rollout_bridge/prime_rl/codec.h"
#include "rollout_bridge/protocol/messages.h"
#include "tests/fuzz/entries.h"

namespace ringside::bridge::fuzz {
namespace {

using prime_rl::StepRollouts;

constexpr prime_rl::StepLabel kLabel{7, 100, 3, 6};
constexpr std::size_t kRequired = 9;
enum Field { kIds = 0, kLossMask = 1, kAdvantages = 2, kLogprobs = 3, kLengths = 5 };

Limits limits() {
  Limits out;
  out.max_tokens = 4096;
  return out;
}

// A sequence of the message: its tokens [begin, end) of the micro-batch's columns.
struct Sequence {
  msgpack::object_array columns;
  std::size_t begin = 0, end = 0;

  template <class T>
  T at(Field field, std::size_t token) const {
    return columns.ptr[field].via.array.ptr[token].as<T>();
  }
  bool is_trained() const {
    for (std::size_t t = begin; t < end; ++t) {
      if (at<bool>(kLossMask, t)) {
        return true;
      }
    }
    return false;
  }
};

std::vector<Sequence> sequences_of(const msgpack::object& message) {
  std::vector<Sequence> out;
  for (const msgpack::object& batch : message.as<std::vector<msgpack::object>>()) {
    std::size_t begin = 0;
    for (const auto length : batch.via.array.ptr[kLengths].as<std::vector<std::size_t>>()) {
      out.push_back({batch.via.array, begin, begin + length});
      begin += length;
    }
    require(begin == batch.via.array.ptr[kIds].via.array.size);
  }
  return out;
}

// The rollout is the sequence's tokens from the first on; the rest is padding, whose number is
// returned.
std::size_t check_sequence(const Rollout& r, const Sequence& sequence) {
  const std::size_t tokens = r.prompt_ids.size() + r.completion_ids.size();
  require(!r.prompt_ids.empty() && !r.completion_ids.empty() &&
          tokens <= sequence.end - sequence.begin);
  require(r.advantages.size() == r.completion_ids.size() && r.loss_mask.front() == 1);
  for (std::size_t i = 0; i < tokens; ++i) {
    const std::size_t t = sequence.begin + i;
    const bool in_prompt = i < r.prompt_ids.size();
    const std::size_t c = i - r.prompt_ids.size();
    require(sequence.at<int64_t>(kIds, t) == (in_prompt ? r.prompt_ids[i] : r.completion_ids[c]));
    require(sequence.at<bool>(kLossMask, t) == (!in_prompt && r.loss_mask[c] != 0));
    if (in_prompt) {
      continue;
    }
    require(static_cast<float>(sequence.at<double>(kAdvantages, t)) == r.advantages[c]);
    require(static_cast<float>(sequence.at<double>(kLogprobs, t)) == r.logprobs[c]);
  }
  for (std::size_t t = sequence.begin + tokens; t < sequence.end; ++t) {
    require(!sequence.at<bool>(kLossMask, t));
  }
  return sequence.end - sequence.begin - tokens;
}

void check_rollout(const Rollout& r, std::size_t index, std::set<std::string>& ids) {
  require(validate(r, limits()).ok());
  require(r.group_id == kLabel.first_group + static_cast<int64_t>(index) && r.group_size == 1 &&
          r.sample_index == 0);
  require(ids.insert(r.rollout_id).second && r.trainer_term == kLabel.trainer_term);
  require(r.versions.size() == 1 && r.versions[0].version == kLabel.version && r.rewards.empty());
}

void check_step(std::span<const std::byte> bytes) {
  const auto step = prime_rl::decode_step(bytes, kLabel, limits());
  if (!step) {
    require(step.error().reason == Reason::kMalformed && !step.error().detail.empty());
    return;
  }
  std::size_t used = 0;
  const auto tree =
      msgpack::unpack(reinterpret_cast<const char*>(bytes.data()), bytes.size(), used);
  require(used == bytes.size());
  const StepRollouts& found = step.value();
  std::set<std::string> ids;
  std::size_t next = 0, padding = 0;
  int64_t without_loss = 0;
  for (const Sequence& sequence : sequences_of(tree.get())) {
    if (!sequence.is_trained()) {
      ++without_loss;
      continue;
    }
    require(next < found.rollouts.size());
    check_rollout(found.rollouts[next], next, ids);
    padding += check_sequence(found.rollouts[next], sequence);
    ++next;
  }
  require(next == found.rollouts.size() && without_loss == found.without_loss);
  require(static_cast<std::size_t>(found.padding_tokens) >=
          padding);  // those without loss are padded too
}

// Writes a message whose columns fit together, from bytes that choose sizes and values.
class Writer {
 public:
  explicit Writer(std::span<const uint8_t> script) : script_(script), packer_(buffer_) {}

  std::span<const std::byte> message() {
    const uint32_t batches = 1 + next() % 3;
    packer_.pack_array(batches);
    for (uint32_t i = 0; i < batches; ++i) {
      batch();
    }
    return std::as_bytes(std::span(buffer_.data(), buffer_.size()));
  }

 private:
  uint8_t next() {
    if (script_.empty()) {
      return 0;
    }
    const uint8_t out = script_.front();
    script_ = script_.subspan(1);
    return out;
  }

  // A number as Python writes it, or now and then one that is not finite, huge or of the other
  // kind.
  void number(uint8_t choice) {
    if (choice < 0xf0) {
      packer_.pack(static_cast<double>(choice) / -16.0);
    } else if (choice < 0xf8) {
      packer_.pack(static_cast<int64_t>(choice) - 0xf4);
    } else {
      constexpr double kOdd[] = {INFINITY, NAN, 1e300, -1e39};
      packer_.pack(kOdd[choice & 3]);
    }
  }

  template <class Pack>
  void column(std::size_t count, Pack pack) {
    packer_.pack_array(static_cast<uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      pack(i);
    }
  }

  void batch() {
    const uint8_t how = next();
    const std::size_t fields = kRequired + how % 12;
    std::vector<uint8_t> lengths(next() % 4), tokens, positions;
    for (uint8_t& length : lengths) {
      length = static_cast<uint8_t>(1 + next() % 8);
      for (uint8_t t = 0; t < length; ++t) {
        tokens.push_back(next());  // bit 0: trained, bit 1: padding, the rest: a value
        positions.push_back(t);
      }
    }
    const float hot = how < 0xf0 ? 1.0F : 0.5F;
    packer_.pack_array(static_cast<uint32_t>(fields));
    column(tokens.size(), [&](std::size_t t) {
      packer_.pack(static_cast<int64_t>(tokens[t]) - (how == 0xef ? 9 : 0));
    });
    column(tokens.size(), [&](std::size_t t) { packer_.pack((tokens[t] & 1) != 0); });
    column(tokens.size(), [&](std::size_t) { number(next()); });
    column(tokens.size(), [&](std::size_t t) { number(static_cast<uint8_t>(tokens[t] & ~8)); });
    column(tokens.size(), [&](std::size_t t) { packer_.pack(positions[t]); });
    column(lengths.size(), [&](std::size_t s) { packer_.pack(lengths[s]); });
    column(tokens.size(), [&](std::size_t t) { packer_.pack((tokens[t] & 4) != 0 ? hot : 1.0F); });
    column(tokens.size(), [&](std::size_t t) { packer_.pack((tokens[t] & 2) != 0 ? "" : "env"); });
    column(lengths.size(), [&](std::size_t s) { packer_.pack(lengths[s]); });
    for (std::size_t f = kRequired; f < fields; ++f) {
      optional_field(f, tokens.size(), lengths.size());
    }
  }

  void optional_field(std::size_t field, std::size_t tokens, std::size_t sequences) {
    const uint8_t how = next();
    if (how % 2 == 0) {
      packer_.pack_nil();
    } else if (field == 17) {  // trace_ids
      column(sequences,
             [&](std::size_t) { packer_.pack(std::string(how >> 4, how < 0xe0 ? 't' : '\xc3')); });
    } else if (field == 18) {  // branch_indices
      column(sequences, [&](std::size_t) { packer_.pack(static_cast<int>(how) - 8); });
    } else if (field == 19) {  // payload
      packer_.pack_array(how >> 7);
      if (how >> 7 != 0) {
        packer_.pack(how);
      }
    } else {  // a weight of each token
      column(tokens,
             [&](std::size_t) { packer_.pack(how < 0xc0 ? (field == 13 ? 1.0 : 0.0) : 2.0); });
    }
  }

  std::span<const uint8_t> script_;
  msgpack::sbuffer buffer_;
  msgpack::packer<msgpack::sbuffer> packer_;
};

}  // namespace

void prime_step(std::span<const uint8_t> bytes) {
  check_step(std::as_bytes(bytes));
  Writer writer(bytes);
  check_step(writer.message());
}

}  // namespace ringside::bridge::fuzz
