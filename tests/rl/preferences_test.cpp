// Guards: a gradient of pairs that depends on which rank or micro-batch has their documents, a
// reference that is not the one asked for, and a reward model that scores another token than the
// last. Oracle: each document by itself in fp64, with the losses written as tensors.
#include "rl/trainer/preferences.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/io/hf_directory.h"
#include "engine/io/safetensors.h"
#include "engine/io/value_model_files.h"
#include "rl/checkpoint/checkpoint_reader.h"
#include "rl/checkpoint/export.h"
#include "rl/config/load.h"
#include "rl/data/preference_file.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"
#include "rl/trainer/checkpoint.h"
#include "rl/trainer/preference_training.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/local_attention.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

using namespace ringside;
namespace fs = std::filesystem;

namespace {

const fs::path kRegression = fs::path(RINGSIDE_GOLDENS) / "regression";
using PairWords = std::vector<std::string>;

// A policy, a reference and a reward model, and pairs of different lengths.
class PairFiles {
 public:
  PairFiles() {
    for (const char* name : {"policy", "reference"}) {
      fs::copy(kRegression / name, path(name), fs::copy_options::recursive);
      test::write_file(path(name) / "tokenizer.json", test::letter_tokenizer());
    }
    write_reward_model();
    write_pairs("train.jsonl", 8, "abcdefghijklmnopqrst");
    write_pairs("held_out.jsonl", 5, "tsrqponmlkjihgfedcba");
  }
  fs::path path(const std::string& name) const { return directory_.path() / name; }

  rl::Config config(const std::string& task, const PairWords& words) const {
    const std::string model = task == "dpo" ? "policy" : "rewards";
    PairWords all{"model.path=" + path(model).string(),
                  "model.dtype=float64",
                  "algorithm.task=" + task,
                  "data.preferences=" + path("train.jsonl").string(),
                  "train.batch_size=8",
                  "train.tokens_per_micro_batch=24",
                  "optimizer.learning_rate=0.01",
                  "optimizer.max_grad_norm=0",
                  "checkpoint.every=1",
                  "checkpoint.keep=0",
                  "log.progress=lines"};
    if (task == "dpo") {
      all.push_back("model.reference_path=" + path("reference").string());
    }
    all.insert(all.end(), words.begin(), words.end());
    return rl::load_config_or_throw({}, all);
  }

  // The pairs of a file in its order.
  std::vector<rl::TokenizedPair> pairs(const rl::Config& config, const std::string& name) const {
    const auto tokenizer = engine::Tokenizer::load(path("policy") / "tokenizer.json");
    rl::PreferenceFile file(path(name).string(), config, tokenizer, {1});
    std::vector<rl::TokenizedPair> all;
    for (int64_t i = 0; i < file.size(); ++i) {
      all.push_back(*file.read(i).example);
    }
    return all;
  }

 private:
  // The policy's trunk with a head away from zero, which would hide the trunk.
  void write_reward_model() const {
    fs::copy(path("policy"), path("rewards"), fs::copy_options::recursive);
    std::vector<engine::TensorToWrite> tensors;
    {
      const engine::SafetensorsFile file(path("policy") / "model.safetensors");
      for (std::size_t i = 0; i < file.entries().size(); ++i) {
        const auto& entry = file.entries()[i];
        if (entry.name != "lm_head.weight") {
          tensors.push_back({entry.name, file.tensor(i).clone(), entry.dtype});
        }
      }
    }
    tensors.push_back({"score.weight",
                       at::arange(16, at::kFloat).add(1).sin().mul(0.4).view({1, 16}), at::kFloat});
    engine::write_safetensors(path("rewards") / "model.safetensors", tensors);
  }

  void write_pairs(const std::string& name, int count, const std::string& letters) const {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const std::string prompt = letters.substr(i, 2 + i % 4);
      text += nlohmann::json{{"prompt", prompt},
                             {"chosen", letters.substr(i % 5, 2 + 5 * i % 13)},
                             {"rejected", letters.substr(2 + i % 3, 1 + 7 * i % 11)}}
                  .dump() +
              "\n";
    }
    test::write_file(path(name), text);
  }
  test::TemporaryDirectory directory_;
};

void train_pairs(const rl::Config& config, const fs::path& run_dir, int64_t steps) {
  test::run_ranks_in_memory(
      rl::mesh_shape(config.parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        rl::TrainingRun run({config, run_dir, steps, {}}, mesh, comms);
        rl::train_preferences(run);
      },
      rl::sharding_axes(config.parallel));
}

std::vector<nlohmann::json> pair_metrics_of(const fs::path& run_dir) {
  std::vector<nlohmann::json> steps;
  std::ifstream file(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    steps.push_back(nlohmann::json::parse(line));
  }
  return steps;
}

// The hidden states of a document, with a gradient path to the decoder's units.
at::Tensor hidden_states(const engine::Decoder& decoder, const sp::Document& document) {
  test::LocalAttention attention({static_cast<int64_t>(document.ids.size())});
  const at::Tensor ids_s = at::tensor(document.ids, at::kLong);
  return decoder.forward(ids_s, at::arange(ids_s.numel()), attention)
      .index_select(0, at::tensor(document.entries.source, at::kLong));
}

// Log-probs of the completion's tokens.
at::Tensor logprobs_of(const engine::Decoder& decoder, const rl::TokenizedExample& example) {
  const sp::Document document = rl::make_sft_document(example);
  const at::Tensor hidden_nE = hidden_states(decoder, document);
  const at::Tensor target_n = at::tensor(document.entries.target, at::kLong);
  return decoder.score(hidden_nE, target_n, at::ones({target_n.numel()}, at::kDouble)).logprobs_n;
}

// The loss of the pairs, a differentiable scalar.
at::Tensor dense_dpo_loss(const engine::Decoder& policy, const engine::Decoder& reference,
                          const std::vector<rl::TokenizedPair>& pairs,
                          const rl::PreferenceConfig& config) {
  at::Tensor loss = at::zeros({}, at::kDouble), chosen_sum = at::zeros({}, at::kDouble);
  int64_t chosen_tokens = 0;
  const double beta = config.beta, e = config.label_smoothing;
  for (const rl::TokenizedPair& pair : pairs) {
    const at::Tensor chosen_n = logprobs_of(policy, pair.chosen);
    const at::Tensor rejected_n = logprobs_of(policy, pair.rejected);
    const at::Tensor of_chosen = (chosen_n - logprobs_of(reference, pair.chosen).detach());
    const at::Tensor of_rejected = (rejected_n - logprobs_of(reference, pair.rejected).detach());
    const at::Tensor margin = beta * (of_chosen.sum() - of_rejected.sum());
    switch (config.loss) {
      case rl::PreferenceLoss::kSigmoid:
        loss = loss - (1 - e) * at::log_sigmoid(margin) - e * at::log_sigmoid(-margin);
        break;
      case rl::PreferenceLoss::kHinge:
        loss = loss + at::relu(1 - margin);
        break;
      case rl::PreferenceLoss::kIpo:
        loss = loss + (of_chosen.mean() - of_rejected.mean() - 1 / (2 * beta)).square();
        break;
    }
    chosen_sum = chosen_sum + chosen_n.sum();
    chosen_tokens += chosen_n.numel();
  }
  return loss / static_cast<double>(pairs.size()) -
         config.sft_coef * chosen_sum / static_cast<double>(chosen_tokens);
}

// Loss and gradient of every parameter by name.
struct Dense {
  double loss = 0.0;
  std::map<std::string, at::Tensor> gradients;
};

Dense differentiate(const at::Tensor& loss, const std::vector<engine::ParamUnit*>& units) {
  for (engine::ParamUnit* unit : units) {
    unit->zero_grad();
  }
  loss.backward();
  Dense dense{loss.item<double>(), {}};
  for (const engine::ParamUnit* unit : units) {
    for (std::size_t p = 0; p < unit->specs().size(); ++p) {
      dense.gradients[unit->specs()[p].name] = unit->layout().view_of(unit->grad(), p).clone();
    }
  }
  return dense;
}

// AdamW's first moment after one step is (1 - beta1) of the gradient, whole whatever the layout.
void check_first_step(const rl::Config& config, const Dense& expected) {
  const test::TemporaryDirectory dir;
  train_pairs(config, dir.path(), 1);
  CHECK(pair_metrics_of(dir.path())[0].at("loss").get<double>() ==
        Approx(expected.loss).epsilon(1e-10));
  const rl::CheckpointReader reader(rl::checkpoint_path(dir.path(), 1));
  for (const auto& [name, gradient] : expected.gradients) {
    INFO(name);
    const at::Tensor found = reader.tensor("policy/exp_avg." + name) / (1 - config.optimizer.beta1);
    CHECK(test::max_abs_diff(found, gradient) <
          1e-10 * gradient.abs().max().item<double>() + 1e-13);
  }
}

// Whether the documents of some pair are in different micro-batches of one rank.
bool splits_a_pair(const std::vector<rl::TokenizedPair>& pairs, const rl::Config& config) {
  const rl::PairDocuments all = rl::make_pair_documents(pairs, config.algorithm.task);
  const auto plan = sp::plan_micro_batches(all.documents, 1, config.train.tokens_per_micro_batch,
                                           config.sp.shared_prefix);
  std::map<int64_t, std::size_t> place;
  for (std::size_t m = 0; m < plan.micro_batches[0].size(); ++m) {
    for (const int64_t document : plan.micro_batches[0][m]) {
      place[document] = m;
    }
  }
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    if (place.at(2 * p) != place.at(2 * p + 1)) {
      return true;
    }
  }
  return false;
}

const std::vector<PairWords> kLayouts{
    {},
    {"parallel.ringattn_parallel_size=2"},
    {"parallel.ulysses_parallel_size=2"},
    {"parallel.data_parallel_shard_size=2"},
    {"parallel.pipeline_parallel_size=2"},
    {"parallel.tensor_parallel_size=2"},
};

PairWords joined_words(PairWords a, const PairWords& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("DPO: loss and gradient are those of each document by itself, at every layout") {
  const PairFiles files;
  const std::vector<PairWords> losses{
      {"algorithm.preference.label_smoothing=0.1", "algorithm.preference.sft_coef=0.3"},
      {"algorithm.preference.loss=ipo"},
      {"algorithm.preference.loss=hinge"}};
  for (std::size_t l = 0; l < losses.size(); ++l) {
    const rl::Config plain = files.config("dpo", losses[l]);
    const auto pairs = files.pairs(plain, "train.jsonl");
    REQUIRE(splits_a_pair(pairs, plain));
    engine::Decoder policy = engine::load_decoder(files.path("policy"), at::kDouble);
    const engine::Decoder reference = engine::load_decoder(files.path("reference"), at::kDouble);
    const Dense dense = differentiate(
        dense_dpo_loss(policy, reference, pairs, plain.algorithm.preference), policy.units());
    for (const PairWords& layout : l == 0 ? kLayouts : std::vector<PairWords>{kLayouts[1]}) {
      CAPTURE(l, layout);
      check_first_step(files.config("dpo", joined_words(losses[l], layout)), dense);
    }
  }
}

TEST_CASE("reward model: loss and gradient are those of each document by itself, at every layout") {
  const PairFiles files;
  const PairWords center{"algorithm.preference.center_coef=0.05"};
  const rl::Config plain = files.config("reward_model", center);
  const auto pairs = files.pairs(plain, "train.jsonl");
  REQUIRE(splits_a_pair(pairs, plain));
  engine::ValueModel model(engine::load_model_config(files.path("rewards")), at::kDouble, false);
  engine::load_value_weights(files.path("rewards"), model);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (const rl::TokenizedPair& pair : pairs) {
    const auto reward = [&](const rl::TokenizedExample& example) {
      return model.values(hidden_states(model.trunk(), rl::make_reward_document(example))).sum();
    };
    const at::Tensor chosen = reward(pair.chosen), rejected = reward(pair.rejected);
    loss = loss - at::log_sigmoid(chosen - rejected) + 0.05 * (chosen + rejected).square();
  }
  const Dense dense = differentiate(loss / static_cast<double>(pairs.size()), model.units());
  CHECK(dense.gradients.contains("score.weight"));
  for (const PairWords& layout : kLayouts) {
    CAPTURE(layout);
    check_first_step(files.config("reward_model", joined_words(center, layout)), dense);
  }
}

TEST_CASE("DPO: figures are those of the pairs, and the policy comes to prefer the chosen ones") {
  const PairFiles files;
  const rl::Config config = files.config(
      "dpo", {"data.preferences_eval=" + files.path("held_out.jsonl").string(), "eval.every=4",
              "model.reference_path=" + files.path("policy").string(), "checkpoint.every=4"});
  const test::TemporaryDirectory dir;
  train_pairs(config, dir.path(), 12);
  const auto steps = pair_metrics_of(dir.path());
  REQUIRE(steps.size() == 13);
  CHECK(steps[0].at("eval_loss").get<double>() == Approx(std::log(2.0)));  // before training
  const auto& first = steps[1];
  CHECK(first.at("loss").get<double>() == Approx(std::log(2.0)));
  CHECK(first.at("rewards/margins").get<double>() == Approx(0.0).margin(1e-9));
  CHECK(first.at("preferences/pairs") == 8);
  CHECK_FALSE(first.contains("kl"));
  const auto& last = steps.back();
  CHECK(last.at("rewards/accuracies").get<double>() == 1.0);
  CHECK(
      last.at("rewards/margins").get<double>() ==
      Approx(last.at("rewards/chosen").get<double>() - last.at("rewards/rejected").get<double>()));
  CHECK(last.at("loss").get<double>() < 0.8 * std::log(2.0));
  CHECK(last.contains("eval/rewards/accuracies"));
  const auto saved = rl::CheckpointReader(rl::checkpoint_path(dir.path(), 12)).manifest();
  REQUIRE(saved.evaluation.has_value());
  CHECK(saved.evaluation->metric == "eval_loss");
  // By hand, from the final weights.
  const auto pairs = files.pairs(config, "held_out.jsonl");
  const auto final_policy = engine::load_decoder(dir.path() / "checkpoint-final", at::kDouble);
  const auto reference = engine::load_decoder(files.path("policy"), at::kDouble);
  const at::NoGradGuard no_grad;
  CHECK(last.at("eval_loss").get<double>() ==
        Approx(dense_dpo_loss(final_policy, reference, pairs, config.algorithm.preference)
                   .item<double>())
            .epsilon(1e-9));
}

TEST_CASE("DPO with adapters: the reference is the policy without them") {
  const PairFiles files;
  const rl::Config config =
      files.config("dpo", {"model.reference_path=", "lora.rank=2", "optimizer.learning_rate=0.05"});
  const test::TemporaryDirectory dir;
  train_pairs(config, dir.path(), 6);
  const auto steps = pair_metrics_of(dir.path());
  CHECK(steps[0].at("loss").get<double>() == Approx(std::log(2.0)));
  CHECK(steps.back().at("loss").get<double>() < std::log(2.0) - 1e-3);
}

TEST_CASE("a run on pairs goes on inside a pass as if it had not been stopped") {
  const PairFiles files;
  for (const std::string task : {"dpo", "reward_model"}) {
    PairWords words{"train.batch_size=3", "train.num_mini_batches=2"};
    if (task == "dpo") {  // a reference that moves is part of the checkpoint
      words.insert(words.end(),
                   {"algorithm.reference_update_every=2", "algorithm.reference_mixup=0.5"});
    }
    const rl::Config config = files.config(task, words);
    const test::TemporaryDirectory whole, stopped;
    train_pairs(config, whole.path(), 5);
    train_pairs(config, stopped.path(), 3);
    train_pairs(config, stopped.path(), 5);
    CHECK(test::read_file(stopped.path() / "checkpoint-final/model.safetensors") ==
          test::read_file(whole.path() / "checkpoint-final/model.safetensors"));
    CHECK(pair_metrics_of(stopped.path()).back().at("loss") ==
          pair_metrics_of(whole.path()).back().at("loss"));
  }
}

TEST_CASE("a reward model is saved as a sequence classifier, and a checkpoint exports as one") {
  const PairFiles files;
  const rl::Config config = files.config("reward_model", {});
  const test::TemporaryDirectory dir;
  train_pairs(config, dir.path(), 2);
  const fs::path saved = dir.path() / "checkpoint-final";
  const auto json = nlohmann::json::parse(test::read_file(saved / "config.json"));
  CHECK(json.at("architectures") == nlohmann::json{"Qwen3ForSequenceClassification"});
  CHECK(json.at("id2label").size() == 1);
  CHECK(fs::exists(saved / "tokenizer.json"));
  const engine::SafetensorsFile weights(saved / "model.safetensors");
  std::set<std::string> names;
  for (const auto& entry : weights.entries()) {
    names.insert(entry.name);
  }
  CHECK(names.contains("score.weight"));
  CHECK_FALSE(names.contains("score.bias"));
  CHECK_FALSE(names.contains("lm_head.weight"));
  CHECK(engine::check_reward_headers(saved, engine::load_model_config(saved)).empty());
  // It is the start of a critic, and of another reward model.
  engine::ValueModel critic(engine::load_model_config(saved), at::kDouble);
  engine::load_value_weights(saved, critic);
  CHECK(critic.head().view(0).abs().sum().item<double>() > 0.0);
  CHECK(critic.head().view(1).item<double>() == 0.0);
  const fs::path exported = dir.path() / "exported";
  rl::export_checkpoint(rl::checkpoint_path(dir.path(), 2), exported);
  CHECK(engine::is_sequence_classifier(exported));
  engine::ValueModel read(engine::load_model_config(exported), at::kDouble, false);
  engine::load_value_weights(exported, read);
  CHECK(test::max_abs_diff(read.head().flat(), critic.head().view(0).flatten()) < 1e-6);
}
