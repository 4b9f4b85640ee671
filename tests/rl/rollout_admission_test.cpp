// Guards the door of training: a rollout that the model cannot compute, or that is not what the
// recipe asks for, must be refused by name; one that keeps the rules, of many turns and branches
// too, must not.
#include "rl/rollouts/rollout_admission.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "rl/setup/shared_settings.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
using bridge::Reason;

namespace {

constexpr rl::ModelBounds kModel{.vocab_size = 48, .max_positions = 64};

rl::Config make_config() {
  rl::Config config;
  config.rollout.prompts_per_step = 2;
  config.rollout.group_size = 2;
  config.rollout.max_prompt_tokens = 16;
  config.rollout.max_completion_tokens = 12;
  config.rollout.temperature = 0.7;
  config.rollout.reward = "exact_match, length * 0.5";
  config.algorithm.max_staleness = 1;
  return config;
}

void set_completion(bridge::Rollout& r, std::size_t tokens) {
  r.completion_ids.assign(tokens, 7);
  r.logprobs.assign(tokens, -1.0F);
  r.versions = {{5, 0, static_cast<int64_t>(tokens)}};
}

// One that keeps every rule of make_config(), of the trainer_term 3.
bridge::Rollout make_rollout() {
  bridge::Rollout r;
  r.rollout_id = "r";
  r.group_id = 10;  // step 6, which trains from version 5
  r.group_size = 2;
  r.sample_index = 1;
  r.prompt_ids = {1, 2, 47};
  set_completion(r, 12);
  r.temperature = 0.7F;
  r.trainer_term = 3;
  r.rewards = {{"exact_match", 1.0}, {"length", -1.0}};
  return r;
}

using Change = std::function<void(bridge::Rollout&)>;

// What a rollout changed so is refused for; nothing when it is taken.
std::optional<bridge::Error> refusal(const rl::Config& config, const Change& change,
                                     std::unique_ptr<rl::GrantedPrompts> prompts = nullptr) {
  bridge::Rollout rollout = make_rollout();
  change(rollout);
  REQUIRE(bridge::validate(rollout).ok());  // the protocol's own rules are kept
  rl::LiveAdmission admission(config, kModel, std::move(prompts));
  const auto status = admission.admit(rollout);
  return status ? std::nullopt : std::optional(status.error());
}

void expect(Reason reason, const std::string& sentence, const Change& change,
            const rl::Config& config = make_config()) {
  INFO(sentence);
  const auto error = refusal(config, change);
  REQUIRE(error.has_value());
  CHECK(bridge::reason_name(error->reason) == std::string(bridge::reason_name(reason)));
  CHECK_THAT(error->detail, Catch::Contains("'r'") && Catch::Contains(sentence));
}

void expect_taken(const Change& change, const rl::Config& config = make_config()) {
  const auto error = refusal(config, change);
  INFO((error ? error->detail : ""));
  CHECK_FALSE(error.has_value());
}

// A tokenizer whose tokens are single characters, and prompts that are one letter each.
std::unique_ptr<rl::GrantedPrompts> letters(const rl::Config& config,
                                            const std::vector<std::string>& texts) {
  const test::TemporaryDirectory directory;
  std::string vocab;
  for (char c = 'a'; c <= 'z'; ++c) {
    vocab +=
        (vocab.empty() ? "\"" : ",\"") + std::string(1, c) + "\":" + std::to_string(c - 'a' + 1);
  }
  test::write_file(
      directory.path() / "tokenizer.json",
      R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,)"
      R"("decoder":{"type":"Fuse"},"model":{"type":"BPE","vocab":{)" +
          vocab + R"(},"merges":[]}})");
  rl::PromptSet prompts;
  for (const std::string& text : texts) {
    prompts.prompts.push_back({"", text, ""});
  }
  prompts.parts = {{static_cast<int64_t>(texts.size()), 0.0}};
  return std::make_unique<rl::GrantedPrompts>(config, prompts,
                                              engine::Tokenizer::load(directory.path()));
}

}  // namespace

TEST_CASE("a rollout that keeps the rules is taken", "[admission]") {
  expect_taken([](bridge::Rollout&) {});
  expect_taken([](bridge::Rollout& r) { r.versions = {{4, 0, 12}}; });
  expect_taken([](bridge::Rollout& r) {  // versions are the ledger's to judge
    r.trainer_term = 2;
    r.versions = {{0, 0, 12}};
  });
}

TEST_CASE(
    "a token id outside the model's vocabulary is refused, in prompt and completion, of failed "
    "samples too",
    "[admission]") {
  expect(Reason::kVocabulary, "completion_ids[11] = 48 is outside the model's vocabulary of 48",
         [](bridge::Rollout& r) { r.completion_ids.back() = 48; });
  expect(Reason::kVocabulary, "prompt_ids[0] = 2147483647 is outside",
         [](bridge::Rollout& r) { r.prompt_ids[0] = 2147483647; });
  expect(Reason::kVocabulary, "completion_ids[0] = 1000000", [](bridge::Rollout& r) {
    r.completion_ids[0] = 1000000;
    r.finish_reason = bridge::FinishReason::kError;
    r.rewards.clear();
  });
}

TEST_CASE("lengths are held to the recipe by turn and to the model's positions in all",
          "[admission]") {
  expect(Reason::kTooLong, "prompt_ids has 17 tokens, rollout.max_prompt_tokens is 16",
         [](bridge::Rollout& r) { r.prompt_ids.assign(17, 1); });
  expect(Reason::kTooLong, "a turn has 13 sampled tokens, rollout.max_completion_tokens is 12",
         [](bridge::Rollout& r) { set_completion(r, 13); });
  const auto conversation = [](std::size_t tokens) {
    return [=](bridge::Rollout& r) {  // turns of 8 sampled tokens and 4 of the environment
      set_completion(r, tokens);
      for (std::size_t i = 0; i < tokens; ++i) {
        r.loss_mask.push_back(i % 12 < 8 ? 1 : 0);
      }
    };
  };
  expect_taken(conversation(61));
  expect(Reason::kTooLong, "have 65 tokens, the model has 64 positions", conversation(62));
  expect_taken([](bridge::Rollout& r) {  // turns that nothing lies between
    set_completion(r, 24);
    r.turn_offsets = {0, 12};
  });
  expect(Reason::kTooLong, "a turn has 13", [](bridge::Rollout& r) {
    set_completion(r, 24);
    r.turn_offsets = {0, 11};
  });
  // Each branch is a sequence of its own: 8 x 12 tokens that all continue the prompt.
  expect_taken([](bridge::Rollout& r) {
    set_completion(r, 96);
    for (int64_t begin = 12; begin < 96; begin += 12) {
      r.branches.push_back({begin, 0});
    }
  });
  expect(Reason::kTooLong, "have 75 tokens", [](bridge::Rollout& r) {
    set_completion(r, 72);
    for (int64_t begin = 12; begin < 72; begin += 12) {
      r.branches.push_back({begin, begin});
    }
  });
}

TEST_CASE("sampling settings are the recipe's, and those that training cannot honour are refused",
          "[admission]") {
  expect(Reason::kSampling, "top_p 0.5 and top_k 0", [](bridge::Rollout& r) { r.top_p = 0.5F; });
  expect(Reason::kSampling, "top_p 1 and top_k 5", [](bridge::Rollout& r) { r.top_k = 5; });
  expect(Reason::kSampling, "temperature 7, rollout.temperature is 0.7",
         [](bridge::Rollout& r) { r.temperature = 7.0F; });
  expect(Reason::kInvalidField, "group_size 3, rollout.group_size is 2",
         [](bridge::Rollout& r) { r.group_size = 3; });
}

TEST_CASE("rewards are bounded, named once, and those of the recipe", "[admission]") {
  expect(Reason::kRewards, "reward 'length' is 1e+308",
         [](bridge::Rollout& r) { r.rewards[1].second = 1e308; });
  expect(Reason::kRewards, "reward 'length' is -1000001",
         [](bridge::Rollout& r) { r.rewards[1].second = -1000001; });
  expect_taken([](bridge::Rollout& r) { r.rewards[1].second = -1e6; });
  expect(Reason::kRewards, "turn_rewards[1] is 1e+300", [](bridge::Rollout& r) {
    r.turn_offsets = {0, 3};
    r.turn_rewards = {1.0, 1e300};
  });
  expect(Reason::kRewards, "advantages[2] is 1e+38", [](bridge::Rollout& r) {
    r.advantages.assign(12, 0.0F);
    r.advantages[2] = 1e38F;
  });
  expect(Reason::kRewards, "reward 'length' is there twice",
         [](bridge::Rollout& r) { r.rewards.emplace_back("length", 0.0); });
  expect(Reason::kRewards, "brings reward 'exact_match' and not 'length'",
         [](bridge::Rollout& r) { r.rewards.pop_back(); });
  expect(Reason::kRewards,
         "brings reward 'style', rollout.reward is \"exact_match, length * 0.5\"; set it to worker",
         [](bridge::Rollout& r) { r.rewards.emplace_back("style", 1.0); });
  expect(Reason::kRewards, "brings reward 'even'", [](bridge::Rollout& r) {
    r.rewards = {{"even", 1.0}};
  });
  expect(Reason::kRewards, "brings no reward", [](bridge::Rollout& r) { r.rewards.clear(); });
  expect_taken([](bridge::Rollout& r) {
    r.rewards.clear();
    r.finish_reason = bridge::FinishReason::kError;
  });
  expect_taken([](bridge::Rollout& r) {
    r.rewards.clear();
    r.turn_offsets = {0};
    r.turn_rewards = {1.0};
  });
  auto own = make_config();
  own.rollout.reward = "worker";
  expect_taken([](bridge::Rollout& r) { r.rewards = {{"even", 1.0}, {"style", 0.5}}; }, own);
  expect(
      Reason::kRewards, "brings no reward", [](bridge::Rollout& r) { r.rewards.clear(); }, own);
}

TEST_CASE("advantages go with estimator given, and with it alone", "[admission]") {
  auto given = make_config();
  given.algorithm.advantage.estimator = rl::AdvantageEstimator::kGiven;
  expect(
      Reason::kRewards, "brings no advantages", [](bridge::Rollout&) {}, given);
  expect_taken(
      [](bridge::Rollout& r) {
        r.rewards.clear();
        r.advantages.assign(12, 0.5F);
      },
      given);
  expect(Reason::kRewards, "brings advantages and no reward", [](bridge::Rollout& r) {
    r.rewards.clear();
    r.advantages.assign(12, 0.5F);
  });
}

TEST_CASE("routes are those of the model, where they are replayed", "[admission]") {
  rl::ModelBounds model = kModel;
  model.expert_layers = {1, 3};
  model.experts = 8;
  model.experts_per_token = 2;
  rl::Config config = make_config();
  const auto error_of = [&](const Change& change) {
    bridge::Rollout rollout = make_rollout();
    for (int token = 0; token < 14; ++token) {
      rollout.routed_experts.ids.insert(rollout.routed_experts.ids.end(), {0, 7, 3, 2});
    }
    rollout.routed_experts.layers = {1, 3};
    rollout.routed_experts.per_token = 2;
    change(rollout);
    REQUIRE(bridge::validate(rollout).ok());
    const auto status = rl::LiveAdmission(config, model, nullptr).admit(rollout);
    return status ? std::nullopt : std::optional(status.error());
  };
  const Change drop = [](bridge::Rollout& r) { r.routed_experts = {}; };
  const Change wrong = [](bridge::Rollout& r) { r.routed_experts.ids[4 * 5 + 1] = 8; };
  CHECK_FALSE(error_of(drop));  // not replayed: not needed, and not looked at
  CHECK_FALSE(error_of(wrong));
  config.algorithm.router_replay = rl::RouterReplay::kRollout;
  CHECK_FALSE(error_of([](bridge::Rollout&) {}));
  const auto refused = [&](const std::string& sentence, const Change& change) {
    INFO(sentence);
    const auto error = error_of(change);
    REQUIRE(error.has_value());
    CHECK(error->reason == Reason::kRoutes);
    CHECK(error->detail.find(sentence) != std::string::npos);
  };
  refused("rollout 'r': brings no routed experts, but algorithm.router_replay is rollout", drop);
  refused("brings expert 8 for token 5, the model has 8", wrong);
  refused("brings 2 experts a token for the layers [1, 2], the model uses 2 in its layers [1, 3]",
          [](bridge::Rollout& r) {
            r.routed_experts.layers = {1, 2};
          });
  refused("brings 4 experts a token for the layers [1]", [](bridge::Rollout& r) {
    r.routed_experts.layers = {1};
    r.routed_experts.per_token = 4;
  });
  CHECK_FALSE(error_of([&](bridge::Rollout& r) {  // a failed one carries no loss
    drop(r);
    r.finish_reason = bridge::FinishReason::kError;
  }));
}

TEST_CASE("rollouts of truncated sampling need the kept sets of their tokens", "[admission]") {
  auto config = make_config();
  config.rollout.top_p = 0.5;
  const Change truncated = [](bridge::Rollout& r) {
    r.top_p = 0.5F;
    r.kept_sets.counts.assign(12, 2);
    for (int i = 0; i < 12; ++i) {
      r.kept_sets.ids.insert(r.kept_sets.ids.end(), {7, 8});
    }
  };
  expect(Reason::kSampling, "or algorithm.logprobs_over kept", truncated, config);
  config.algorithm.logprobs_over = "kept";
  expect_taken(truncated, config);
  const auto changed = [&](const Change& change) -> Change {
    return [&truncated, change](bridge::Rollout& r) {
      truncated(r);
      change(r);
    };
  };
  expect(Reason::kSampling, "brings no kept set for completion token 0",
         changed([](bridge::Rollout& r) { r.kept_sets = {}; }), config);
  const Change one_less = changed([](bridge::Rollout& r) {
    r.kept_sets.counts[3] = 0;
    r.kept_sets.ids.resize(22);
  });
  expect(Reason::kSampling, "brings no kept set for completion token 3", one_less, config);
  expect_taken(changed([&](bridge::Rollout& r) {  // the environment wrote it
                 one_less(r);
                 r.kept_sets.ids.resize(22);
                 r.kept_sets.counts.assign(12, 2);
                 r.kept_sets.counts[3] = 0;
                 r.loss_mask.assign(12, 1);
                 r.loss_mask[3] = 0;
               }),
               config);
  expect(Reason::kVocabulary, "kept_ids[1] = 48 is outside",
         changed([](bridge::Rollout& r) { r.kept_sets.ids[1] = 48; }), config);
  expect(Reason::kSampling, "sampled with top_p 0.4 and top_k 0, the recipe has top_p 0.5",
         changed([](bridge::Rollout& r) { r.top_p = 0.4F; }), config);
  expect_taken(changed([](bridge::Rollout& r) {
                 r.kept_sets = {};
                 r.finish_reason = bridge::FinishReason::kError;
                 r.rewards.clear();
               }),
               config);
}

TEST_CASE("with remax the last sample of a group is greedy, and the others are not",
          "[admission]") {
  auto config = make_config();
  config.algorithm.advantage.estimator = rl::AdvantageEstimator::kRemax;
  expect(
      Reason::kInvalidField, "rollout.group_size is 2 and one is greedy", [](bridge::Rollout&) {},
      config);
  const auto sample = [](int32_t index, float temperature, int32_t top_k) -> Change {
    return [=](bridge::Rollout& r) {
      r.group_size = 3;
      r.sample_index = index;
      r.temperature = temperature;
      r.top_k = top_k;
    };
  };
  expect_taken(sample(1, 0.7F, 0), config);
  expect_taken(sample(2, 1.0F, 1), config);
  expect(Reason::kSampling, "a greedy sample has top_p 1 and top_k 1", sample(2, 1.0F, 0), config);
  expect(Reason::kSampling, "expected 1 and 0", sample(1, 0.7F, 1), config);
}

TEST_CASE("the prompt is the one that the group stands for", "[admission]") {
  auto config = make_config();
  config.data.shuffle = false;
  const std::vector<std::string> texts{"a", "bc", "this one has more letters than allowed",
                                       "de fg"};
  const auto with_prompt = [&](int64_t group, std::vector<int64_t> ids) {
    return refusal(
        config,
        [&](bridge::Rollout& r) {
          r.group_id = group;
          r.prompt_ids = std::move(ids);
        },
        letters(config, texts));
  };
  CHECK_FALSE(with_prompt(8, {1}).has_value());  // the third pass over four prompts
  CHECK_FALSE(with_prompt(9, {2, 3}).has_value());
  for (const auto& ids : {std::vector<int64_t>{1}, {2}, {2, 4}, {2, 3, 1}}) {
    const auto error = with_prompt(9, ids);
    REQUIRE(error.has_value());
    CHECK(error->reason == Reason::kPrompt);
    CHECK_THAT(error->detail, Catch::Contains("is not the prompt of group 9 in data.train"));
  }
  CHECK_THAT(with_prompt(9, {2, 4})->detail,
             Catch::Contains("2 tokens, expected 2, the first difference is at 1"));
  CHECK_FALSE(
      with_prompt(10, {1, 2, 3}).has_value());  // cut or left out: that is the worker's policy
  CHECK_FALSE(with_prompt(10 + (int64_t{1} << 40), {1, 2, 3}).has_value());
}

TEST_CASE("recorded rollouts are held to the model, not to the settings of workers",
          "[admission]") {
  const auto config = make_config();
  auto rollout = make_rollout();
  rollout.temperature = 2.0F;
  rollout.group_size = 5;
  rollout.rewards = {{"reward", 1.0}};
  set_completion(rollout, 60);
  CHECK(rl::check_recorded(rollout, config, kModel).ok());
  set_completion(rollout, 62);
  CHECK(rl::check_recorded(rollout, config, kModel).error().reason == Reason::kTooLong);
  set_completion(rollout, 12);
  rollout.completion_ids[3] = 48;
  CHECK(rl::check_recorded(rollout, config, kModel).error().reason == Reason::kVocabulary);
}

TEST_CASE("a rollout of a held-out prompt keeps the evaluation's rules", "[admission]") {
  rl::Config config = make_config();
  config.eval.temperature = 0.0;
  rl::LiveAdmission admission(config, kModel, nullptr, {{4, 5}, {1, 2, 47}});
  bridge::Rollout good = make_rollout();
  good.group_id = bridge::kFirstHeldOutGroup + 1;
  good.temperature = 1.0F;
  good.top_k = 1;
  CHECK(admission.admit_held_out(good, 1).ok());
  const auto refused = [&](Reason reason, const std::string& sentence, const Change& change) {
    INFO(sentence);
    bridge::Rollout rollout = good;
    change(rollout);
    const auto status = admission.admit_held_out(rollout, 1);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().reason == reason);
    CHECK_THAT(status.error().detail, Catch::Contains(sentence));
  };
  refused(Reason::kSampling, "evaluation expects 1, 1, 1", [](auto& r) { r.top_k = 0; });
  refused(Reason::kSampling, "temperature 0.7", [](auto& r) { r.temperature = 0.7F; });
  refused(Reason::kPrompt, "not held-out prompt 1", [](auto& r) { r.prompt_ids = {4, 5}; });
  refused(Reason::kVocabulary, "completion_ids[0]", [](auto& r) { r.completion_ids[0] = 48; });
  refused(Reason::kRewards, "no reward by name", [](auto& r) { r.rewards.clear(); });
  refused(Reason::kRewards, "reward 'mine'", [](auto& r) { r.rewards.emplace_back("mine", 1.0); });
  refused(Reason::kRewards, "expected -1e6 to 1e6", [](auto& r) { r.rewards[0].second = 2e6; });
  refused(Reason::kTooLong, "rollout.max_prompt_tokens",
          [](auto& r) { r.prompt_ids.assign(1000, 1); });
}

TEST_CASE("fingerprints tell prompts, answers, their order and tokenizers apart", "[admission]") {
  const test::TemporaryDirectory directory;
  rl::Config config = make_config();
  config.model.path = directory.path().string();
  engine::ModelConfig model;
  model.vocab_size = 48;
  model.max_position_embeddings = 64;
  const std::vector<rl::Prompt> prompts{{"1", "ab", "c"}, {"2", "d", "e"}};
  const auto of = [&](const std::vector<rl::Prompt>& list) {
    rl::PromptSet set;
    set.prompts = list;
    return rl::shared_settings(config, model, set, {}, {});
  };
  const auto base = of(prompts);
  CHECK(base.vocab_size == 48);
  CHECK(base.max_positions == 64);
  CHECK(base.temperature == 0.7);
  CHECK(base.reward_names == std::vector<std::string>{"exact_match", "length"});
  REQUIRE(base.prompts.has_value());
  CHECK_FALSE(base.tokenizer.has_value());
  CHECK_FALSE(of({}).prompts.has_value());
  CHECK(of({{"9", "ab", "c"}, {"", "d", "e"}}).prompts == base.prompts);  // ids are names
  CHECK(of({{"1", "d", "e"}, {"2", "ab", "c"}}).prompts != base.prompts);
  CHECK(of({{"1", "a", "bc"}, {"2", "d", "e"}}).prompts != base.prompts);
  CHECK(of({{"1", "ab", "c"}, {"2", "d", "f"}}).prompts != base.prompts);
  test::write_file(directory.path() / "tokenizer.json", R"({"a": 1, "b": [2, 3]})");
  const auto spaced = of(prompts).tokenizer;
  REQUIRE(spaced.has_value());
  test::write_file(directory.path() / "tokenizer.json", R"({"b":[2,3],"a":1})");
  CHECK(of(prompts).tokenizer == spaced);
  test::write_file(directory.path() / "tokenizer.json", R"({"b":[3,2],"a":1})");
  CHECK(of(prompts).tokenizer != spaced);
  config.data.shuffle = false;
  CHECK(of(prompts).prompts != base.prompts);
}

TEST_CASE("images of a conversation are those that the model takes, on their own tokens") {
  rl::ImageRules rules;
  rules.processor.patch = 4;
  rules.processor.merge = 2;
  rules.processor.min_pixels = 64;
  rules.processor.max_pixels = 4096;
  rules.image_token_id = 27;
  // Two tokens at the completion's third place.
  const auto with_image = [](int64_t height, int64_t width) {
    bridge::Rollout r = make_rollout();
    r.images = {{std::string(32, 'a'), height, width, 2, 4}};
    r.loss_mask.assign(r.completion_ids.size(), 1);
    r.loss_mask[2] = r.loss_mask[3] = 0;
    r.completion_ids[2] = r.completion_ids[3] = 27;
    return r;
  };
  const auto refusal_of = [&](const bridge::Rollout& r, std::optional<rl::ImageRules> taken) {
    REQUIRE(bridge::validate(r).ok());
    const auto status =
        rl::LiveAdmission(make_config(), kModel, nullptr, {}, std::move(taken)).admit(r);
    if (status) {
      return std::string();
    }
    CHECK(status.error().reason == Reason::kImages);
    return status.error().detail;
  };
  CHECK(refusal_of(with_image(8, 16), rules).empty());
  CHECK_THAT(refusal_of(with_image(8, 16), std::nullopt),
             Catch::Contains("data.image_key is not set"));
  CHECK_THAT(refusal_of(with_image(9, 16), rules),
             Catch::Contains("9 x 16 pixels is not resized; the model takes it as 8 x 16"));
  CHECK_THAT(refusal_of(with_image(8, 8), rules),
             Catch::Contains("has 1 tokens, the rollout says 2"));
  CHECK_THAT(refusal_of(with_image(8, 8 * 201), rules), Catch::Contains("a ratio of at most 200"));
  CHECK_THAT(refusal_of(with_image(80, 80), rules), Catch::Contains("is not resized"));
  bridge::Rollout other = with_image(8, 16);
  other.completion_ids[3] = 5;
  CHECK_THAT(refusal_of(other, rules),
             Catch::Contains("completion_ids[3] = 5") && Catch::Contains("the placeholder 27"));
  other = with_image(8, 16);
  other.completion_ids[5] = 27;  // the policy sampled it: a token like any other
  CHECK(refusal_of(other, rules).empty());
}
