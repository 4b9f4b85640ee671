// Guards: loss entries that score the wrong token, masks or truncation ignored, weights that are
// not global over the mini-batch, recorded files whose mistakes pass unseen.
#include "rl/data/training_batch.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "rl/data/greedy_rollouts.h"
#include "rl/data/rollout_file.h"
#include "rl/data/rollout_rewards.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;

namespace {

bridge::Rollout make_rollout(int64_t group, double reward, int64_t completion_tokens) {
  bridge::Rollout r;
  r.rollout_id = "r" + std::to_string(group);
  r.group_id = group;
  r.group_size = 2;
  r.prompt_ids = {10, 11, 12};
  for (int64_t i = 0; i < completion_tokens; ++i) {
    r.completion_ids.push_back(20 + i);
    r.logprobs.push_back(-0.5F * static_cast<float>(i + 1));
  }
  r.temperature = 0.5F;
  r.rewards = {{"a", reward}, {"b", 0.0}};
  return r;
}

rl::Config make_config() {
  rl::Config config;
  config.rollout.group_size = 2;
  return config;
}

class TempFile {
 public:
  explicit TempFile(const std::string& text) { test::write_file(path(), text); }
  std::filesystem::path path() const { return directory_.path() / "rollouts.jsonl"; }

 private:
  test::TemporaryDirectory directory_;
};

}  // namespace

TEST_CASE("advantages that came with the rollouts stand at their tokens and need no reward") {
  auto config = make_config();
  config.rollout.group_size = 1;
  config.algorithm.advantage.estimator = rl::AdvantageEstimator::kGiven;
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 3), make_rollout(1, 0.0, 2),
                                        make_rollout(2, 0.0, 1)};
  rollouts[0].rewards.clear();
  rollouts[0].loss_mask = {1, 0, 1};
  rollouts[0].advantages = {1, 2, 3};
  rollouts[1].advantages = {-1, -2};
  rollouts[2].rewards.clear();  // failed
  const auto step = rl::make_step_batch(rollouts, config);
  CHECK(step.columns.given == std::vector<double>{1, 3, -1, -2});
  CHECK(step.columns.begin == std::vector<int64_t>{0, 2, 4, 4});
  CHECK(step.rewards.total == std::vector<double>{0, 0, 0});
  CHECK(step.columns.weight == std::vector<double>(4, 0.25));
  config.algorithm.advantage.estimator = rl::AdvantageEstimator::kReinforce;
  rollouts[0].rewards = {{"a", 1.0}};
  CHECK(rl::make_step_batch(rollouts, config).columns.given.empty());
}

TEST_CASE("with reward none the rewards of a recorded file only show") {
  auto config = make_config();
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 3), make_rollout(0, 0.0, 2)};
  rollouts[1].turn_rewards = {2.0};
  rollouts[1].turn_offsets = {0};
  CHECK(rl::make_step_batch(rollouts, config).rewards.total == std::vector<double>{1, 0});
  config.rollout.reward = "none";
  const auto rewards = rl::make_step_batch(rollouts, config).rewards;
  CHECK(rewards.total == std::vector<double>{0, 0});
  CHECK(rewards.weight == std::vector<double>{0, 0});
  CHECK(rewards.turns.empty());
  CHECK(rewards.by_name[0] == std::vector<double>{1, 0});
}

TEST_CASE("replayed routes stand at their tokens, in forked conversations too") {
  auto config = make_config();
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 4), make_rollout(0, 0.0, 1)};
  rollouts[0].branches = {{2, 1}};  // prompt + 0..2, prompt + 0 + 2..4
  rollouts[0].routed_experts = {{5}, 2, 1, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
  rollouts[1].rewards.clear();  // failed, without routes
  rollouts[1].finish_reason = bridge::FinishReason::kError;
  using Rows = std::vector<uint8_t>;
  const auto rows = [&] {
    std::vector<Rows> all;
    const auto step = rl::make_step_batch(rollouts, config);
    for (const sp::Document& document : step.mini_batches[0].documents) {
      all.push_back(document.fields.empty() ? Rows{} : document.fields[0].bytes);
    }
    return all;
  };
  CHECK(rows() == std::vector<Rows>(3));  // not replayed
  config.algorithm.router_replay = rl::RouterReplay::kRollout;
  const auto replayed = rows();
  REQUIRE(replayed.size() == 3);
  CHECK(replayed[0] == Rows{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(replayed[1] == Rows{0, 1, 2, 3, 4, 5, 6, 7, 10, 11});
  CHECK(replayed[2] == Rows{0, 1, 2, 3, 4, 5});  // made up: the experts in turn
  // Ids of one byte beside ids of two.
  rollouts[1].finish_reason = bridge::FinishReason::kStop;
  rollouts[1].rewards = {{"a", 0.0}};
  rollouts[1].routed_experts = {{5}, 2, 2, {0, 1, 9, 0, 2, 0, 3, 0, 4, 0, 5, 0}};
  CHECK(rows()[0] == Rows{0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0});
  CHECK(rows()[2] == rollouts[1].routed_experts.ids);
  rollouts[1].routed_experts.layers = {4};
  CHECK_THROWS_WITH(rows(), Catch::Contains("rollout r0 has routes of 1 layers and 2 experts"));
}

TEST_CASE("each completion token is scored by the token before it") {
  auto config = make_config();
  const std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 3), make_rollout(0, 0.0, 1)};
  const auto step = rl::make_step_batch(rollouts, config);
  REQUIRE(step.mini_batches.size() == 1);
  const auto& documents = step.mini_batches[0].documents;
  REQUIRE(documents.size() == 2);
  const sp::Document& first = documents[0];
  CHECK(first.ids == std::vector<int64_t>{10, 11, 12, 20, 21});
  CHECK(first.entries.source == std::vector<int64_t>{2, 3, 4});
  CHECK(first.entries.target == std::vector<int64_t>{20, 21, 22});
  CHECK(documents[1].entries.sample[0] == 1);
  CHECK(step.columns.begin == std::vector<int64_t>{0, 3, 4});
  CHECK(step.columns.rollout == std::vector<double>{-0.5, -1.0, -1.5, -0.5});
  CHECK(step.columns.weight == std::vector<double>(4, 0.25));
  CHECK(step.columns.temperature == std::vector<double>(4, 0.5));
  CHECK(step.rewards.total == std::vector<double>{1.0, 0.0});
}

TEST_CASE("loss masks and truncation take tokens out of the loss and of its denominator") {
  auto config = make_config();
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 3), make_rollout(0, 0.0, 2)};
  rollouts[0].loss_mask = {1, 0, 1};
  auto step = rl::make_step_batch(rollouts, config);
  CHECK(step.mini_batches[0].documents[0].entries.source == std::vector<int64_t>{2, 4});
  CHECK(step.columns.weight == std::vector<double>(4, 0.25));
  CHECK(step.mini_batches[0].loss_tokens == 4);
  rollouts[1].finish_reason = bridge::FinishReason::kLength;
  config.algorithm.mask_truncated = true;
  step = rl::make_step_batch(rollouts, config);
  CHECK(step.mini_batches[0].documents[1].entries.size() == 0);
  CHECK(step.columns.weight == std::vector<double>(2, 0.5));
}

TEST_CASE("mini-batches split whole samples, each with its own denominator") {
  auto config = make_config();
  config.train.num_mini_batches = 3;
  std::vector<bridge::Rollout> rollouts;
  for (int64_t g = 0; g < 4; ++g) {
    rollouts.push_back(make_rollout(g, 1.0, 1 + g));
    rollouts.push_back(make_rollout(g, 0.0, 2));
  }
  const auto step = rl::make_step_batch(rollouts, config);
  const auto& batches = step.mini_batches;
  CHECK(batches[0].documents.size() == 3);
  CHECK(batches[2].documents.size() == 2);
  CHECK(batches[2].first_token == batches[0].loss_tokens + batches[1].loss_tokens);
  for (const auto& batch : batches) {
    const auto first = step.columns.weight.begin() + batch.first_token;
    CHECK(std::accumulate(first, first + batch.loss_tokens, 0.0) == Approx(1.0));
  }
}

TEST_CASE("an arranged step holds each sample's documents and numbers, and weights of its own") {
  auto config = make_config();
  config.algorithm.loss_aggregation = rl::LossAggregation::kSeqMeanTokenMean;
  std::vector<bridge::Rollout> rollouts;
  for (int64_t i = 0; i < 6; ++i) {
    rollouts.push_back(make_rollout(i / 2, static_cast<double>(i), 1 + i));
  }
  rollouts[3].branches = {{2, 1}};  // a fork: two documents
  rollouts[4].rewards.clear();      // failed
  rollouts[4].finish_reason = bridge::FinishReason::kError;
  auto plain = rl::make_step_batch(rollouts, config);
  plain.columns.advantage = plain.columns.rollout;
  const std::vector<int64_t> order{5, 3, 3, 0, 4, 1};
  const auto arranged = rl::arranged_batch(plain, order, 2, config);
  REQUIRE(arranged.mini_batches.size() == 2);
  CHECK(arranged.columns.reference.empty());
  std::vector<double> want;
  for (const int64_t sample : order) {
    want.insert(want.end(), plain.columns.rollout.begin() + plain.columns.begin[sample],
                plain.columns.rollout.begin() + plain.columns.begin[sample + 1]);
  }
  CHECK(arranged.columns.rollout == want);
  CHECK(arranged.columns.advantage == want);
  // 5, 3, 3 are one, two and two documents; of the failed sample 4 there is one without entries.
  CHECK(arranged.mini_batches[0].documents.size() == 5);
  CHECK(arranged.mini_batches[1].documents.size() == 3);
  std::size_t token = 0;
  for (const auto& mini_batch : arranged.mini_batches) {
    CHECK(mini_batch.first_token == static_cast<int64_t>(token));
    for (std::size_t d = 0; d < mini_batch.documents.size(); ++d) {
      const auto& entries = mini_batch.documents[d].entries;
      for (std::size_t e = 0; e < entries.target.size(); ++e, ++token) {
        CHECK(entries.sample[e] == static_cast<int64_t>(d));
        // make_rollout() gives token i the id 20 + i and the log-prob -(i + 1) / 2.
        const double of_id = -0.5 * static_cast<double>(entries.target[e] - 19);
        CHECK(arranged.columns.rollout[token] == of_id);
      }
    }
  }
  CHECK(token == want.size());
  // Three samples in the first mini-batch; of the second's three one failed.
  CHECK(arranged.columns.weight.front() == Approx(1.0 / (3 * 6)));
  CHECK(arranged.columns.weight.back() == Approx(1.0 / (2 * 2)));
  CHECK_THROWS_WITH(rl::arranged_batch(plain, order, 7, config),
                    Catch::Contains("6 samples in 7 mini-batches"));
  CHECK_THROWS_WITH(rl::arranged_batch(plain, std::vector<int64_t>{6}, 1, config),
                    Catch::Contains("sample 6 of a step of 6"));
}

TEST_CASE("kept sets stand at their loss tokens, and follow their samples") {
  auto config = make_config();
  config.algorithm.logprobs_over = "kept";
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 3), make_rollout(0, 0.0, 2)};
  rollouts[0].loss_mask = {1, 0, 1};
  rollouts[0].kept_sets = {{2, 0, 1}, {19, 20, 22}};
  rollouts[1].kept_sets = {{1, 3}, {20, 5, 6, 21}};
  const auto step = rl::make_step_batch(rollouts, config);
  CHECK(step.columns.kept_sets.begin == std::vector<int64_t>{0, 2, 3, 4, 7});
  CHECK(step.columns.kept_sets.ids == std::vector<int32_t>{19, 20, 22, 20, 5, 6, 21});
  const auto arranged = rl::arranged_batch(step, std::vector<int64_t>{1, 0, 1}, 1, config);
  CHECK(arranged.columns.kept_sets.begin == std::vector<int64_t>{0, 1, 4, 6, 7, 8, 11});
  CHECK(arranged.columns.kept_sets.ids[4] == 19);
  rollouts[1].kept_sets = {};
  CHECK_THROWS_WITH(rl::make_step_batch(rollouts, config),
                    Catch::Contains("rollout r0 brings no kept set for completion token 0"));
  config.algorithm.logprobs_over = "vocabulary";
  CHECK_FALSE(rl::make_step_batch(rollouts, config).columns.kept_sets.any());
}

TEST_CASE("a greedy rollout gives its group a baseline, and one that failed takes it out") {
  auto config = make_config();
  config.algorithm.advantage.estimator = rl::AdvantageEstimator::kRemax;
  config.algorithm.reward.scale = 2.0;
  std::vector<bridge::Rollout> sampled;
  for (int64_t group = 0; group < 2; ++group) {
    for (int32_t i = 0; i < 3; ++i) {
      sampled.push_back(make_rollout(group, 0.25 * static_cast<double>(2 * group + i), 2));
      sampled.back().sample_index = i;
    }
  }
  const auto apart = rl::without_greedy(sampled, config);
  REQUIRE(apart.trained.size() == 4);
  REQUIRE(apart.greedy.size() == 2);
  CHECK(rl::with_greedy(apart.trained, apart.greedy) == sampled);
  auto step = rl::make_step_batch(apart.trained, config, {}, apart.greedy);
  CHECK(step.rewards.baseline == std::vector<double>{1.0, 1.0, 2.0, 2.0});
  CHECK(step.mini_batches[0].loss_tokens == 8);
  sampled[2].rewards.clear();
  sampled[2].finish_reason = bridge::FinishReason::kError;
  const auto failed = rl::without_greedy(sampled, config);
  step = rl::make_step_batch(failed.trained, config, {}, failed.greedy);
  CHECK(step.trained == std::vector<bool>{false, false, true, true});
  CHECK(step.columns.weight == std::vector<double>(4, 0.25));
  std::swap(sampled[0], sampled[2]);
  CHECK_THROWS_WITH(rl::without_greedy(sampled, config),
                    Catch::Contains("is sample 2 at place 0 of its group"));
}

TEST_CASE("each adapter learns from the groups of its records, with their kinds and baselines") {
  auto config = make_config();
  config.algorithm.advantage.estimator = rl::AdvantageEstimator::kRemax;
  config.lora.adapters = "math, code";
  std::vector<bridge::Rollout> sampled;
  for (int64_t group = 0; group < 3; ++group) {
    for (int32_t i = 0; i < 3; ++i) {
      sampled.push_back(make_rollout(group, 0.5, 2));
      sampled.back().sample_index = i;
    }
  }
  const std::vector<int64_t> kinds{1, 1, 1, 0, 0, 0, 1, 1, 1};
  const auto parts = rl::parts_by_policy(rl::without_greedy(sampled, config, kinds), config);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].trained == std::vector{sampled[3], sampled[4]});
  CHECK(parts[0].greedy == std::vector{sampled[5]});
  CHECK(parts[0].kinds == std::vector<int64_t>{0, 0});
  CHECK(parts[1].trained == std::vector{sampled[0], sampled[1], sampled[6], sampled[7]});
  CHECK(parts[1].greedy == std::vector{sampled[2], sampled[8]});
  CHECK(parts[1].kinds == std::vector<int64_t>{1, 1, 1, 1});
  CHECK_THROWS_WITH(rl::without_greedy(sampled, config, std::vector<int64_t>{1}),
                    Catch::Contains("1 kinds of records for 9 rollouts"));
  CHECK_THROWS_WITH(rl::parts_by_policy(rl::without_greedy(sampled, config), config),
                    Catch::Contains("without the kinds of their records"));
  config.lora.adapters = "";
  const auto alone = rl::parts_by_policy(rl::without_greedy(sampled, config, kinds), config);
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].trained.size() == 6);
  CHECK(alone[0].kinds == std::vector<int64_t>{1, 1, 0, 0, 1, 1});
}

TEST_CASE("groups are compared by the total, the shaped total or the reward of a name") {
  auto config = make_config();
  config.algorithm.dynamic_sampling = rl::DynamicSampling::kDrop;
  config.algorithm.reward.clip = 1.0;
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 1), make_rollout(0, 3.0, 1),
                                        make_rollout(1, 2.0, 1), make_rollout(1, 0.0, 1)};
  rollouts[0].rewards = {{"a", 1.0}, {"b", 5.0}};
  const auto trained = [&](const char* by) {
    config.algorithm.dynamic_sampling_by = by;
    return rl::make_step_batch(rollouts, config).trained;
  };
  CHECK(trained("total") == std::vector<bool>{true, true, true, true});
  CHECK(trained("shaped") == std::vector<bool>{false, false, true, true});
  CHECK(trained("b") == std::vector<bool>{true, true, false, false});
  rollouts[0].rewards.clear();  // failed: what is left of its group is equal
  rollouts[0].finish_reason = bridge::FinishReason::kError;
  CHECK(trained("total") == std::vector<bool>{false, false, true, true});
  const auto recipe = rl::parse_rewards(config.rollout.reward);
  CHECK_FALSE(rl::compared_by(rollouts[0], recipe, config));
  config.algorithm.dynamic_sampling_by = "c";
  CHECK_FALSE(rl::compared_by(rollouts[1], recipe, config));
}

TEST_CASE("groups of one reward are dropped from the loss and from its denominators") {
  auto config = make_config();
  config.algorithm.loss_aggregation = rl::LossAggregation::kSeqMeanTokenMean;
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 2), make_rollout(0, 1.0, 2),
                                        make_rollout(1, 1.0, 2), make_rollout(1, 0.0, 2)};
  CHECK(rl::make_step_batch(rollouts, config).mini_batches[0].loss_tokens == 8);
  config.algorithm.dynamic_sampling = rl::DynamicSampling::kDrop;
  const auto step = rl::make_step_batch(rollouts, config);
  CHECK(step.mini_batches[0].documents[0].entries.size() == 0);
  CHECK(step.mini_batches[0].loss_tokens == 4);
  CHECK(step.columns.weight == std::vector<double>(4, 0.25));
}

TEST_CASE(
    "a forked conversation is a document a branch, each scoring its own tokens after its own "
    "context") {
  auto config = make_config();
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 5), make_rollout(0, 0.0, 1)};
  rollouts[0].branches = {
      {2, 1}, {4, 0}};  // tokens 2, 3 go on after token 0; token 4 after the bare prompt
  const auto step = rl::make_step_batch(rollouts, config);
  const auto& documents = step.mini_batches[0].documents;
  REQUIRE(documents.size() == 4);
  CHECK(documents[0].ids == std::vector<int64_t>{10, 11, 12, 20});
  CHECK(documents[1].ids == std::vector<int64_t>{10, 11, 12, 20, 22});
  CHECK(documents[1].entries.source == std::vector<int64_t>{3, 4});
  CHECK(documents[1].entries.target == std::vector<int64_t>{22, 23});
  CHECK(documents[2].ids == std::vector<int64_t>{10, 11, 12});
  CHECK(documents[2].entries.target == std::vector<int64_t>{24});
  // The columns follow the documents: the third branch's token stands after the two of the second.
  CHECK(step.columns.rollout == std::vector<double>{-0.5, -1.0, -1.5, -2.0, -2.5, -0.5});
  CHECK(documents[3].entries.sample[0] == 3);
  CHECK(step.columns.begin == std::vector<int64_t>{0, 5, 6});
}

TEST_CASE(
    "rewards are weighed by the recipe and shaped, those of turns stand at their turn's last loss "
    "token") {
  auto config = make_config();
  config.rollout.reward = "exact_match * 2";
  config.algorithm.reward.scale = 10.0;
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 5), make_rollout(0, 0.0, 2)};
  rollouts[0].rewards = {{"exact_match", 1.0}};
  rollouts[1].rewards = {{"exact_match", 0.5}};
  rollouts[0].loss_mask = {0, 1, 0, 0, 1};
  rollouts[0].turn_offsets = {0, 2, 4};
  rollouts[0].turn_rewards = {0.1, 0.2, 0.3};
  const auto rewards = rl::make_step_batch(rollouts, config).rewards;
  CHECK(rewards.total[0] == Approx(20.0));
  CHECK(rewards.total[1] == Approx(10.0));
  REQUIRE(rewards.turns.size() == 3);
  CHECK(rewards.turns[0].token == 0);
  CHECK(rewards.turns[1].token == 0);  // the turn itself has none: the one before it
  CHECK(rewards.turns[2].token == 1);
  CHECK(rewards.turns[2].value == Approx(3.0));
  const auto recipe = rl::parse_rewards(config.rollout.reward);
  CHECK(rl::total_reward(rollouts[0], recipe) == Approx(2.6));
  CHECK(rl::shaped_reward(rollouts[0], recipe, config) ==
        Approx(rewards.total[0] + 10 * (0.1 + 0.2 + 0.3)));
}

TEST_CASE("a sample that failed counts as the mean of its group and carries no loss") {
  auto config = make_config();
  config.rollout.group_size = 3;
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1.0, 2), make_rollout(0, 0.0, 1),
                                        make_rollout(0, 0.5, 2)};
  rollouts[1].rewards.clear();
  rollouts[1].finish_reason = bridge::FinishReason::kError;
  CHECK(rl::make_step_batch(rollouts, config).rewards.total == std::vector<double>{1.0, 0.75, 0.5});
  CHECK(rl::make_step_batch(rollouts, config).mini_batches[0].documents[1].entries.size() == 0);
}

TEST_CASE(
    "the advantages of a group with a failed sample are those of the samples that are there") {
  auto config = make_config();
  config.rollout.group_size = 4;
  config.algorithm.advantage.eps = 0.0;
  std::vector<bridge::Rollout> rollouts{make_rollout(0, 1, 1), make_rollout(0, 0, 1),
                                        make_rollout(0, 0, 1), make_rollout(0, 0, 1)};
  rollouts[3].rewards.clear();  // failed
  const auto batch = rl::make_step_batch(rollouts, config);
  const auto got = rl::step_advantages(batch.columns, batch.rewards, 4, config.algorithm, 0.0);
  REQUIRE(got.advantage.size() == 3);
  const double std = std::sqrt(1.0 / 3);  // of 1, 0, 0 over n - 1
  CHECK(got.advantage[0] == Approx(2.0 / 3 / std));
  CHECK(got.advantage[1] == Approx(-1.0 / 3 / std));
}

// Of a group of three without one that never came, and of the two alone.
TEST_CASE("a stand-in for a sample that did not come changes no weight and no column of the loss") {
  const auto aggregation =
      GENERATE(rl::LossAggregation::kTokenMean, rl::LossAggregation::kTokenSum,
               rl::LossAggregation::kSeqMeanTokenMean, rl::LossAggregation::kSeqMeanTokenSum,
               rl::LossAggregation::kConstant);
  auto config = make_config();
  config.algorithm.loss_aggregation = aggregation;
  config.algorithm.loss_divisor = 5;
  const std::vector<bridge::Rollout> two{make_rollout(0, 1.0, 2), make_rollout(0, 0.0, 3)};
  bridge::Rollout stand_in = make_rollout(0, 0.0, 0);
  stand_in.rewards.clear();
  stand_in.finish_reason = bridge::FinishReason::kError;
  const auto small = rl::make_step_batch(two, config);
  config.rollout.group_size = 3;
  const auto batch =
      rl::make_step_batch(std::vector<bridge::Rollout>{two[0], stand_in, two[1]}, config);
  CHECK(batch.columns.weight == small.columns.weight);
  CHECK(batch.columns.rollout == small.columns.rollout);
  CHECK(batch.mini_batches[0].loss_tokens == 5);
  CHECK(batch.trained == std::vector<bool>{true, false, true});
}

TEST_CASE("a recorded file is read in groups with its optional fields") {
  const TempFile file(
      R"({"group_id":"x","prompt_ids":[1,2],"completion_ids":[3,4],"logprobs":[-1.0,-2.0],"reward":1})"
      "\n"
      R"({"group_id":"x","prompt_ids":[1,2],"completion_ids":[5],"logprobs":[-1.5],"reward":0.5,"loss_mask":[0],)"
      R"("finish_reason":"length","temperature":0.7,"versions":[{"version":4,"begin":0,"end":1}]})"
      "\n");
  const auto rollouts = rl::read_rollout_file(file.path(), 2);
  REQUIRE(rollouts.size() == 2);
  CHECK(rollouts[1].group_id == 0);
  CHECK(rollouts[1].sample_index == 1);
  CHECK(rollouts[1].loss_mask == std::vector<uint8_t>{0});
  CHECK(rollouts[1].finish_reason == bridge::FinishReason::kLength);
  CHECK(rollouts[1].versions.front().version == 4);
  CHECK(rl::total_reward(rollouts[1], {}) == 0.5);
}

TEST_CASE("a bad line is named with file and number") {
  const std::string good =
      R"({"group_id":0,"prompt_ids":[1],"completion_ids":[3],"logprobs":[-1.0],"reward":1})"
      "\n";
  const auto expect = [&](const std::string& text, const std::string& message) {
    const TempFile file(text);
    CHECK_THROWS_WITH(rl::read_rollout_file(file.path(), 1), Catch::Contains(message));
  };
  expect(good + "{not json\n", ":2: ");
  expect(good + R"({"group_id":1,"prompt_ids":[1],"logprobs":[],"reward":1})"
                "\n",
         "completion_ids");
  expect(R"({"group_id":0,"prompt_ids":[1],"completion_ids":[3],"logprobs":[-1.0,-2.0],"reward":1})"
         "\n",
         "logprobs");
  expect(good + good, "more than rollout.group_size = 1");
  expect("", "holds no rollout");
  const TempFile file(good);
  CHECK_THROWS_WITH(rl::read_rollout_file(file.path(), 2), Catch::Contains("ends after 1 lines"));
  CHECK_THROWS_WITH(rl::read_rollout_file("/does/not/exist", 2), Catch::Contains("cannot read"));
}
