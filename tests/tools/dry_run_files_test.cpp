// Guards what a dry run makes of a model's shape and of a mesh: ratios and options that decide
// which code runs must stay, sizes must not.
#include <algorithm>

#include "engine/io/model_config_json.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tools/dry_run/dry_run.h"
#include "tools/dry_run/small_config.h"
#include "tools/dry_run/small_model.h"

namespace ringside::tools {
namespace {

engine::ModelConfig large_llama() {
  engine::ModelConfig model;
  model.model_type = "llama";
  model.vocab_size = 128256;
  model.hidden_size = 4096;
  model.intermediate_size = 14336;
  model.num_hidden_layers = 32;
  model.num_attention_heads = 32;
  model.num_key_value_heads = 8;
  model.head_dim = 128;
  model.max_position_embeddings = 131072;
  model.rope_scaling = engine::Llama3Rope{};
  model.eos_token_ids = {128001};
  return model;
}

TEST_CASE("a small model keeps the ratio of its heads, its RoPE and its vocabulary") {
  const engine::ModelConfig model = large_llama();
  const engine::ModelConfig small = small_model(model, std::nullopt);
  CHECK(small.num_attention_heads / small.num_key_value_heads == 4);
  CHECK(small.num_key_value_heads == 2);
  CHECK(small.hidden_size == small.num_attention_heads * small.head_dim);  // as in the model
  CHECK(small.rope_scaling == model.rope_scaling);
  CHECK(small.vocab_size == model.vocab_size);
  CHECK(small.num_hidden_layers == 2);
  CHECK(small.eos_token_ids.front() == 128001);
  CHECK(small.eos_token_ids.size() > 10000);
  CHECK_FALSE(small.tie_word_embeddings);
}

TEST_CASE("longrope's factors are cut to the small heads, and other ids follow the tokenizer") {
  engine::ModelConfig model = large_llama();
  model.tie_word_embeddings = true;
  model.bos_token_id = 128000;
  model.rope_scaling = engine::LongRope{std::vector<double>(64, 1.5), std::vector<double>(64, 3.0),
                                        4096, std::nullopt, std::nullopt};
  const engine::ModelConfig small = small_model(model, MadeUpIds{.vocab_size = 300, .eos = 256});
  const auto& rope = std::get<engine::LongRope>(small.rope_scaling);
  CHECK(rope.short_factor.size() == static_cast<std::size_t>(small.head_dim / 2));
  CHECK(rope.long_factor.size() == rope.short_factor.size());
  CHECK(small.vocab_size == 300);
  CHECK(small.eos_token_ids.front() == 256);
  CHECK(small.eos_token_ids.back() < 300);
  CHECK_FALSE(small.bos_token_id);
  CHECK(small.tie_word_embeddings);
}

TEST_CASE("RoPE of a part of each head turns the same part of small heads") {
  engine::ModelConfig model = large_llama();
  model.model_type = "phi3";
  model.fused_projections = true;
  model.attention.rotary_dim = 96;
  model.rope_scaling = engine::LongRope{std::vector<double>(48, 1.5), std::vector<double>(48, 3.0),
                                        4096, std::nullopt, std::nullopt};
  const engine::ModelConfig small = small_model(model, std::nullopt);
  CHECK(small.head_dim == 16);
  CHECK(small.attention.rotary_dim == 12);
  CHECK(std::get<engine::LongRope>(small.rope_scaling).long_factor.size() == 6);
  // What is written of it is read again.
  const test::TemporaryDirectory dir;
  test::write_file(dir.path() / "config.json", engine::model_config_json(small, "float32"));
  CHECK(engine::load_model_config(dir.path()).attention.rotary_dim == 12);
}

TEST_CASE("a mesh that is too large gets two ranks on each axis that has several") {
  rl::Config config;
  config.parallel.data_parallel_replicate_size = 3;
  config.parallel.data_parallel_shard_size = 16;
  config.parallel.ringattn_parallel_size = 8;
  const rl::ParallelConfig small = small_config(config, 4).parallel;
  CHECK(small.data_parallel_replicate_size == 2);
  CHECK(small.data_parallel_shard_size == 2);
  CHECK(small.ringattn_parallel_size == 2);
  CHECK(small.ulysses_parallel_size == 1);
  CHECK(small_config(config, 3 * 16 * 8).parallel.world_size() == 3 * 16 * 8);
  CHECK(small_config(config, 100).parallel.world_size() == 3 * 2 * 8);  // the largest first
}

TEST_CASE("rewards with commas in file names stay whole, and what a dry run leaves out is said") {
  const test::TemporaryDirectory files;
  DryRunRequest request;
  request.config.rollout.reward =
      "exact_match * 2, python(/nowhere/my, rewards.py:score) * 0.5, length";
  request.dir = files.path();
  const PreparedDryRun prepared = prepare_dry_run(request);
  CHECK(prepared.config.rollout.reward == "exact_match * 2, length");
  const auto says = [&](const std::string& line) {
    return line.find("python(/nowhere/my, rewards.py:score) * 0.5 is left out") != line.npos;
  };
  CHECK(std::count_if(prepared.lines.begin(), prepared.lines.end(), says) == 1);
}

TEST_CASE("a Python function that can score the data of a dry run takes part in it") {
  const test::TemporaryDirectory files, functions;
  const std::string file = (functions.path() / "rewards.py").string();
  test::write_file(file,
                   "def good(completions, answers): return [1.0 for _ in completions]\n"
                   "def needs(completions, level): return [1.0 for _ in completions]\n");
  DryRunRequest request;
  request.config.rollout.reward = "python(" + file + ":good), python(" + file + ":needs)";
  request.dir = files.path();
  const PreparedDryRun prepared = prepare_dry_run(request);
  CHECK(prepared.config.rollout.reward == "python(" + file + ":good), length");
  const auto says = [&](const std::string& line) {
    return line.find(":needs) is left out") != line.npos && line.find("takes level") != line.npos;
  };
  CHECK(std::count_if(prepared.lines.begin(), prepared.lines.end(), says) == 1);
}

TEST_CASE("a model that is not there gets the shape of its name, whatever the case") {
  const test::TemporaryDirectory shapes, files;
  test::write_file(shapes.path() / "llama-3.1-8b.json",
                   engine::model_config_json(large_llama(), "bfloat16"));
  DryRunRequest request;
  request.config.model.path = "/nowhere/meta-llama/Llama-3.1-8B";
  request.dir = files.path();
  request.shapes = shapes.path();
  const PreparedDryRun prepared = prepare_dry_run(request);
  const auto model = engine::load_model_config(files.path() / "model");
  CHECK(model.model_type == "llama");
  CHECK(model.num_attention_heads == 4 * model.num_key_value_heads);
  CHECK_THAT(prepared.lines.front(), Catch::Contains("llama-3.1-8b.json; layers 32 -> 2"));
  CHECK(std::filesystem::exists(prepared.recipe));
  CHECK(prepared.config.data.train == files.path() / "train.jsonl");
}

}  // namespace
}  // namespace ringside::tools
