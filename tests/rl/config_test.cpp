// Guards configuration loading: precedence of defaults, presets, files and the command line, and
// that every mistake is reported, with its place, in one go. A key that is silently dropped or read
// with the wrong precedence trains the wrong thing for days.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "rl/config/environment_choice.h"
#include "rl/config/load.h"
#include "rl/config/presets.h"
#include "rl/config/schema.h"
#include "rl/config/stop_texts.h"
#include "rl/config/unread_keys.h"
#include "tests/rl/config_text.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// Every key with the value that `config` holds for it.
std::vector<std::string> values_of(Config config) {
  std::vector<std::string> lines;
  for (const Field& field : fields_of(config)) {
    lines.push_back(field.key + "=" + value_text(field.slot));
  }
  return lines;
}

TEST_CASE("configs/defaults.yaml is what the table prints, and reads back to the defaults") {
  const fs::path file = fs::path(RINGSIDE_SOURCE_DIR) / "configs/defaults.yaml";
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  // `ringside check --defaults > configs/defaults.yaml` writes it.
  CHECK(text == defaults_yaml());
  const LoadedConfig loaded = load_config({file}, {});
  CHECK(loaded.errors == std::vector<std::string>{});
  CHECK(values_of(loaded.config) == values_of(Config{}));
  CHECK(values_of(load_config({}, {}).config) == values_of(Config{}));
  // A key that is missing from the file would go unseen above.
  for (const auto& key : known_keys()) {
    INFO(key);
    CHECK_THAT(loaded.origins.at(key), Contains("defaults.yaml"));
    CHECK(load_config({}, {}).origins.at(key) == "default");
  }
}

TEST_CASE("a resumed run may change how and where it trains, and nothing of what it learns") {
  Config config;
  std::vector<std::string> free;
  for (const Field& field : fields_of(config)) {
    if (field.may_change_on_resume) {
      free.push_back(field.key);
    }
  }
  const auto may = [&](const char* key) { return std::count(free.begin(), free.end(), key) == 1; };
  CHECK(free.size() == 103);
  for (const char* key : {"train.steps", "train.threads", "parallel.zero_stage", "sp.placement",
                          "bridge.curve.worker_secret", "weights.keep", "eval.sets", "data.eval",
                          "rollout.server", "rollout.server_options.url", "model.recompute"}) {
    INFO(key);
    CHECK(may(key));
  }
  for (const char* key : {"seed", "model.path", "rollout.group_size", "rollout.reward",
                          "algorithm.loss", "optimizer.learning_rate", "lora.rank", "data.train",
                          "train.batch_size", "train.num_mini_batches"}) {
    INFO(key);
    CHECK_FALSE(may(key));
  }
}

TEST_CASE("defaults < files from left to right < command line, merged deeply") {
  const TempDir dir;
  const auto first = dir.write("a.yaml", "optimizer:\n  learning_rate: 1e-4\n  warmup_steps: 5\n");
  const auto second = dir.write("b.yaml", "optimizer:\n  learning_rate: 2e-4\nseed: 9\n");
  const LoadedConfig loaded = load_config({first, second}, {"seed=11"});
  REQUIRE(joined(loaded.errors) == "");
  CHECK(loaded.config.optimizer.learning_rate == 2e-4);
  CHECK(loaded.config.optimizer.warmup_steps == 5);
  CHECK(loaded.config.seed == 11);
  CHECK(loaded.origins.at("optimizer.learning_rate") == second.string() + ":2");
  CHECK(loaded.origins.at("optimizer.warmup_steps") == first.string() + ":3");
  CHECK(loaded.origins.at("seed") == "command line");
  CHECK(loaded.origins.at("optimizer.beta1") == "default");
  CHECK(load_config({second, first}, {}).config.optimizer.learning_rate == 1e-4);
}

TEST_CASE("a preset lies above the defaults and below anything written") {
  const LoadedConfig plain = load_text("algorithm: {preset: grpo}\n");
  REQUIRE(joined(plain.errors) == "");
  CHECK(plain.config.algorithm.kl_coef == 0.04);
  CHECK(plain.config.algorithm.loss_aggregation == LossAggregation::kSeqMeanTokenMean);
  CHECK(plain.origins.at("algorithm.kl_coef") == "preset grpo");

  const LoadedConfig written = load_text("algorithm: {kl_coef: 0.5, preset: grpo}\n");
  CHECK(written.config.algorithm.kl_coef == 0.5);
  const LoadedConfig swapped = load_text("algorithm: {preset: grpo}\n", {"algorithm.preset=trl"});
  CHECK(swapped.config.algorithm.preset == "trl");
  CHECK(swapped.config.algorithm.kl_coef == 0.0);
  CHECK(swapped.config.algorithm.loss_aggregation == LossAggregation::kTokenMean);
  CHECK(swapped.config.optimizer.lr_schedule == LrDecay::kLinear);
}

TEST_CASE("every preset writes known keys with valid values") {
  for (const auto name : preset_names()) {
    INFO(name);
    const auto loaded = load_config({}, {"algorithm.preset=" + std::string(name)});
    CHECK(joined(loaded.errors) == "");
    for (const auto& value : preset_values(name)) {
      CHECK(loaded.origins.count(std::string(value.key)) == 1);
    }
  }
  CHECK(preset_names().front() == "none");
  CHECK_THROWS_AS(preset_values("grop"), std::invalid_argument);
}

TEST_CASE("all mistakes of a file are reported together, each with its place") {
  const LoadedConfig loaded = load_text(
      "seed: 1\n"
      "rollout:\n"
      "  group_size: -1\n"
      "  temperature: warm\n"
      "  group_size: 8\n"
      "optimizer:\n"
      "  lr_schedule: cosinus\n"
      "  learning_rat: 1e-4\n"
      "train: 5\n"
      "algorithm:\n"
      "  advantage:\n"
      "    unbiased: maybe\n"
      "  clip_low: [0.1, 0.2]\n"
      "  clip_high:\n",
      {"log.level=loud", "seed", "train=3", "num_generations=4"});
  const std::string errors = joined(loaded.errors);
  CHECK_THAT(errors,
             Contains("recipe.yaml:3:3: rollout.group_size: is \"-1\", expected at least 1"));
  CHECK_THAT(errors,
             Contains("recipe.yaml:4:3: rollout.temperature: is \"warm\", expected a number"));
  CHECK_THAT(errors, Contains("recipe.yaml:5:3: rollout.group_size: duplicate key; it is already "
                              "set on line 3"));
  CHECK_THAT(errors,
             Contains("recipe.yaml:7:3: optimizer.lr_schedule: is \"cosinus\", expected one "
                      "of constant, linear, cosine"));
  CHECK_THAT(errors, Contains("recipe.yaml:8:3: optimizer.learning_rat: unknown key; did you mean "
                              "optimizer.learning_rate?"));
  CHECK_THAT(errors, Contains("recipe.yaml:9:1: train: is a section"));
  CHECK_THAT(errors,
             Contains("recipe.yaml:12:5: algorithm.advantage.unbiased: is \"maybe\", expected "
                      "true or false"));
  CHECK_THAT(errors, Contains("recipe.yaml:13:3: algorithm.clip_low: is a list"));
  CHECK_THAT(errors, Contains("recipe.yaml:14:3: algorithm.clip_high: has no value"));
  CHECK_THAT(errors, Contains("command line: log.level: is \"loud\", expected one of debug"));
  CHECK_THAT(errors, Contains("command line: seed: expected key.sub=value"));
  CHECK_THAT(errors, Contains("command line: train: is a section"));
  CHECK_THAT(errors, Contains("command line: num_generations: unknown key"));
  CHECK_THAT(errors, Contains("rollout.group_size"));
  CHECK(loaded.errors.size() == 13);
}

TEST_CASE("values are checked at their type's edges") {
  const auto fails = [](const std::string& assignment) {
    return !load_config({}, {assignment}).ok();
  };
  CHECK(fails("seed=1e3"));
  CHECK(fails("seed=1_000"));
  CHECK(fails("seed=99999999999999999999"));
  CHECK(fails("seed="));
  CHECK(fails("optimizer.learning_rate=nan"));
  CHECK(fails("optimizer.learning_rate=inf"));
  CHECK(fails("optimizer.beta1=1"));
  CHECK_FALSE(fails("optimizer.beta1=0"));
  CHECK(fails("rollout.top_p=0"));
  CHECK_FALSE(fails("rollout.top_p=1"));
  CHECK(fails("data.shuffle=yes"));
  CHECK_THAT(joined(load_config({}, {"bridge.assignment_timeout_s=0"}).errors),
             Contains("expected at least 0.001 and at most 1000000000"));
  CHECK(
      load_config({}, {"rollout.reward=length, python(~/my.py:score) * 2"}).config.rollout.reward ==
      "length, python(" + std::string(std::getenv("HOME")) + "/my.py:score) * 2");
  CHECK_THAT(joined(load_config({}, {"rollout.reward=python(~other/my.py:score)"}).errors),
             Contains("rollout.reward") && Contains("home directory is not known"));
  CHECK(load_config({}, {"rollout.stop=a=b: c"}).config.rollout.stop == "a=b: c");
}

TEST_CASE("rollout.stop is one text, or a list of them in a file and on the command line") {
  using Texts = std::vector<std::string>;
  const auto stops = [](const std::string& yaml) {
    const LoadedConfig loaded = load_text(yaml);
    CHECK(joined(loaded.errors) == "");
    CHECK(values_of(load_text(dump(loaded.config)).config) == values_of(loaded.config));
    return stop_texts(loaded.config.rollout.stop);
  };
  CHECK(stops("rollout: {stop: \"\"}").empty());
  CHECK(stops("rollout: {stop: \"###\"}") == Texts{"###"});
  CHECK(stops("rollout: {stop: [\"\\n\", \"###\", 5]}") == Texts{"\n", "###", "5"});
  CHECK(stops("rollout: {stop: \"[\"}") == Texts{"["});
  CHECK(stops("rollout: {stop: \"[x]\"}") == Texts{"[x]"});
  CHECK(stop_texts(load_config({}, {R"(rollout.stop=["a", "b"])"}).config.rollout.stop) ==
        Texts{"a", "b"});
  for (const char* wrong : {"[]", "[[\"a\"]]", "[\"a\", \"\"]", "[\"a\", {b: c}]"}) {
    INFO(wrong);
    CHECK_THAT(joined(load_text(std::string("rollout: {stop: ") + wrong + "}").errors),
               Contains("rollout.stop") && Contains("expected one text, or a list of texts"));
  }
}

TEST_CASE("rollout.environment names a class of a file or a package, and excludes a harness") {
  const auto error = [](std::vector<std::string> words) {
    words.emplace_back("rollout.reward=worker");
    return joined(load_config({}, words).errors);
  };
  const EnvironmentChoice own = parse_environment("python(/a/b.py:Game)");
  CHECK(own.file == "/a/b.py");
  CHECK(own.argument == "Game");
  const EnvironmentChoice packaged = parse_environment("openenv(http://127.0.0.1:8000)");
  CHECK(packaged.connector == "openenv");
  CHECK(packaged.file.empty());
  CHECK(packaged.argument == "http://127.0.0.1:8000");
  CHECK(error({"rollout.environment=reasoning_gym(chain_sum)"}) == "");
  for (const char* wrong : {"chess", "chess(a)", "python(a.py)", "python(:A)", "python(a.py:)",
                            "reasoning_gym()", "reasoning_gym(a"}) {
    INFO(wrong);
    CHECK_THAT(error({std::string("rollout.environment=") + wrong}),
               Contains("expected python(FILE.py:CLASS), openenv(...), reasoning_gym(...), "
                        "textarena(...), verifiers(...), or nothing"));
  }
  const std::string game = "rollout.environment=textarena(Nim-v0)";
  CHECK_THAT(error({game, "rollout.harness=external"}), Contains("expected one of the two"));
  CHECK_THAT(error({game, "rollout.environment_options=[1]"}), Contains("expected a JSON object"));
  CHECK_THAT(joined(load_config({}, {game}).errors),
             Contains("rollout.reward") && Contains("with rollout.environment"));
  CHECK_THAT(joined(load_config({}, {R"(rollout.environment_options={"a": 1})"}).errors),
             Contains("rollout.environment is empty"));
}

TEST_CASE("every preset is a set of known keys with valid values, and each changes something") {
  for (const std::string_view name : preset_names()) {
    CAPTURE(std::string(name));
    const LoadedConfig loaded = load_config({}, {"algorithm.preset=" + std::string(name)});
    CHECK(joined(loaded.errors) == "");
    Config plain;
    plain.algorithm.preset = name;
    CHECK((name == "none" || values_of(loaded.config) != values_of(plain)));
  }
  CHECK(preset_names().size() == 27);
}

TEST_CASE("keys that are not read are reset to their defaults") {
  Config config;
  config.algorithm.task = Task::kSft;
  config.rollout.group_size = 3;
  config.rollout.reward = "math_answer";
  config.rollout.server = RolloutServer::kVllm;
  config.train.batch_size = 5;
  reset_unread_keys(config);
  CHECK(config.rollout.group_size == RolloutConfig{}.group_size);
  CHECK(config.rollout.reward == RolloutConfig{}.reward);
  CHECK(config.rollout.server == RolloutServer::kEmbedded);
  CHECK(config.train.batch_size == 5);
  CHECK(config.algorithm.task == Task::kSft);
}

TEST_CASE("in every section the keys that are set often come first, its sections last") {
  Config config;
  const auto fields = fields_of(config);
  int often = 0;
  std::string before;  // the section of the row before
  bool was_often = false;
  for (const Field& field : fields) {
    const auto dot = field.key.rfind('.');
    const std::string section = dot == std::string::npos ? "" : field.key.substr(0, dot);
    CAPTURE(field.key);
    CHECK((section != before || was_often || !field.often_set));
    CHECK_FALSE(before.starts_with(section + "."));
    often += field.often_set;
    before = section;
    was_often = field.often_set;
  }
  CHECK(often >= 50);
  CHECK(often <= 70);
}

TEST_CASE("a file that cannot be used is an error, not an exception") {
  const TempDir dir;
  CHECK_THAT(joined(load_config({dir.path() / "absent.yaml"}, {}).errors),
             Contains("absent.yaml: cannot be read"));
  CHECK_THAT(joined(load_config({dir.path()}, {}).errors), Contains("cannot be read"));
  CHECK_THAT(joined(load_text("a: [1, 2\n").errors), Contains("not valid YAML"));
  CHECK_THAT(joined(load_text("- 1\n").errors), Contains("not a mapping"));
  CHECK_THAT(joined(load_text("seed: 1\n---\nseed: 2\n").errors), Contains("2 YAML documents"));
  CHECK(load_text("").ok());
  CHECK(load_text("model:\n  # path: x\n").ok());
  CHECK_THROWS_WITH(load_config_or_throw({}, {"seed=x", "log.level=y"}),
                    Contains("seed") && Contains("\n") && Contains("log.level"));
}

TEST_CASE("paths of a recipe are relative to its folder, of the command line to the working one") {
  const TempDir dir;
  const auto recipe = dir.write("recipes/sort/recipe.yaml",
                                "model: {path: ../../model}\ndata: {train: train.jsonl}\n");
  const LoadedConfig loaded = load_config({recipe}, {"data.eval=eval.jsonl"});
  CHECK(loaded.config.model.path == (dir.path() / "model").string());
  CHECK(loaded.config.data.train == (dir.path() / "recipes/sort/train.jsonl").string());
  CHECK(loaded.config.data.eval == (fs::current_path() / "eval.jsonl").string());
  CHECK(loaded.config.model.reference_path == "");
}

TEST_CASE("dump reads back to the same configuration") {
  const std::string texts[] = {"",     "plain", "null", "~",         "true", "1e-6",
                               "a: b", "# x",   "\n\n", "\"q\" 'r'", " s ",  "- t"};
  for (const auto& text : texts) {
    Config config;
    config.seed = 123456789012345;
    config.optimizer.learning_rate = 0.1 + 0.2;
    config.optimizer.eps = 1e-300;
    config.rollout.temperature = 3;
    config.rollout.stop = text;
    config.algorithm.loss_aggregation = LossAggregation::kSeqMeanTokenSum;
    INFO(dump(config));
    const LoadedConfig loaded = load_text(dump(config));
    CHECK(joined(loaded.errors) == "");
    CHECK(values_of(loaded.config) == values_of(config));
  }
}

}  // namespace
}  // namespace ringside::rl
