// Guards the recorded form of several turns and of forks: a field that is read at the wrong place,
// or left out unseen.
#include "rl/data/rollout_file.h"

#include <catch2/catch.hpp>

#include "rl/rollouts/rollout_log.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;

namespace {

std::vector<bridge::Rollout> read_line(const std::string& extra) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "rollouts.jsonl";
  test::write_file(
      path,
      R"({"group_id":0,"prompt_ids":[1],"completion_ids":[3,4,5],"logprobs":[-1,-2,-3],"reward":1)" +
          extra + "}\n");
  return rl::read_rollout_file(path, 1);
}

}  // namespace

TEST_CASE("turns, their rewards and branches are read from a recorded file, and absent are empty") {
  const auto rollout =
      read_line(
          R"(,"turn_offsets":[0,2],"turn_rewards":[0.25,-1],"branches":[{"begin":1,"context_end":0},{"context_end":1,"begin":2}])")
          .at(0);
  CHECK(rollout.turn_offsets == std::vector<int32_t>{0, 2});
  CHECK(rollout.turn_rewards == std::vector<double>{0.25, -1.0});
  CHECK(rollout.branches == std::vector<bridge::Branch>{{1, 0}, {2, 1}});
  const auto plain = read_line("").at(0);
  CHECK(plain.turn_offsets.empty());
  CHECK(plain.turn_rewards.empty());
  CHECK(plain.branches.empty());
}

TEST_CASE("advantages are read from a recorded file, and stand in for the reward") {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "rollouts.jsonl";
  const std::string head =
      R"({"group_id":0,"prompt_ids":[1],"completion_ids":[3,4],"logprobs":[-1,-2])";
  test::write_file(path, head + R"(,"advantages":[0.5,-2]})" + "\n");
  const auto rollout = rl::read_rollout_file(path, 1).at(0);
  CHECK(rollout.advantages == std::vector<float>{0.5F, -2.0F});
  CHECK(rollout.rewards.empty());
  CHECK(read_line("").at(0).advantages.empty());
  CHECK(read_line(R"(,"advantages":[1,2,3])").at(0).rewards.size() == 1);
  CHECK_THROWS_WITH(read_line(R"(,"advantages":[1,2])"),
                    Catch::Contains("advantages has 2 entries, completion_ids 3"));
  test::write_file(path, head + "}\n");
  CHECK_THROWS_WITH(rl::read_rollout_file(path, 1), Catch::Contains("reward"));
}

TEST_CASE("turns and branches that contradict the completion are refused by line and field") {
  const auto expect = [](const std::string& extra, const std::string& message) {
    CHECK_THROWS_WITH(read_line(extra),
                      Catch::Contains("rollouts.jsonl:1: ") && Catch::Contains(message));
  };
  expect(R"(,"turn_rewards":[1])", "turn_rewards has 1 entries, turn_offsets 0");
  expect(R"(,"turn_offsets":[3])", "turn_offsets: 3");
  expect(R"(,"branches":[{"begin":3,"context_end":0}])", "branches[0]: begin 3");
  expect(R"(,"branches":[{"begin":1}])", "context_end");
}

TEST_CASE("a file of another shape is refused in plain words, by line") {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "rollouts.jsonl";
  const auto expect = [&](const std::string& text, const std::string& message) {
    test::write_file(path, text + "\n");
    CHECK_THROWS_WITH(rl::read_rollout_file(path, 1), Catch::Contains("rollouts.jsonl:1: ") &&
                                                          Catch::Contains(message) &&
                                                          !Catch::Contains("json.exception"));
  };
  expect(R"({"prompt": "248=", "answer": "8"})",
         "no \"prompt_ids\"; a recorded rollout holds group_id, prompt_ids");
  expect(R"([1, 2])", "the line is array, expected an object");
  expect(R"({"prompt_ids": )", "is no JSON object: it goes wrong at character");
  expect(R"({"group_id":0,"prompt_ids":"248=","completion_ids":[3],"logprobs":[-1],"reward":1})",
         "\"prompt_ids\" is \"248=\", expected a list of token ids");
  expect(R"({"prompt_ids":[1],"completion_ids":[3],"logprobs":[-1],"reward":1})",
         "no \"group_id\"");
  expect(R"({"group_id":0,"prompt_ids":[1],"completion_ids":[3],"logprobs":[-1],"reward":"good"})",
         "\"reward\" is \"good\", expected a number");
  expect(
      R"({"group_id":0,"prompt_ids":[1],"completion_ids":[3],"logprobs":[-1],"reward":1,"versions":[3]})",
      "\"versions\" is 3, expected a list of {version, begin, end}");
}

TEST_CASE("what the owner refuses is named by line") {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "rollouts.jsonl";
  const std::string good =
      R"({"group_id":0,"prompt_ids":[1],"completion_ids":[3],"logprobs":[-1],"reward":1})";
  const std::string bad =
      R"({"group_id":1,"prompt_ids":[1],"completion_ids":[99],"logprobs":[-1],"reward":1})";
  test::write_file(path, good + "\n" + bad + "\n");
  const auto admit = [](const bridge::Rollout& r) -> bridge::Status {
    if (r.completion_ids[0] == 99) {
      return bridge::Error{bridge::Reason::kVocabulary, "99 is too much"};
    }
    return bridge::Success{};
  };
  CHECK(rl::read_rollout_file(path, 1).size() == 2);
  CHECK_THROWS_WITH(rl::read_rollout_file(path, 1, admit),
                    Catch::Contains("rollouts.jsonl:2: 99 is too much"));
}

TEST_CASE(
    "the file that log.rollouts writes is read back: rewards by name, turns and branches, steps "
    "trained twice") {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "rollouts.jsonl";
  bridge::Rollout rollout;
  rollout.rollout_id = "7/0";
  rollout.group_id = 7;
  rollout.group_size = 1;
  rollout.sample_index = 0;
  rollout.prompt_ids = {3, 4};
  rollout.completion_ids = {5, 6, 7};
  rollout.logprobs = {-0.5F, -2.5F, 0.0F};
  rollout.loss_mask = {1, 0, 1};
  rollout.temperature = 0.75F;
  rollout.versions = {{8, 0, 1}, {9, 1, 3}};
  rollout.trainer_term = 4;
  rollout.rewards = {{"exact_match", 1.0}, {"length", -0.25}};
  rollout.turn_offsets = {0, 2};
  rollout.turn_rewards = {0.5, -1.0};
  rollout.branches = {{2, 1}};
  bridge::Rollout failed;
  failed.rollout_id = "8/0";
  failed.group_id = 8;
  failed.group_size = 1;
  failed.sample_index = 0;
  failed.prompt_ids = {3};
  failed.finish_reason = bridge::FinishReason::kError;
  for (const int64_t logged_in_term : {4, 5}) {  // the step is trained again after a restart
    rl::RolloutLog(path, logged_in_term)
        .write(1, std::vector{rollout}, std::vector<int64_t>{0, 2}, std::vector{0.1, -1.5});
  }
  rl::RolloutLog(path, 5).write(2, std::vector{failed}, std::vector<int64_t>{0, 0}, {});
  const auto read = rl::read_rollout_file(path, 1);
  REQUIRE(read.size() == 3);
  for (const std::size_t i : {0, 1}) {
    auto expected = rollout;
    expected.rollout_id = std::to_string(i) + "/0";
    expected.group_id = static_cast<int64_t>(i);
    expected.trainer_term = 0;  // a file knows no starts
    CHECK(read[i] == expected);
  }
  CHECK(read[2].finish_reason == bridge::FinishReason::kError);
  CHECK(read[2].rewards.empty());
}
