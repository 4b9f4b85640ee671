// Short trainings from recorded rollouts, for comparisons between devices: models, layouts,
// algorithms, dtypes and recomputations, and what a run leaves.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rl/config/load.h"
#include "rl/rollouts/live_source.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/trainer/trainer.h"
#include "rl/trainer/training_run.h"
#include "tests/support/catch.h"
#include "tests/support/hybrid_fields.h"
#include "tests/support/temporary_directory.h"

namespace ringside::test {

using Words = std::vector<std::string>;

// A choice of one setting, with its words of the command line.
struct Part {
  std::string name;
  Words words;
};

// Model directories of random weights, of one shape: config.json alone. config: a Qwen3's.
class Models {
 public:
  // Writes the directories, which are removed with this object.
  explicit Models(nlohmann::json config) {
    config["tie_word_embeddings"] = true;
    write("qwen3_tied", config);
    config["tie_word_embeddings"] = false;
    write("qwen3_moe", with_experts(config));
    config["architectures"] = {"Qwen2ForCausalLM"};
    config["model_type"] = "qwen2";
    config.erase("attention_bias");
    write("qwen2", config);
    config["architectures"] = {"LlamaForCausalLM"};
    config["model_type"] = "llama";
    for (const char* key :
         {"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"}) {
      config.erase(key);
    }
    write("llama", config);
    write("deepseek_v3", with_latent_attention(config));
    nlohmann::json hybrid = with_delta_nets(config);
    write("qwen3_next", hybrid);
    for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                            "shared_expert_intermediate_size", "norm_topk_prob"}) {
      hybrid.erase(key);
    }
    hybrid["model_type"] = "qwen3_5_text";
    hybrid["architectures"] = {"Qwen3_5ForCausalLM"};
    write("qwen3_5", hybrid);
  }
  // The model of that name: qwen3_tied, qwen3_moe, qwen2, llama or deepseek_v3.
  Part part(const std::string& name) const {
    return {name, {"model.path=" + (directory_.path() / name).string(), "model.init=random"}};
  }

 private:
  static nlohmann::json with_experts(nlohmann::json config) {
    config.update({{"model_type", "qwen3_moe"},
                   {"num_experts", 5},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 24},
                   {"norm_topk_prob", true}});
    return config;
  }
  static nlohmann::json with_latent_attention(nlohmann::json config) {
    config.update({{"model_type", "deepseek_v3"},
                   {"architectures", {"DeepseekV3ForCausalLM"}},
                   {"num_key_value_heads", config["num_attention_heads"]},
                   {"head_dim", 4},
                   {"q_lora_rank", 12},
                   {"kv_lora_rank", 10},
                   {"qk_nope_head_dim", 8},
                   {"qk_rope_head_dim", 4},
                   {"v_head_dim", 6},
                   {"n_routed_experts", 6},
                   {"n_shared_experts", 1},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 24},
                   {"n_group", 3},
                   {"topk_group", 2},
                   {"routed_scaling_factor", 1.5},
                   {"first_k_dense_replace", 1}});
    return config;
  }
  // The first layer is a delta net, the second gated attention. Both have experts.
  static nlohmann::json with_delta_nets(nlohmann::json config) {
    config.update(hybrid_fields());
    config.update({{"architectures", {"Qwen3NextForCausalLM"}},
                   {"num_experts", 5},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 24},
                   {"norm_topk_prob", true}});
    return config;
  }
  void write(const std::string& name, const nlohmann::json& config) {
    std::filesystem::create_directories(directory_.path() / name);
    std::ofstream(directory_.path() / name / "config.json") << config;
  }
  TemporaryDirectory directory_;
};

inline const std::vector<Part> kLayouts{
    {"1", {}},
    {"ulysses 2", {"parallel.ulysses_parallel_size=2"}},
    {"ring 2 x ulysses 2",
     {"parallel.ringattn_parallel_size=2", "parallel.ulysses_parallel_size=2"}},
    {"all-gather 2", {"parallel.ringattn_parallel_size=2", "sp.ring_impl=all_gather"}},
    {"ring 2, gathered backward",
     {"parallel.ringattn_parallel_size=2", "sp.ring_backward=all_gather"}},
    {"dp 2", {"parallel.data_parallel_replicate_size=2"}},
    {"2 shards", {"parallel.data_parallel_shard_size=2"}},
    {"tensor 2", {"parallel.tensor_parallel_size=2"}},
    {"pipeline 2", {"parallel.pipeline_parallel_size=2"}},
    {"pipeline 2 with 2 stages a rank, 2 shards",
     {"parallel.pipeline_parallel_size=2", "parallel.stages_per_rank=2",
      "parallel.data_parallel_shard_size=2"}}};
inline const std::vector<Part> kAlgorithms{
    {"grpo with reference", {"algorithm.kl_coef=0.05", "train.num_mini_batches=2"}},
    {"ppo with critic", {"algorithm.preset=ppo", "algorithm.num_iterations=2"}},
    {"gspo", {"algorithm.preset=gspo", "train.num_mini_batches=2"}}};
inline const std::vector<Part> kDtypes{
    {"fp32", {}}, {"bf16", {"model.dtype=bfloat16"}}, {"fp16", {"model.dtype=float16"}}};
inline const std::vector<Part> kRecomputations{
    {"keeps activations", {}},
    {"recomputes", {"model.recompute=full"}},
    {"recomputes without attention", {"model.recompute=selective"}},
    {"recomputes in tiles, offloaded",
     {"model.recompute=full", "model.mlp_tile_tokens=5", "model.offload_activations=true"}},
    {"recomputes without attention in tiles, offloaded",
     {"model.recompute=selective", "model.mlp_tile_tokens=64", "model.offload_activations=true"}}};

// The configuration of these choices together, with three steps of 16 short rollouts.
// Throws: as rl::load_config_or_throw.
inline rl::Config config_of(const std::vector<Part>& parts) {
  Words words;
  for (const Part& part : parts) {
    words.insert(words.end(), part.words.begin(), part.words.end());
  }
  for (const char* word :
       {"rollout.prompts_per_step=4", "rollout.group_size=4", "train.steps=3",
        "train.tokens_per_micro_batch=32", "optimizer.warmup_steps=0", "eval.every=0"}) {
    words.emplace_back(word);
  }
  rl::Config config = rl::load_config_or_throw({}, words);
  rl::factor_context_parallel(config);
  return config;
}

// Trains on the recorded rollouts into `run_dir`.
// Collective over: the world.
inline void train(const rl::Config& config, const std::filesystem::path& rollouts,
                  const std::filesystem::path& run_dir, const sp::Mesh& mesh,
                  const sp::ProcessGroups& comms) {
  rl::TrainingRun run({config, run_dir, config.train.steps, {}}, mesh, comms);
  const auto source = run.ranks().is_main() ? rl::make_file_source(rollouts, config) : nullptr;
  rl::train_rl(run, source.get());
}

// The same with rollouts of live workers, which find the run by its directory. One rank.
inline void train_live(const rl::Config& config, const std::filesystem::path& run_dir,
                       const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
  rl::TrainingRun run({config, run_dir, config.train.steps}, mesh, comms);
  const auto source = mesh.rank() == 0 ? rl::make_live_source(config, run.state().run_id, run_dir,
                                                              0, config.train.steps)
                                       : nullptr;
  rl::train_rl(run, source.get());
}

// The bytes of a file. Fails the test when it cannot be read.
inline std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Whether a metric is a time, which differs between equal runs.
inline bool is_clock(const std::string& name) {
  return name == "step_time" || name.starts_with("time/");
}

// The lines of metrics.jsonl, each without what is_clock() names.
inline std::vector<nlohmann::json> metrics_of(const std::filesystem::path& run_dir) {
  std::vector<nlohmann::json> steps;
  std::ifstream in(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    auto step = nlohmann::json::parse(line);
    for (auto it = step.begin(); it != step.end();) {
      it = is_clock(it.key()) ? step.erase(it) : std::next(it);
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

// The names below `run_dir` of all safetensors files, sorted: the final weights, and checkpoints
// with masters and moments of the policy, and of the critic and the reference where there are.
inline std::vector<std::string> tensor_files(const std::filesystem::path& run_dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir)) {
    if (entry.path().extension() == ".safetensors") {
      names.push_back(std::filesystem::relative(entry.path(), run_dir).string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ringside::test
