// Guards the recorded form of several turns and of forks: a field that is read at the wrong place, or left out unseen.
#include "rl/data/rollout_file.h"

#include <catch2/catch.hpp>

#include "tests/support/temporary_directory.h"

using namespace ringside;

namespace {

std::vector<bridge::Rollout> read_line(const std::string& extra) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "rollouts.jsonl";
  test::write_file(path, R"({"group_id":0,"prompt_ids":[1],"completion_ids":[3,4,5],"logprobs":[-1,-2,-3],"reward":1)" +
                             extra + "}\n");
  return rl::read_rollout_file(path, 1);
}

}  // namespace

TEST_CASE("turns, their rewards and branches are read from a recorded file, and absent are empty") {
  const auto rollout = read_line(
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
  const std::string head = R"({"group_id":0,"prompt_ids":[1],"completion_ids":[3,4],"logprobs":[-1,-2])";
  test::write_file(path, head + R"(,"advantages":[0.5,-2]})" + "\n");
  const auto rollout = rl::read_rollout_file(path, 1).at(0);
  CHECK(rollout.advantages == std::vector<float>{0.5F, -2.0F});
  CHECK(rollout.rewards.empty());
  CHECK(read_line("").at(0).advantages.empty());
  CHECK(read_line(R"(,"advantages":[1,2,3])").at(0).rewards.size() == 1);
  CHECK_THROWS_WITH(read_line(R"(,"advantages":[1,2])"), Catch::Contains("advantages has 2 entries, completion_ids 3"));
  test::write_file(path, head + "}\n");
  CHECK_THROWS_WITH(rl::read_rollout_file(path, 1), Catch::Contains("reward"));
}

TEST_CASE("turns and branches that contradict the completion are refused by line and field") {
  const auto expect = [](const std::string& extra, const std::string& message) {
    CHECK_THROWS_WITH(read_line(extra), Catch::Contains("rollouts.jsonl:1: ") && Catch::Contains(message));
  };
  expect(R"(,"turn_rewards":[1])", "turn_rewards has 1 entries, turn_offsets 0");
  expect(R"(,"turn_offsets":[3])", "turn_offsets: 3");
  expect(R"(,"branches":[{"begin":3,"context_end":0}])", "branches[0]: begin 3");
  expect(R"(,"branches":[{"begin":1}])", "context_end");
}
