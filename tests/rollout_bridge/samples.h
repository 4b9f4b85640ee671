// Rollouts, weights and folders for the bridge's tests.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::bridge::test {

// A folder under the system's temporary one, removed with its content.
class TempDir {
 public:
  TempDir() {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() /
            ("ringside-bridge-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Routes of `rows` tokens through layers 1 and 3, two experts each.
inline RoutedExperts make_routed(std::size_t rows, int32_t id_bytes, uint32_t seed) {
  RoutedExperts routed{{1, 3}, 2, id_bytes, {}};
  std::mt19937 rng(seed);
  for (std::size_t i = 0; i < 2 * rows; ++i) {
    const auto first = static_cast<uint8_t>(rng() % 127);
    const auto second = static_cast<uint8_t>(first + 1 + rng() % 100);
    for (const uint8_t id : {first, second}) {
      routed.ids.push_back(id);
      if (id_bytes == 2) {
        routed.ids.push_back(first);
      }
    }
  }
  return routed;
}

// Gives each token the set of itself and up to three smaller ids; some have none.
inline void add_kept_sets(Rollout& r) {
  for (std::size_t i = 0; i < r.completion_ids.size(); ++i) {
    const auto id = static_cast<int32_t>(r.completion_ids[i]);
    const int32_t count = i % 3 == 2 ? 0 : std::min<int32_t>(id, static_cast<int32_t>(i % 4)) + 1;
    r.kept_sets.counts.push_back(count);
    for (int32_t k = count - 1; k >= 0; --k) {
      r.kept_sets.ids.push_back(id - k);
    }
  }
}

// A valid rollout of sample `sample` of group `group`, the rest drawn from `seed`.
inline Rollout make_rollout(int64_t group, int32_t sample, int32_t group_size, uint32_t seed = 1) {
  std::mt19937 rng(seed * 7919U + static_cast<uint32_t>(group) * 31U +
                   static_cast<uint32_t>(sample));
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  Rollout r;
  for (const int64_t part : {group, int64_t{sample}, int64_t{seed}}) {
    r.rollout_id.append(r.rollout_id.empty() ? "" : "-").append(std::to_string(part));
  }
  r.attempt = draw(0, 3);
  r.group_id = group;
  r.group_size = group_size;
  r.sample_index = sample;
  r.prompt_id = "prompt/" + std::to_string(group);
  for (int i = draw(1, 20); i > 0; --i) {
    r.prompt_ids.push_back(draw(0, 150000));
  }
  const int length = draw(1, 40);
  for (int i = 0; i < length; ++i) {
    r.completion_ids.push_back(draw(0, 2147483647));
    r.logprobs.push_back(-static_cast<float>(draw(0, 1000)) / 64.0F);
    if (seed % 2 == 0) {
      r.loss_mask.push_back(static_cast<uint8_t>(draw(0, 1)));
    }
  }
  r.temperature = static_cast<float>(draw(1, 20)) / 10.0F;
  r.top_p = static_cast<float>(draw(1, 10)) / 10.0F;
  r.top_k = draw(0, 50);
  const int cut = length / 2;
  if (cut > 0) {
    r.versions.push_back({3, 0, cut});
  }
  r.versions.push_back({4, cut, length});
  r.trainer_term = 1;
  r.finish_reason = draw(0, 1) != 0 ? FinishReason::kStop : FinishReason::kLength;
  r.rewards = {{"correct", draw(0, 1)}, {"format", draw(-100, 100) / 7.0}};
  if (seed % 3 == 0) {
    r.failure = "the reward server is away";
  }
  if (length > 4) {
    r.turn_offsets = {0, 3};
  }
  if (length > 4 && seed % 3 != 0) {
    r.turn_rewards = {draw(-100, 100) / 7.0, 1.0};
  }
  for (int i = 0; i < length && seed % 3 == 1; ++i) {
    r.advantages.push_back(static_cast<float>(draw(-100, 100)) / 7.0F);
  }
  if (length > 6 && seed % 3 != 1) {
    r.branches = {{2, 1}, {4, 0}, {6, 6}};
  }
  if (seed % 5 == 2) {
    r.routed_experts = make_routed(r.prompt_ids.size() + length - 1, 1, seed);
  }
  if (seed % 2 == 0) {
    add_kept_sets(r);
  }
  if (seed % 5 == 4) {
    r.routed_experts = make_routed(r.prompt_ids.size() + length - 1, 2, seed);
  }
  return r;
}

// Pixels drawn from `seed`.
inline Image make_picture(int64_t height, int64_t width, uint32_t seed) {
  std::vector<uint8_t> rgb(static_cast<std::size_t>(3 * height * width));
  std::mt19937 rng(seed);
  for (uint8_t& value : rgb) {
    value = static_cast<uint8_t>(rng());
  }
  return make_image(height, width, Buffer::own(std::move(rgb)));
}

// Puts images into a rollout, behind its other tokens: each on two tokens, with one sampled token
// after it. At least one image.
inline Rollout with_pictures(Rollout r, const std::vector<Image>& pictures) {
  r.routed_experts = {};
  r.kept_sets = {};
  r.branches.clear();
  r.loss_mask.assign(r.completion_ids.size(), 1);
  for (const Image& picture : pictures) {
    const auto begin = static_cast<int64_t>(r.completion_ids.size());
    r.images.push_back({picture.head.hash, picture.head.height, picture.head.width, begin,
                        begin + 2, picture.rgb});
    r.completion_ids.insert(r.completion_ids.end(), {60, 60, 5});
    r.loss_mask.insert(r.loss_mask.end(), {0, 0, 1});
  }
  r.logprobs.resize(r.completion_ids.size(), -1.0F);
  r.advantages.clear();
  r.versions.back().end = static_cast<int64_t>(r.completion_ids.size());
  return r;
}

inline Buffer float_buffer(const std::vector<float>& values) {
  return Buffer::own(std::vector<float>(values));
}

// Three tensors whose content depends on `version`; the first spans several small chunks.
inline std::vector<NamedBuffer> make_tensors(int64_t version, std::size_t floats = 5000) {
  std::vector<float> big(floats);
  for (std::size_t i = 0; i < big.size(); ++i) {
    big[i] = static_cast<float>(i) + static_cast<float>(version) * 0.5F;
  }
  std::vector<uint16_t> half = {0x3f80, 0x4000, static_cast<uint16_t>(version), 7, 8, 9};
  const auto count = static_cast<int64_t>(floats);
  return {{"embed.weight", "F32", {count}, float_buffer(big)},
          {"norm.weight", "BF16", {2, 3}, Buffer::own(half)},
          {"scale", "F64", {}, Buffer::own(std::vector<double>{0.25})}};
}

inline std::vector<NamedBuffer> named(const WeightSnapshot& snapshot) {
  std::vector<NamedBuffer> out;
  for (std::size_t i = 0; i < snapshot.tensors.size(); ++i) {
    const TensorEntry& t = snapshot.manifest.tensors[i];
    out.push_back({t.name, t.dtype, t.shape, snapshot.tensors[i]});
  }
  return out;
}

}  // namespace ringside::bridge::test
