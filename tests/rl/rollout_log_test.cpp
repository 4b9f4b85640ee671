// The log of consumed rollouts: every field as it was, appended over restarts, a torn last line
// cut.
#include "rl/rollouts/rollout_log.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/images/image_decoder.h"
#include "rl/data/rollout_file.h"
#include "rl/setup/endpoint_file.h"
#include "rollout_bridge/base/base64.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

bridge::Rollout make_rollout(int32_t sample) {
  bridge::Rollout r;
  r.rollout_id = "7/" + std::to_string(sample);
  r.attempt = 2;
  r.group_id = 7;
  r.group_size = 2;
  r.sample_index = sample;
  r.prompt_ids = {3, 4};
  r.completion_ids = {5, 6, 7};
  r.logprobs = {-0.1F, -2.5F, 0.0F};
  r.temperature = 0.7F;
  r.versions = {{8, 0, 1}, {9, 1, 3}};
  r.trainer_term = 4;
  r.finish_reason = bridge::FinishReason::kLength;
  r.rewards = {{"exact_match", 1.0}, {"length", -0.25}};
  return r;
}

// Rollouts without a loss token.
void write_plain(RolloutLog log, int64_t step, const std::vector<bridge::Rollout>& rollouts) {
  log.write(step, rollouts, std::vector<int64_t>(rollouts.size() + 1, 0), {});
}

std::vector<nlohmann::json> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

// The bridge refuses such text. A log must not end a run whatever it is given.
TEST_CASE("text that is not UTF-8 is replaced in the logs and throws nothing") {
  const test::TemporaryDirectory folder;
  bridge::Rollout rollout = make_rollout(1);
  rollout.rollout_id = "\xff\xfe";
  rollout.rewards[0].first = "\xc3";
  write_plain(RolloutLog(folder.path() / "rollouts.jsonl", 1, std::nullopt), 1, {rollout});
  LoggedSample sample;
  sample.rollout = &rollout;
  SampleLog(folder.path() / "samples.jsonl", 1, std::nullopt).write(1, std::span(&sample, 1));
  const std::string mark = "\xef\xbf\xbd";  // U+FFFD
  const auto line = lines_of(folder.path() / "rollouts.jsonl").at(0);
  CHECK(line["rollout_id"] == mark + mark);
  CHECK(line["rewards"][0][0] == mark);
  CHECK(lines_of(folder.path() / "samples.jsonl").at(0)["rewards"][0][0] == mark);
}

TEST_CASE("a logged rollout reads back as it was") {
  const test::TemporaryDirectory folder;
  fs::create_directories(folder.path() / "bridge");
  write_endpoint_file(folder.path() / "bridge" / "endpoint.json", {"a", "b", "run", 5});
  const bridge::Rollout rollout = make_rollout(1);
  open_rollout_log(folder.path(), "")
      .write(10, std::vector{rollout}, std::vector<int64_t>{0, 3}, std::vector{0.1, -1.5, 2.0});
  const auto lines = lines_of(folder.path() / "rollouts.jsonl");
  REQUIRE(lines.size() == 1);
  const nlohmann::json& line = lines[0];
  CHECK(line.at("step") == 10);
  CHECK(line.at("logged_in_term") == 5);
  CHECK(line.at("rollout_id") == rollout.rollout_id);
  CHECK(line.at("group_id") == rollout.group_id);
  CHECK(line.at("sample_index") == rollout.sample_index);
  CHECK(line.at("attempt") == rollout.attempt);
  CHECK(line.at("prompt_ids").get<std::vector<int64_t>>() == rollout.prompt_ids);
  CHECK(line.at("completion_ids").get<std::vector<int64_t>>() == rollout.completion_ids);
  CHECK(line.at("logprobs").get<std::vector<float>>() == rollout.logprobs);
  CHECK(line.at("advantages").get<std::vector<double>>() == std::vector{0.1, -1.5, 2.0});
  CHECK(line.at("temperature").get<float>() == rollout.temperature);
  CHECK(line.at("versions") ==
        nlohmann::json::parse(
            R"([{"version":8,"begin":0,"end":1},{"version":9,"begin":1,"end":3}])"));
  CHECK(line.at("trainer_term") == rollout.trainer_term);
  CHECK(line.at("finish_reason") == "length");
  CHECK(line.at("rewards") == nlohmann::json::parse(R"([["exact_match",1.0],["length",-0.25]])"));
}

TEST_CASE("a logged rollout with images says which, and is not read back without their pixels") {
  const test::TemporaryDirectory folder;
  bridge::Rollout rollout = make_rollout(0);
  rollout.images = {{std::string(32, 'a'), 8, 16, 1, 3}};
  rollout.loss_mask = {1, 0, 0};
  const fs::path path = folder.path() / "rollouts.jsonl";
  write_plain(RolloutLog(path, 1), 1, {rollout});
  const nlohmann::json image = lines_of(path).at(0)["images"].at(0);
  CHECK(image["hash"] == std::string(32, 'a'));
  CHECK(image["begin"] == 1);
  CHECK(image["end"] == 3);
  CHECK(image["height"] == 8);
  CHECK(image["width"] == 16);
  CHECK_THROWS_WITH(read_rollout_file(path, 1), Catch::Contains("rollouts.jsonl:1: ") &&
                                                    Catch::Contains("whose pixels are in no file"));
}

TEST_CASE("logged routes read back, and a file's routes must be whole") {
  const test::TemporaryDirectory folder;
  const fs::path path = folder.path() / "rollouts.jsonl";
  bridge::Rollout rollout = make_rollout(1);
  rollout.group_size = 1;
  const std::size_t rows = rollout.prompt_ids.size() + rollout.completion_ids.size() - 1;
  for (const int32_t bytes : {1, 2}) {
    rollout.routed_experts = {{0, 3}, 2, bytes, {}};
    for (std::size_t i = 0; i < rows * 4 * static_cast<std::size_t>(bytes); ++i) {
      rollout.routed_experts.ids.push_back(static_cast<uint8_t>(bytes == 1 ? i : i / 2));
    }
    fs::remove(path);
    write_plain(RolloutLog(path, 0), 1, {rollout});
    CHECK(read_rollout_file(path, 1)[0].routed_experts == rollout.routed_experts);
  }
  nlohmann::json line = lines_of(path)[0];
  const auto expect = [&](const std::string& field, const nlohmann::json& value,
                          const std::string& message) {
    nlohmann::json changed = line;
    changed["routed_experts"][field] = value;
    test::write_file(path, changed.dump() + "\n");
    CHECK_THROWS_WITH(read_rollout_file(path, 1),
                      Catch::Contains("rollouts.jsonl:1: ") && Catch::Contains(message));
  };
  expect("ids", "AAEC", "routed_experts has 3 bytes");
  expect("ids", "AA=C", "is no base64");
  expect("layers", "x", "expected a list of layers with experts");
  expect("per_token", nullptr, "expected an integer");
  line["routed_experts"] = {1, 2};
  test::write_file(path, line.dump() + "\n");
  CHECK_THROWS_WITH(read_rollout_file(path, 1), Catch::Contains("expected an object of layers"));
}

TEST_CASE("advantages stand at the tokens that carry loss") {
  const test::TemporaryDirectory folder;
  bridge::Rollout masked = make_rollout(0), left_out = make_rollout(1), whole = make_rollout(2);
  masked.loss_mask = {1, 0, 1};
  left_out.loss_mask = {1, 0, 1};  // and yet not trained on, as one that failed
  RolloutLog log(folder.path() / "rollouts.jsonl", 1);
  const std::vector rollouts{masked, left_out, whole};
  log.write(1, rollouts, std::vector<int64_t>{0, 2, 2, 5}, std::vector{1.0, 2.0, 3.0, 4.0, 5.0});
  const auto lines = lines_of(folder.path() / "rollouts.jsonl");
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].at("advantages") == nlohmann::json::parse("[1.0, null, 2.0]"));
  CHECK(lines[1].at("advantages") == nlohmann::json::parse("[null, null, null]"));
  CHECK(lines[2].at("advantages") == nlohmann::json::parse("[3.0, 4.0, 5.0]"));
  CHECK_THROWS_WITH(
      log.write(2, std::vector{masked}, std::vector<int64_t>{0, 3}, std::vector{1.0, 2.0, 3.0}),
      Catch::Contains("rollout 7/0: 3 advantages for 2 loss tokens"));
  CHECK_THROWS_WITH(
      log.write(2, std::vector{masked}, std::vector<int64_t>{0, 2}, std::vector{1.0, 2.0, 3.0}),
      Catch::Contains("3 advantages in 2 - 1 ranges for 1 rollouts"));
  CHECK(lines_of(folder.path() / "rollouts.jsonl").size() == 3);
}

TEST_CASE("a restart appends behind the last whole line") {
  const test::TemporaryDirectory folder;
  const fs::path path = folder.path() / "rollouts.jsonl";
  write_plain(RolloutLog(path, 1), 3, {make_rollout(0), make_rollout(1)});
  const std::string torn_tail(GENERATE(0, 1, 65536, 200000),
                              'x');  // below, at and above what is read at a time
  std::ofstream(path, std::ios::app) << torn_tail;
  write_plain(RolloutLog(path, 2), 3, {make_rollout(0)});
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].at("logged_in_term") == 1);
  CHECK(lines[1].at("sample_index") == 1);
  CHECK(lines[2].at("logged_in_term") == 2);
}

TEST_CASE("a file without a whole line is emptied, and a run without a bridge has no epoch") {
  const test::TemporaryDirectory folder;
  std::ofstream(folder.path() / "rollouts.jsonl") << "{\"step\": 1";
  write_plain(open_rollout_log(folder.path(), ""), 1, {make_rollout(0)});
  const auto lines = lines_of(folder.path() / "rollouts.jsonl");
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].at("logged_in_term") == -1);
}

TEST_CASE("with a tokenizer a line holds prompt and completion as texts, special tokens included") {
  const test::TemporaryDirectory folder;
  std::ofstream(folder.path() / "tokenizer.json") << test::letter_tokenizer();
  bridge::Rollout rollout = make_rollout(0);
  rollout.prompt_ids = {3, 4};
  rollout.completion_ids = {5, 6, 1};
  {
    RolloutLog log = open_rollout_log(folder.path(), folder.path());
    log.write(1, std::vector{rollout}, std::vector<int64_t>{0, 0}, {});
  }
  const auto lines = lines_of(folder.path() / "rollouts.jsonl");
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].at("prompt") == "bc");
  CHECK(lines[0].at("completion") == "de;");
  write_plain(open_rollout_log(folder.path(), "no such model"), 2, {rollout});
  CHECK(lines_of(folder.path() / "rollouts.jsonl").at(1).at("prompt").is_null());
}

TEST_CASE("the lowest and the highest in turn, the first among equals") {
  using Picked = std::vector<std::size_t>;
  const std::vector<double> score{0, 1, 0, 1, 0.5};
  CHECK(lowest_and_highest(score, 0).empty());
  CHECK(lowest_and_highest(score, 1) == Picked{0});
  CHECK(lowest_and_highest(score, 2) == Picked{0, 1});
  CHECK(lowest_and_highest(score, 4) == Picked{0, 1, 2, 3});
  CHECK(lowest_and_highest(score, 9) == Picked{0, 1, 2, 3, 4});
  CHECK(lowest_and_highest({}, 3).empty());
}

TEST_CASE("a sample's figures stand at its loss tokens, and long completions are cut") {
  const test::TemporaryDirectory folder;
  SampleLog log(folder.path() / "samples.jsonl", 3, std::nullopt);
  bridge::Rollout masked = make_rollout(0), longer = make_rollout(1);
  masked.loss_mask = {1, 0, 1};
  const std::vector<double> advantage{1.0, 2.0}, old_logprob{-0.5, -1.0}, next{-0.25, -2.0};
  longer.completion_ids.assign(SampleLog::kMaxTokens + 5, 9);
  longer.logprobs.assign(SampleLog::kMaxTokens + 5, -1.0F);
  const std::vector<LoggedSample> samples{{&masked, "72", 0.75, advantage, old_logprob, next},
                                          {&longer, "", 0.0}};
  log.write(4, samples);
  const auto lines = lines_of(folder.path() / "samples.jsonl");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("step") == 4);
  CHECK(lines[0].at("reward") == 0.75);
  CHECK(lines[0].at("rewards").size() == 2);
  CHECK(lines[0].at("answer") == "72");
  CHECK(lines[1].at("answer").is_null());
  CHECK(lines[0].at("tokens") == nlohmann::json::parse(R"(["5", "6", "7"])"));
  CHECK(lines[0].at("advantages") == nlohmann::json::parse("[1.0, null, 2.0]"));
  CHECK(lines[0].at("old_logprobs") == nlohmann::json::parse("[-0.5, null, -1.0]"));
  CHECK(lines[0].at("new_logprobs") == nlohmann::json::parse("[-0.25, null, -2.0]"));
  CHECK(lines[1].at("length") == SampleLog::kMaxTokens + 5);
  CHECK(lines[1].at("tokens").size() == SampleLog::kMaxTokens);
  CHECK(lines[1].at("logprobs").size() == SampleLog::kMaxTokens);
  CHECK_FALSE(lines[1].contains("advantages"));
}

TEST_CASE("a sample's images stand beside its prompt, in which each is one word") {
  const test::TemporaryDirectory folder;
  test::write_file(folder.path() / "tokenizer.json", test::letter_tokenizer());
  const int64_t placeholder = 1;  // ";"
  SampleLog log(folder.path() / "samples.jsonl", 3,
                engine::Tokenizer::load(folder.path() / "tokenizer.json"), placeholder);
  bridge::Rollout pictured = make_rollout(0), plain = make_rollout(1);
  pictured.prompt_ids = {2, 1, 1, 1, 3, 1, 1, 4, 1};
  std::vector<LoggedSample> samples{{&pictured}, {&plain}};
  samples[0].images = {{"a.png", "data:image/jpeg;base64,AA=="}};
  log.write(1, samples);
  const auto lines = lines_of(folder.path() / "samples.jsonl");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("prompt") == "a; x 3b; x 2c;");
  CHECK(lines[0].at("images") ==
        nlohmann::json::parse(R"([{"name": "a.png", "uri": "data:image/jpeg;base64,AA=="}])"));
  CHECK_FALSE(lines[1].contains("images"));
}

TEST_CASE("a logged image is a JPEG of at most 224 pixels a side") {
  if (!engine::can_decode_images()) {
    SUCCEED("built without the libraries for images");
    return;
  }
  const auto logged = [](int64_t height, int64_t width) {
    engine::RgbImage image{height, width, std::vector<uint8_t>(height * width * 3, 90)};
    image.rgb[0] = 200;
    const std::string uri = image_uri(image);
    const std::string head = "data:image/jpeg;base64,";
    REQUIRE(uri.starts_with(head));
    const auto bytes = bridge::from_base64(uri.substr(head.size()));
    REQUIRE(bytes);
    CHECK(bytes->size() < 4096);
    engine::ImageLimits limits;
    limits.side_ratio = 1000;
    return engine::decode_image(*bytes, limits);
  };
  const engine::RgbImage large = logged(448, 100);
  CHECK(engine::ImageSize{large.height, large.width} == engine::ImageSize{224, 50});
  CHECK(std::abs(large.rgb[3 * 224 * 25] - 90) <= 2);
  const engine::RgbImage small = logged(20, 30), thin = logged(1000, 2);
  CHECK(engine::ImageSize{small.height, small.width} == engine::ImageSize{20, 30});
  CHECK(engine::ImageSize{thin.height, thin.width} == engine::ImageSize{224, 1});
}

}  // namespace
}  // namespace ringside::rl
