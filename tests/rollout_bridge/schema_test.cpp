// Guards the door of the trainer: every rule about a rollout's fields is broken once, alone, and
// must be refused with the field's name; a rule that is not enforced would let misaligned log-probs
// train.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "rollout_bridge/weights/snapshot.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge {
namespace {

using test::make_rollout;

struct Break {
  const char* field;
  std::function<void(Rollout&)> apply;
  Reason reason = Reason::kInvalidField;
};

TEST_CASE("every broken rule of a rollout is refused by name", "[schema]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Break> breaks = {
      {"rollout_id", [](Rollout& r) { r.rollout_id.clear(); }},
      {"rollout_id", [](Rollout& r) { r.rollout_id.assign(5000, 'x'); }},
      {"prompt_id", [](Rollout& r) { r.prompt_id.assign(5000, 'x'); }},
      {"rollout_id is not UTF-8: byte 1", [](Rollout& r) { r.rollout_id = "a\xff"; }},
      {"prompt_id is not UTF-8: byte 0", [](Rollout& r) { r.prompt_id = "\xc3"; }},
      {"rewards: name 1 is not UTF-8: byte 0",
       [](Rollout& r) { r.rewards[1].first = "\xed\xa0\x80"; }},
      {"attempt", [](Rollout& r) { r.attempt = -1; }},
      {"group_id", [](Rollout& r) { r.group_id = -1; }},
      {"group_id", [](Rollout& r) { r.group_id = std::numeric_limits<int64_t>::max(); }},
      {"group_size", [](Rollout& r) { r.group_size = 0; }},
      {"group_size", [](Rollout& r) { r.group_size = 1 << 30; }},
      {"sample_index", [](Rollout& r) { r.sample_index = r.group_size; }},
      {"sample_index", [](Rollout& r) { r.sample_index = -1; }},
      {"trainer_term", [](Rollout& r) { r.trainer_term = -1; }},
      {"prompt_ids", [](Rollout& r) { r.prompt_ids.clear(); }},
      {"prompt_ids[0]", [](Rollout& r) { r.prompt_ids[0] = -1; }},
      {"completion_ids[1]", [](Rollout& r) { r.completion_ids[1] = int64_t{1} << 31; }},
      {"completion_ids has 0", [](Rollout& r) { r.completion_ids.clear(); }},
      {"loss_mask has", [](Rollout& r) { r.loss_mask.push_back(1); }, Reason::kLengths},
      {"loss_mask[0]", [](Rollout& r) { r.loss_mask[0] = 2; }},
      {"logprobs has", [](Rollout& r) { r.logprobs.pop_back(); }, Reason::kLengths},
      {"logprobs[1]", [=](Rollout& r) { r.logprobs[1] = nan; }, Reason::kNotFinite},
      {"logprobs[1]", [](Rollout& r) { r.logprobs[1] = -INFINITY; }, Reason::kNotFinite},
      {"logprobs[1]", [](Rollout& r) { r.logprobs[1] = 0.01F; }},
      {"logprobs[1] = -10001", [](Rollout& r) { r.logprobs[1] = -10001.0F; }},
      {"temperature", [](Rollout& r) { r.temperature = 0; }},
      {"temperature", [=](Rollout& r) { r.temperature = nan; }, Reason::kNotFinite},
      {"top_p", [](Rollout& r) { r.top_p = 1.5F; }},
      {"top_p", [=](Rollout& r) { r.top_p = nan; }, Reason::kNotFinite},
      {"top_k", [](Rollout& r) { r.top_k = -1; }},
      {"versions", [](Rollout& r) { r.versions.clear(); }, Reason::kLengths},
      {"versions", [](Rollout& r) { r.versions[0].version = -1; }},
      {"versions", [](Rollout& r) { r.versions[1].begin += 1; }},
      {"versions", [](Rollout& r) { r.versions[0].end = r.versions[0].begin; }},
      {"versions cover", [](Rollout& r) { r.versions.back().end += 1; }, Reason::kLengths},
      {"rewards", [](Rollout& r) { r.rewards[0].first.clear(); }},
      {"rewards['correct']", [=](Rollout& r) { r.rewards[0].second = nan; }, Reason::kNotFinite},
      {"turn_offsets",
       [](Rollout& r) {
         r.turn_offsets = {3, 3};
       }},
      {"turn_offsets", [](Rollout& r) { r.turn_offsets = {-1}; }},
      {"turn_offsets", [](Rollout& r) { r.turn_offsets = {1000}; }},
      {"turn_rewards has 3 entries, turn_offsets 2",
       [](Rollout& r) {
         r.turn_rewards = {1, 2, 3};
       },
       Reason::kLengths},
      {"turn_rewards has 1 entries, turn_offsets 2", [](Rollout& r) { r.turn_rewards.pop_back(); },
       Reason::kLengths},
      {"turn_rewards has 2 entries, turn_offsets 0", [](Rollout& r) { r.turn_offsets.clear(); },
       Reason::kLengths},
      {"turn_rewards[1]", [=](Rollout& r) { r.turn_rewards[1] = nan; }, Reason::kNotFinite},
      {"turn_rewards[0]", [](Rollout& r) { r.turn_rewards[0] = INFINITY; }, Reason::kNotFinite},
      {"advantages has 1 entries, completion_ids ", [](Rollout& r) { r.advantages = {1}; },
       Reason::kLengths},
      {"advantages[0] = nan",
       [=](Rollout& r) { r.advantages.assign(r.completion_ids.size(), static_cast<float>(nan)); },
       Reason::kNotFinite},
      {"branches[0]: begin 0",
       [](Rollout& r) {
         r.branches[0] = {0, 0};
       }},
      {"branches[1]: begin 2 must be above 2", [](Rollout& r) { r.branches[1].begin = 2; }},
      {"branches[2]: begin 1000", [](Rollout& r) { r.branches[2].begin = 1000; }},
      {"branches[0]: context_end -1", [](Rollout& r) { r.branches[0].context_end = -1; }},
      {"branches[1]: context_end 5 is outside [0, begin 4]",
       [](Rollout& r) { r.branches[1].context_end = 5; }},
      {"routed_experts has 0 layers", [](Rollout& r) { r.routed_experts.layers.clear(); }},
      {"routed_layers: 1 must be above 1",
       [](Rollout& r) {
         r.routed_experts.layers = {1, 1};
       }},
      {"routed_layers: -1 must be above -1", [](Rollout& r) { r.routed_experts.layers[0] = -1; }},
      {"routed_experts has 0 experts a token", [](Rollout& r) { r.routed_experts.per_token = 0; }},
      {"routed_experts has ids of 4 bytes", [](Rollout& r) { r.routed_experts.id_bytes = 4; }},
      {"routed_experts has layers and no rows", [](Rollout& r) { r.routed_experts.ids.clear(); },
       Reason::kLengths},
      {"rows of 4: one for each of",
       [](Rollout& r) { r.routed_experts.ids.resize(r.routed_experts.ids.size() - 4); },
       Reason::kLengths},
      {"rows of 4: one for each of", [](Rollout& r) { r.routed_experts.ids.push_back(0); },
       Reason::kLengths},
      {"routed_experts[2][1][1] = 9 is there twice for one token and layer",
       [](Rollout& r) { r.routed_experts.ids[10] = r.routed_experts.ids[11] = 9; }},
      {"routed_experts[0][0][1] = 32768 is outside [0, 32767]",
       [](Rollout& r) {
         const std::size_t rows = r.prompt_ids.size() + r.completion_ids.size() - 1;
         r.routed_experts = test::make_routed(rows, 2, 1);
         r.routed_experts.ids[2] = 0;
         r.routed_experts.ids[3] = 0x80;
       }},
      {"kept_counts has 1 entries, completion_ids ", [](Rollout& r) { r.kept_sets.counts = {1}; },
       Reason::kLengths},
      {"kept_counts[0] = -1", [](Rollout& r) { r.kept_sets.counts[0] = -1; }, Reason::kLengths},
      {"kept_counts[0] = 2147483647",
       [](Rollout& r) { r.kept_sets.counts[0] = std::numeric_limits<int32_t>::max(); },
       Reason::kLengths},
      {"ids, kept_counts adds up to ", [](Rollout& r) { r.kept_sets.ids.push_back(0); },
       Reason::kLengths},
      {"ids, kept_counts adds up to 0", [](Rollout& r) { r.kept_sets.counts.clear(); },
       Reason::kLengths},
      {"of token 1 must be above", [](Rollout& r) { r.kept_sets.ids[2] = r.kept_sets.ids[1]; }},
      {"of token 0 is below 0", [](Rollout& r) { r.kept_sets.ids[0] = -1; }},
      {"the kept set of token 1 lacks the token itself",
       [](Rollout& r) { r.kept_sets.ids[2] += 1; }},
  };
  const Rollout good = make_rollout(5, 1, 4, 2);
  REQUIRE(good.completion_ids.size() > 6);
  REQUIRE(good.branches.size() == 3);
  REQUIRE(good.turn_rewards.size() == 2);
  REQUIRE(good.routed_experts.layers.size() == 2);
  REQUIRE(good.kept_sets.counts[0] == 1);
  REQUIRE(good.kept_sets.counts[1] == 2);
  REQUIRE(validate(good).ok());
  for (const Break& b : breaks) {
    Rollout bad = good;
    b.apply(bad);
    const Status status = validate(bad);
    INFO(b.field);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().reason == b.reason);
    CHECK(status.error().detail.find(b.field) != std::string::npos);
  }
}

TEST_CASE("limits bound token counts, and a cut rollout may be empty", "[schema]") {
  Rollout r = make_rollout(1, 0, 2, 1);
  Limits limits;
  limits.max_tokens = r.completion_ids.size() - 1;
  CHECK_FALSE(validate(r, limits).ok());
  r.completion_ids.clear();
  r.logprobs.clear();
  r.versions.clear();
  r.turn_offsets.clear();
  r.turn_rewards.clear();
  r.branches.clear();
  r.advantages.clear();
  r.finish_reason = FinishReason::kAborted;
  CHECK(validate(r).ok());
}

TEST_CASE("turns and branches are bounded, each by its own limit", "[schema]") {
  const Rollout r = make_rollout(5, 1, 4, 2);
  REQUIRE(r.branches.size() == 3);
  Limits few_turns, few_branches;
  few_turns.max_turns = 1;
  few_branches.max_branches = 2;
  CHECK(validate(r, few_turns).error().detail.find("turn_offsets has 2 entries, limit 1") !=
        std::string::npos);
  CHECK(validate(r, few_branches).error().detail.find("branches has 3 entries, limit 2") !=
        std::string::npos);
}

TEST_CASE("routed experts are bounded by a frame's bytes and by experts a token", "[schema]") {
  const Rollout r = make_rollout(5, 1, 4, 2);
  Limits few_bytes, few_experts;
  few_bytes.max_frame_bytes = r.routed_experts.ids.size() - 1;
  few_experts.max_experts_per_token = 1;
  CHECK(validate(r, few_bytes).error().detail.find("routed_experts has") != std::string::npos);
  CHECK(validate(r, few_experts).error().detail.find("has 2 experts a token, expected 1 to 1") !=
        std::string::npos);
}

TEST_CASE("a manifest that contradicts itself is refused", "[schema]") {
  const auto snapshot = make_snapshot("run", 1, 3, test::make_tensors(3));
  const Manifest good = snapshot->manifest;
  REQUIRE(validate(good).ok());
  const std::vector<std::function<void(Manifest&)>> breaks = {
      [](Manifest& m) { m.version = -1; },
      [](Manifest& m) { m.trainer_term = -1; },
      [](Manifest& m) { m.encoding = "xor"; },
      [](Manifest& m) { m.base_version = 2; },
      [](Manifest& m) { m.tensors.clear(); },
      [](Manifest& m) { m.tensors[1].name = m.tensors[0].name; },
      [](Manifest& m) { m.tensors[0].name = "a\tb"; },
      [](Manifest& m) { m.tensors[0].dtype = "F33"; },
      [](Manifest& m) { m.tensors[0].shape = {-5}; },
      [](Manifest& m) {
        m.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
      },
      [](Manifest& m) { m.tensors[0].bytes += 4; },
      [](Manifest& m) { m.tensors[1].offset += 2; },
      [](Manifest& m) { m.tensors[1].xxh3[0] = 'G'; },
      [](Manifest& m) { m.root_hash[0] = m.root_hash[0] == '0' ? '1' : '0'; },
  };
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    Manifest bad = good;
    breaks[i](bad);
    INFO("break " << i);
    CHECK_FALSE(validate(bad).ok());
  }
  Limits limits;
  limits.max_weight_bytes = 100;
  CHECK_FALSE(validate(good, limits).ok());
}

TEST_CASE("the root hash follows content, names and order, not the version", "[schema]") {
  const auto root = [](std::vector<NamedBuffer> tensors, int64_t version) {
    return make_snapshot("run", 1, version, std::move(tensors))->manifest.root_hash;
  };
  const std::string base = root(test::make_tensors(1), 1);
  CHECK(root(test::make_tensors(1), 2) == base);
  CHECK(root(test::make_tensors(2), 1) != base);
  auto renamed = test::make_tensors(1);
  renamed[0].name = "other";
  CHECK(root(renamed, 1) != base);
  auto swapped = test::make_tensors(1);
  std::swap(swapped[0], swapped[1]);
  CHECK(root(swapped, 1) != base);
  auto wrong = test::make_tensors(1);
  wrong[0].shape = {3};
  CHECK_THROWS_AS(make_snapshot("run", 1, 1, wrong), std::invalid_argument);
}

TEST_CASE("names that do not fit a message's header are refused", "[schema]") {
  Rollout r = make_rollout(1, 0, 2, 1);
  r.rewards.clear();
  for (char c = 'a'; c < 'l'; ++c) {
    r.rewards.emplace_back(std::string(4096, c), 1.0);
  }
  CHECK(validate(r).ok());
  r.rewards.emplace_back(std::string(4096, 'l'), 1.0);
  const Status long_names = validate(r);
  REQUIRE_FALSE(long_names.ok());
  CHECK(long_names.error().detail.find("names of rewards, ids and the failure take") !=
        std::string::npos);
}

}  // namespace
}  // namespace ringside::bridge
