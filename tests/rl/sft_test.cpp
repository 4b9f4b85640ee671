// Guards: a run of several passes over the data that ends elsewhere after a stop, a document that
// is learned twice or not at all, and an evaluation that depends on the layout of ranks. Oracle:
// the same run without the stop; the log-probs of each document by themselves.
#include "rl/trainer/sft.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/io/hf_directory.h"
#include "engine/nn/attention_backend.h"
#include "rl/checkpoint/checkpoint_reader.h"
#include "rl/config/load.h"
#include "rl/data/sft_file.h"
#include "tests/support/catch.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/local_attention.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

using namespace ringside;
namespace fs = std::filesystem;

namespace {

const fs::path kGoldens = fs::path(RINGSIDE_GOLDENS) / "regression";

// A model with a tokenizer, and documents of different lengths.
class Files {
 public:
  Files() {
    fs::copy(kGoldens / "policy", path("model"), fs::copy_options::recursive);
    test::write_file(path("model/tokenizer.json"), test::letter_tokenizer());
    write_documents("train.jsonl", 11, "abcdefghijklmn");
    write_documents("held_out.jsonl", 7, "zyxwvutsr");
  }
  fs::path path(const std::string& name) const { return directory_.path() / name; }

  rl::Config config(const std::vector<std::string>& words) const {
    std::vector<std::string> all{"model.path=" + path("model").string(),
                                 "model.dtype=float64",
                                 "algorithm.task=sft",
                                 "data.sft=" + path("train.jsonl").string(),
                                 "train.batch_size=4",
                                 "train.tokens_per_micro_batch=32",
                                 "optimizer.learning_rate=0.01",
                                 "log.progress=lines"};
    all.insert(all.end(), words.begin(), words.end());
    rl::Config config = rl::load_config_or_throw({}, all);
    if (config.train.epochs > 0) {
      config.train.steps = rl::steps_of_epochs(config);
    }
    return config;
  }

 private:
  void write_documents(const std::string& name, int count, const std::string& letters) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const std::string prompt = letters.substr(0, 1 + i % 5);
      const std::string completion = letters.substr(i % 4, 1 + i % 7);
      text += nlohmann::json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
    }
    test::write_file(path(name), text);
  }
  test::TemporaryDirectory directory_;
};

void train(const rl::Config& config, const fs::path& run_dir, int64_t steps,
           sp::MeshShape shape = {1, 1, 1}) {
  test::run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    rl::TrainingRun run({config, run_dir, steps, {}}, mesh, comms);
    rl::train_sft(run);
  });
}

std::vector<nlohmann::json> metrics_of(const fs::path& run_dir) {
  std::vector<nlohmann::json> steps;
  std::ifstream file(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    steps.push_back(nlohmann::json::parse(line));
  }
  return steps;
}

// Without the line of step 0, the evaluation before training, which must be there.
std::vector<nlohmann::json> steps_after_first_evaluation(const fs::path& run_dir) {
  auto steps = metrics_of(run_dir);
  REQUIRE(steps.size() > 1);
  CHECK(steps[0].at("step") == 0);
  CHECK(steps[0].at("eval_loss").get<double>() > 0.0);
  steps.erase(steps.begin());
  return steps;
}

}  // namespace

TEST_CASE("a run of several passes goes on inside a pass as if it had not been stopped") {
  const Files files;
  const auto config = files.config({"train.epochs=3", "checkpoint.every=1", "checkpoint.keep=0"});
  REQUIRE(config.train.steps == 9);  // 33 documents in steps of 4
  const test::TemporaryDirectory whole;
  train(config, whole.path(), 9);
  const auto expected = metrics_of(whole.path());
  REQUIRE(expected.size() == 9);
  CHECK(expected[8].at("sft/documents") == 1);
  double documents = 0;
  for (const auto& step : expected) {
    documents += step.at("sft/documents").get<double>();
  }
  CHECK(documents == 33);
  for (const int64_t stop : {1, 4, 8}) {
    const test::TemporaryDirectory stopped;
    train(config, stopped.path(), stop);
    train(config, stopped.path(), 9);
    CHECK(test::read_file(stopped.path() / "checkpoint-final/model.safetensors") ==
          test::read_file(whole.path() / "checkpoint-final/model.safetensors"));
    CHECK(metrics_of(stopped.path()).back().at("loss") == expected.back().at("loss"));
  }
}

TEST_CASE("documents that are left out make steps smaller, down to steps of none") {
  const Files files;
  const auto config = files.config(
      {"train.epochs=1", "data.max_length=3", "data.on_overlong=drop", "train.batch_size=2"});
  const test::TemporaryDirectory dir;
  train(config, dir.path(), config.train.steps);
  double documents = 0, overlong = 0;
  bool none = false;
  for (const auto& step : metrics_of(dir.path())) {
    documents += step.at("sft/documents").get<double>();
    overlong += step.at("sft/overlong").get<double>();
    none = none || step.at("sft/documents") == 0;
  }
  CHECK(documents > 0);
  CHECK(documents + overlong == 11);
  CHECK(none);
}

TEST_CASE("the loss on held-out documents is that of each document, at every layout of ranks") {
  const Files files;
  const auto config = files.config({"data.sft_eval=" + files.path("held_out.jsonl").string(),
                                    "eval.every=2", "train.steps=4", "checkpoint.every=2"});
  const test::TemporaryDirectory alone;
  train(config, alone.path(), 4);
  const auto expected = steps_after_first_evaluation(alone.path());
  CHECK_FALSE(expected[0].contains("eval_loss"));
  // By hand, from the final weights: one document after another, without packing.
  const auto tokenizer = engine::Tokenizer::load(files.path("model") / "tokenizer.json");
  rl::SftFile file(files.path("held_out.jsonl"), config, tokenizer, {1});
  const auto decoder = engine::load_decoder(alone.path() / "checkpoint-final", at::kDouble);
  double sum = 0;
  int64_t tokens = 0;
  for (int64_t i = 0; i < file.size(); ++i) {
    const auto document = rl::make_sft_document(*file.read(i).example);
    const at::NoGradGuard no_grad;
    test::LocalAttention attention({static_cast<int64_t>(document.ids.size())});
    const auto ids = at::tensor(document.ids, at::kLong);
    const auto hidden = decoder.forward(ids, at::arange(ids.numel()), attention);
    const auto logits = test::logits_of(
        decoder, hidden.index_select(0, at::tensor(document.entries.source, at::kLong)));
    const auto logprobs = logits.log_softmax(-1).gather(
        1, at::tensor(document.entries.target, at::kLong).unsqueeze(1));
    sum -= logprobs.sum().item<double>();
    tokens += logprobs.numel();
  }
  CHECK(expected[3].at("eval_loss").get<double>() ==
        Approx(sum / static_cast<double>(tokens)).epsilon(1e-10));
  for (const sp::MeshShape& shape :
       std::vector<sp::MeshShape>{{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}}) {
    CAPTURE(shape.dp_replicate, shape.ring, shape.ulysses);
    const test::TemporaryDirectory dir;
    train(config, dir.path(), 4, shape);
    const auto steps = steps_after_first_evaluation(dir.path());
    for (const int step : {1, 3}) {
      CHECK(steps[step].at("eval_loss").get<double>() ==
            Approx(expected[step].at("eval_loss").get<double>()).epsilon(1e-10));
    }
  }
  const rl::CheckpointReader saved(rl::checkpoint_path(alone.path(), 4));
  REQUIRE(saved.manifest().evaluation.has_value());
  CHECK(saved.manifest().evaluation->metric == "eval_loss");
  CHECK(saved.manifest().evaluation->value == expected[3].at("eval_loss").get<double>());
}

TEST_CASE("the checkpoint with the lowest held-out loss is saved and kept") {
  const Files files;
  // At this rate the loss falls and then rises.
  const auto config =
      files.config({"data.sft_eval=" + files.path("held_out.jsonl").string(), "eval.every=1",
                    "train.steps=12", "optimizer.learning_rate=0.05", "checkpoint.keep=1",
                    "checkpoint.keep_best=true", "checkpoint.every_minutes=0"});
  const test::TemporaryDirectory dir;
  train(config, dir.path(), 5);
  train(config, dir.path(), 12);  // what the earlier start found is not forgotten
  int64_t best = 0;
  double lowest = 1e9;
  for (const auto& step : metrics_of(dir.path())) {
    if (step.at("eval_loss").get<double>() < lowest) {
      lowest = step.at("eval_loss").get<double>();
      best = step.at("step").get<int64_t>();
    }
  }
  CHECK(best < 12);
  REQUIRE(rl::best_checkpoint(dir.path(), "eval_loss").has_value());
  CHECK(rl::best_checkpoint(dir.path(), "eval_loss")->dir == rl::checkpoint_path(dir.path(), best));
  CHECK(rl::latest_checkpoint(dir.path()) == rl::checkpoint_path(dir.path(), 12));
}

TEST_CASE("each held-out set has its own loss, and the named one decides on the best checkpoint") {
  const Files files;
  const std::string held_out = files.path("held_out.jsonl").string();
  const std::string other = files.path("train.jsonl").string();
  const auto config = files.config({"data.sft_eval=" + held_out,
                                    "eval.sets={same: " + held_out + ", seen: " + other + "}",
                                    "eval.every=1", "train.steps=3", "checkpoint.every=1",
                                    "checkpoint.best_metric=eval/seen/loss"});
  const test::TemporaryDirectory dir;
  train(config, dir.path(), 3);
  for (const auto& step : metrics_of(dir.path())) {
    CHECK(step.at("eval/same/loss") == step.at("eval_loss"));
    CHECK(step.at("eval/seen/loss") != step.at("eval_loss"));
  }
  const auto evaluation =
      rl::CheckpointReader(rl::checkpoint_path(dir.path(), 3)).manifest().evaluation;
  REQUIRE(evaluation.has_value());
  CHECK(evaluation->metric == "eval/seen/loss");
  CHECK(evaluation->score() == -metrics_of(dir.path()).back().at("eval/seen/loss").get<double>());
}
