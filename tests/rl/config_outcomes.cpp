#include "tests/rl/config_outcomes.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "engine/io/adapter_directory.h"
#include "engine/io/model_config_json.h"
#include "engine/models/pipeline.h"
#include "engine/params/sharding.h"
#include "rl/config/batch_arithmetic.h"
#include "rl/config/load.h"
#include "rl/config/schema.h"
#include "rl/data/prompt_set.h"
#include "rl/data/sft_file.h"
#include "rl/rewards/reward_set.h"
#include "rl/rollouts/live_source.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/rollouts/trainer_options.h"
#include "rl/sampling/prompt_sampler.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"
#include "rl/trainer/preferences.h"
#include "rl/trainer/sft.h"
#include "rl/trainer/trainer.h"
#include "rl/worker/embedded_worker.h"
#include "rl/worker/make_server.h"
#include "rl/worker/worker_link.h"
#include "sp/plan/method_choice.h"
#include "tests/support/catch.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

namespace fs = std::filesystem;

namespace ringside::test {
namespace {

const fs::path kGoldens = fs::path(RINGSIDE_SOURCE_DIR) / "tests/goldens/regression";

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

constexpr const char* kPairs =
    R"({"prompt": "ab", "chosen": "cd", "rejected": "e", "other": "fgh"})"
    "\n"
    R"({"prompt": "cd", "chosen": "e", "rejected": "fg", "other": "h"})"
    "\n";

// The files that configurations name.
class Files {
 public:
  Files() {
    fs::copy(kGoldens / "policy", path("model"), fs::copy_options::recursive);
    write("model/tokenizer.json", letter_tokenizer());
    write("bos.json", letter_tokenizer_with_bos());
    write("model/tokenizer_config.json",
          R"({"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}{{ who }}"})");
    write_model_with_experts();
    write_model_with_corrections();
    fs::copy(kGoldens / "reference", path("reference"), fs::copy_options::recursive);
    fs::copy(kGoldens / "critic", path("critic"), fs::copy_options::recursive);
    fs::create_directories(path("adapter"));
    const engine::ModelConfig model = engine::load_model_config(path("model"));
    engine::Adapters adapters(model, engine::whole_stage(model),
                              {2, 32.0, engine::adapter_targets()}, at::kFloat);
    adapters.init_random(9);
    engine::save_adapters(adapters, path("adapter"), "model");
    write("train.jsonl", lines({"ab", "cd", "ef", "abcdefgh"}, "prompt", "answer"));
    write("other.jsonl", lines({"xy", "yz", "zx"}, "prompt", "answer"));
    write("keys.jsonl", R"({"prompt": "ab", "answer": "b", "question": "zz", "solution": "z"})"
                        "\n");
    write("adapters.jsonl", R"({"prompt": "ab", "answer": "b", "adapter": "one", "tenant": "two"})"
                            "\n");
    write("chat.jsonl", R"({"prompt": [{"role": "user", "content": "ab"}], "answer": "b"})"
                        "\n");
    write("sft.jsonl", lines({"ab", "cd", "ef", "abcdefgh"}, "prompt", "completion"));
    write("sft2.jsonl", lines({"xy", "zz"}, "prompt", "completion"));
    write("sft_keys.jsonl",
          R"({"prompt": "ab", "completion": "b", "other": "c", )"
          R"("chat": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "ddd"}]})"
          "\n");
    write("pairs.jsonl", kPairs);
    write("pairs2.jsonl", R"({"prompt": "xy", "chosen": "z", "rejected": "yy"})"
                          "\n");
    write(
        "rewards.py",
        "import time\ndef slow(completions):\n    time.sleep(0.4 if completions[0] == 'b' else 0)\n"
        "    return [1.0] * len(completions)\n");
    write("schema.json", R"({"type": "integer"})");
    write("key", "secret\n");
    write_images();
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

 private:
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((directory_.path() / name).parent_path());
    test::write_file(directory_.path() / name, text);
  }
  // A model that takes images, as far as its configuration goes, and a record with one.
  void write_images() {
    write("vision/config.json", R"({"model_type": "qwen3_vl", "image_token_id": 27})");
    write("vision/preprocessor_config.json", R"({"patch_size": 4, "min_pixels": 64})");
    const std::string sample =
        bytes_of(fs::path(RINGSIDE_SOURCE_DIR) / "tests/fuzz/corpus/image/rgb.png");
    write("dot.png", sample);
    write("images.jsonl", R"({"prompt": "az", "answer": "b", "picture": "dot.png"})"
                          "\n");
  }
  // The model's shape with 3 experts, without weights.
  void write_model_with_experts() {
    fs::copy(path("model"), path("experts"), fs::copy_options::recursive);
    auto config = nlohmann::json::parse(bytes_of(kGoldens / "policy/config.json"));
    config.update({{"model_type", "qwen3_moe"},
                   {"num_experts", 3},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 24},
                   {"norm_topk_prob", true}});
    write("experts/config.json", config.dump());
    fs::remove(path("experts") + "/model.safetensors");
  }
  // Of the same size, with latent attention, routers whose choice has a correction, and a layer
  // that predicts a further token.
  void write_model_with_corrections() {
    fs::copy(path("experts"), path("corrections"), fs::copy_options::recursive);
    auto config = nlohmann::json::parse(bytes_of(kGoldens / "policy/config.json"));
    for (const char* key :
         {"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"}) {
      config.erase(key);
    }
    config.update({{"model_type", "deepseek_v3"},
                   {"num_key_value_heads", config["num_attention_heads"]},
                   {"kv_lora_rank", 10},
                   {"q_lora_rank", 12},
                   {"qk_nope_head_dim", 8},
                   {"qk_rope_head_dim", 4},
                   {"v_head_dim", 6},
                   {"n_routed_experts", 3},
                   {"n_shared_experts", 1},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 24},
                   {"n_group", 1},
                   {"topk_group", 1},
                   {"routed_scaling_factor", 1.5},
                   {"first_k_dense_replace", 1},
                   {"num_nextn_predict_layers", 1}});
    write("corrections/config.json", config.dump());
  }
  static std::string lines(const Words& texts, const std::string& from, const std::string& to) {
    std::string all;
    for (const std::string& text : texts) {
      all += R"({")" + from + R"(": ")" + text + R"(", ")" + to + R"(": "b"})" + "\n";
    }
    return all;
  }
  test::TemporaryDirectory directory_;
};

bool is_clock(const std::string& name) {
  for (const char* part : {"time", "seconds", "timestamp", "wall"}) {
    if (name.find(part) != std::string::npos) {
      return true;
    }
  }
  return false;
}

// Metrics without clocks, names of files, and the bytes of weights, moments and logged samples.
std::string outcome_of(const fs::path& run_dir) {
  std::ostringstream text;
  std::ifstream metrics(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const auto json = nlohmann::json::parse(line);
    for (const auto& [name, value] : json.items()) {
      if (!is_clock(name)) {
        text << name << "=" << value.dump() << "\n";
      }
    }
  }
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(run_dir)) {
    const std::string name = fs::relative(entry.path(), run_dir).string();
    if (name.find("tfevents") == std::string::npos && name.find("bridge") == std::string::npos) {
      names.insert(name);
    }
  }
  for (const std::string& name : names) {
    const bool compared = name.ends_with(".safetensors") || name == "samples.jsonl";
    text << name
         << (compared ? " " + std::to_string(std::hash<std::string>()(bytes_of(run_dir / name)))
                      : "")
         << "\n";
  }
  return text.str();
}

std::string trained(const rl::Config& config, const fs::path& run_dir,
                    const std::function<void(rl::TrainingRun&)>& loop) {
  rl::Config factored = config;
  rl::factor_context_parallel(factored);
  test::run_ranks_in_memory(
      rl::mesh_shape(factored.parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        rl::TrainingRun run({factored, run_dir, factored.train.steps}, mesh, comms);
        loop(run);
      },
      rl::sharding_axes(factored.parallel));
  return outcome_of(run_dir);
}

}  // namespace

std::string input_file(const std::string& name) {
  static const Files all;
  return all.path(name);
}

std::string recorded(const rl::Config& config) {
  const test::TemporaryDirectory run_dir;
  return trained(config, run_dir.path(), [&](rl::TrainingRun& run) {
    const auto source =
        run.ranks().is_main() ? rl::make_file_source(kGoldens / "plain.jsonl", config) : nullptr;
    rl::train_rl(run, source.get());
  });
}

std::string fine_tuned(const rl::Config& config) {
  const test::TemporaryDirectory run_dir;
  rl::Config counted = config;
  if (config.train.epochs > 0) {
    counted.train.steps = rl::steps_of_epochs(config);
  }
  return trained(counted, run_dir.path(), [](rl::TrainingRun& run) { rl::train_sft(run); });
}

std::string preferred(const rl::Config& config) {
  const test::TemporaryDirectory run_dir;
  return trained(config, run_dir.path(), [](rl::TrainingRun& run) { rl::train_preferences(run); });
}

std::string live(const rl::Config& config, const std::vector<std::string>& names) {
  const test::TemporaryDirectory run_dir;
  const fs::path endpoint = run_dir.path() / "bridge/endpoint.json";
  std::string error;
  {
    std::jthread worker([&](const std::stop_token& stop) {
      try {
        rl::run_embedded_worker(config,
                                {"worker", endpoint, [stop] { return stop.stop_requested(); }});
      } catch (const std::exception& e) {
        error = e.what();
      }
    });
    trained(config, run_dir.path(), [&](rl::TrainingRun& run) {
      const auto source =
          rl::make_live_source(config, run.state().run_id, run_dir.path(), 0, config.train.steps);
      rl::train_rl(run, source.get());
    });
  }
  REQUIRE(error == "");
  std::string last;
  std::ifstream metrics(run_dir.path() / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    last = line;
  }
  const auto values = nlohmann::json::parse(last);
  std::string text;
  for (const std::string& name : names) {
    text += name + "=" + values.at(name).dump() + "\n";
  }
  return text;
}

std::string refilled(const rl::Config& config) {
  return live(config, {"rollouts/refilled_groups"});
}
std::string weights_sent(const rl::Config& config) {
  return live(config, {"weights/shared_staged", "weights/delta_staged"});
}

std::string jobs(const rl::Config& config) {
  rl::SampleJobs all(config);
  std::string text;
  for (int64_t group = 0; group < 6; ++group) {
    const rl::SampleJob job = all.of({.group_id = group, .group_size = 1, .sample_index = 0});
    text += job.prompt.id + " " + job.prompt.prompt + " " + job.prompt.answer + " " +
            job.prompt.adapter + " " + std::to_string(job.seed) + "\n";
  }
  return text;
}

std::string sampled(const rl::Config& config) {
  const auto decoder = rl::load_starting_model(config, config.model.path,
                                               rl::compute_context(config, c10::Device(c10::kCPU)));
  const rl::PromptSampler sampler(config, decoder->config());
  std::vector<rl::Prompt> prompts;
  std::vector<uint64_t> seeds;
  for (uint64_t i = 0; i < 8; ++i) {
    prompts.push_back({std::to_string(i), "abc", "b"});
    seeds.push_back(i);
  }
  std::ostringstream text;
  for (const auto& scored :
       sampler.sample(*decoder, prompts, seeds, {.temperature = config.rollout.temperature})) {
    text << scored.text << " " << nlohmann::json(scored.completion.logprobs).dump() << " "
         << scored.scores.total << " " << scored.scores.failure << "\n";
  }
  return text.str();
}

std::string scored(const rl::Config& config) {
  std::string text;
  try {
    const rl::RewardSet rewards(config.rollout.reward, rl::reward_options(config.rollout, {}));
    for (const char* completion :
         {"5", "5.01", "a a a a", "x=b", "b", "import time\ntime.sleep(0.3)\nprint(2)",
          "x = ' ' * (300 << 20)\nprint(2)", "echo 2"}) {
      const auto scores = rewards.score(
          {"", completion,
           config.rollout.reward == "code_tests" ? R"([{"input": "", "output": "2"}])" : "5", 5,
           10});
      text += std::to_string(scores.total) + " " + scores.failure + "\n";
    }
  } catch (const std::invalid_argument& error) {
    text += error.what();
  }
  return text;
}

std::string endpoint(const rl::Config& config) {
  try {
    const auto o = rl::trainer_options(config.bridge, "run", 1, "/journal");
    std::ostringstream text;
    text << o.rollout_address << o.weights_address << o.heartbeat_interval.count() << " "
         << o.worker_timeout.count() << " " << o.pause_timeout.count() << " "
         << o.assignment_timeout.count() << " " << o.max_queued_bytes << " " << o.journal.max_bytes
         << " " << static_cast<int>(o.journal.fsync);
    rl::StepRules rules{.group_size = config.rollout.group_size};
    rl::set_stragglers(rules, config.rollout);
    const bridge::GroupPolicy policy = rl::step_policy(rules);
    text << " " << policy.straggler_timeout.count() << " " << policy.min_group_size;
    return text.str();
  } catch (const std::exception& error) {  // the key files that are not there
    return error.what();
  }
}

std::string worker_side(const rl::Config& config) {
  try {
    const auto o = rl::worker_options(config, {"w", {}, [] { return false; }}, {});
    return o.rollout_address + " " + o.weights_address + " " + std::to_string(o.capacity_samples);
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string server_client(const rl::Config& config) {
  const auto o = rl::server_options(config, 32);
  return o.url + o.api_key + " " + std::to_string(o.generate_deadline.count()) + " " +
         std::to_string(o.load_deadline.count()) + " " +
         std::string(typeid(*rl::make_server(config, 32)).name());
}

std::string layout(const rl::Config& config) {
  rl::Config factored = config;
  rl::factor_context_parallel(factored);
  std::string text;
  for (const std::string& line : rl::describe_sequence_parallel(config)) {
    text += line + "\n";
  }
  return text + std::to_string(factored.parallel.ulysses_parallel_size) + " " +
         std::to_string(factored.parallel.ringattn_parallel_size);
}

std::string sequence_plan(const rl::Config& config) {
  const sp::SequenceOptions options = rl::sequence_options(config.sp);
  return std::to_string(options.async_ulysses) + " " + std::to_string(options.plan.heads_k_stride) +
         " " + std::to_string(static_cast<int>(options.plan.ring_backward));
}

std::string sharding(const rl::Config& config) {
  const test::TemporaryDirectory run_dir;
  std::string text;
  trained(config, run_dir.path(), [&](rl::TrainingRun& run) {
    if (run.ranks().is_main()) {
      const engine::ComputeContext& context = run.policy().decoder().context();
      for (const int64_t figure :
           {context.sharding->shard->size(), context.sharding->replicas->size(),
            context.sharding->stage, static_cast<int64_t>(context.reduce),
            int64_t{context.host_moments}, int64_t{context.host_master},
            int64_t{context.host_values},
            context.experts ? context.experts->ranks->size() : int64_t{1},
            context.tensor ? context.tensor->ranks->size() : int64_t{1}}) {
        text += std::to_string(figure) + " ";
      }
      if (const engine::Pipeline* pipeline = context.pipeline.get()) {
        text += std::to_string(pipeline->line->size()) + " ranks of " +
                std::to_string(run.policy().stages().size()) + " stages by schedule " +
                std::to_string(static_cast<int>(pipeline->schedule)) + ", warm-up " +
                std::to_string(pipeline->warm_up);
      }
    }
  });
  return text;
}

std::string kernels_of_products(const rl::Config& config) {
  const test::TemporaryDirectory run_dir;
  std::string text;
  trained(config, run_dir.path(), [&](rl::TrainingRun& run) {
    text = engine::text_of(run.policy().decoder().context().products);
  });
  return text;
}

std::string activations(const rl::Config& config) {
  const test::TemporaryDirectory run_dir;
  engine::ActivationOptions options;
  trained(config, run_dir.path(),
          [&](rl::TrainingRun& run) { options = run.policy().decoder().activation_options(); });
  return std::to_string(static_cast<int>(options.recompute)) + " " +
         std::to_string(options.offload) + " " + std::to_string(options.mlp_tile_tokens) + " " +
         std::to_string(options.logit_chunk_bytes);
}

}  // namespace ringside::test
