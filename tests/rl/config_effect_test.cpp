// Guards: a key that is accepted and does nothing. Every key of the schema has an entry; an entry
// changes the key and runs the code that reads it, before and after, and what comes out must
// differ. Keys that only a whole process or an inference server shows name the test that does so,
// and that test must exist.
#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "rl/config/batch_arithmetic.h"
#include "rl/config/load.h"
#include "rl/config/schema.h"
#include "rl/data/prompt_set.h"
#include "rl/rewards/reward_set.h"
#include "rl/rollouts/live_source.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/rollouts/trainer_options.h"
#include "rl/sampling/prompt_sampler.h"
#include "rl/setup/model_device.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/trainer/sft.h"
#include "rl/trainer/trainer.h"
#include "rl/worker/embedded_worker.h"
#include "rl/worker/make_server.h"
#include "rl/worker/worker_link.h"
#include "sp/plan/method_choice.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
namespace fs = std::filesystem;

namespace {

const fs::path kSource = RINGSIDE_SOURCE_DIR;
const fs::path kGoldens = kSource / "tests/goldens/regression";
using Words = std::vector<std::string>;

// A tokenizer of one token a character, for the 32 ids of the recorded models.
std::string tokenizer_json() {
  std::string vocabulary = R"("<unk>": 0, ";": 1)";
  for (int id = 2; id < 32; ++id) {
    const char c = static_cast<char>(id < 28 ? 'a' + id - 2 : '0' + id - 28);
    vocabulary += std::string(", \"") + c + "\": " + std::to_string(id);
  }
  return R"({"added_tokens": [{"id": 1, "content": ";", "special": true, "normalized": false}], "normalizer": null,
             "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
             "model": {"type": "BPE", "unk_token": "<unk>", "merges": [], "vocab": {)" +
         vocabulary + "}}}";
}

// The files that configurations name.
class Files {
 public:
  Files() {
    fs::copy(kGoldens / "policy", path("model"), fs::copy_options::recursive);
    write("model/tokenizer.json", tokenizer_json());
    fs::copy(kGoldens / "reference", path("reference"), fs::copy_options::recursive);
    fs::copy(kGoldens / "critic", path("critic"), fs::copy_options::recursive);
    write("train.jsonl", lines({"ab", "cd", "ef", "abcdefgh"}, "prompt", "answer"));
    write("other.jsonl", lines({"xy", "yz", "zx"}, "prompt", "answer"));
    write("keys.jsonl", R"({"prompt": "ab", "answer": "b", "question": "zz", "solution": "z"})"
                        "\n");
    write("chat.jsonl", R"({"prompt": [{"role": "user", "content": "ab"}], "answer": "b"})"
                        "\n");
    write("sft.jsonl", lines({"ab", "cd", "ef", "abcdefgh"}, "prompt", "completion"));
    write("sft2.jsonl", lines({"xy", "zz"}, "prompt", "completion"));
    write("schema.json", R"({"type": "integer"})");
    write("key", "secret\n");
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

 private:
  void write(const std::string& name, const std::string& text) {
    test::write_file(directory_.path() / name, text);
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

const Files& files() {
  static const Files all;
  return all;
}

// ---- what reads the keys: each gives everything that could differ as text ----

bool is_clock(const std::string& name) {
  for (const char* part : {"time", "seconds", "timestamp", "wall"}) {
    if (name.find(part) != std::string::npos) {
      return true;
    }
  }
  return false;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Metrics without clocks, names of files, and the bytes of weights and moments.
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
    const bool weights = name.ends_with(".safetensors");
    text << name
         << (weights ? " " + std::to_string(std::hash<std::string>()(bytes_of(run_dir / name)))
                     : "")
         << "\n";
  }
  return text.str();
}

sp::MeshShape shape_of(const rl::Config& config) {
  return {config.parallel.data_parallel_replicate_size, config.parallel.ringattn_parallel_size,
          config.parallel.ulysses_parallel_size};
}

std::string trained(const rl::Config& config, const fs::path& run_dir,
                    const std::function<void(rl::TrainingRun&)>& loop) {
  rl::Config factored = config;
  rl::factor_context_parallel(factored);
  test::run_ranks(shape_of(factored), [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    rl::TrainingRun run({factored, run_dir, factored.train.steps}, mesh, comms);
    loop(run);
  });
  return outcome_of(run_dir);
}

// Training on recorded rollouts.
std::string recorded(const rl::Config& config) {
  const test::TemporaryDirectory run_dir;
  return trained(config, run_dir.path(), [&](rl::TrainingRun& run) {
    const auto source =
        run.is_main_rank() ? rl::make_file_source(kGoldens / "plain.jsonl", config) : nullptr;
    rl::train_rl(run, source.get());
  });
}

std::string fine_tuned(const rl::Config& config) {
  const test::TemporaryDirectory run_dir;
  return trained(config, run_dir.path(), [](rl::TrainingRun& run) { rl::train_sft(run); });
}

// A trainer and an embedded worker, live over the bridge: the last values of the named metrics,
// which no timing changes.
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

// The order and the seeds of the samples that a worker draws.
std::string jobs(const rl::Config& config) {
  rl::SampleJobs all(config);
  std::string text;
  for (int64_t group = 0; group < 6; ++group) {
    const rl::SampleJob job = all.of({.group_id = group, .group_size = 1, .sample_index = 0});
    text += job.prompt.id + " " + job.prompt.prompt + " " + job.prompt.answer + " " +
            std::to_string(job.seed) + "\n";
  }
  return text;
}

// Sampled by our own generator.
std::string sampled(const rl::Config& config) {
  const auto decoder = rl::load_starting_model(config, config.model.path, c10::Device(c10::kCPU));
  const rl::PromptSampler sampler(config, decoder->config());
  std::vector<rl::Prompt> prompts;
  std::vector<uint64_t> seeds;
  for (uint64_t i = 0; i < 8; ++i) {
    prompts.push_back({std::to_string(i), "abc", "b"});
    seeds.push_back(i);
  }
  std::ostringstream text;
  for (const auto& scored : sampler.sample(*decoder, prompts, seeds, config.rollout.temperature)) {
    text << scored.text << " " << nlohmann::json(scored.completion.logprobs).dump() << " "
         << scored.scores.total << " " << scored.scores.failure << "\n";
  }
  return text.str();
}

// What the rewards say of some completions.
std::string scored(const rl::Config& config) {
  std::string text;
  try {
    const rl::RewardSet rewards(config.rollout.reward, rl::reward_options(config.rollout, ""));
    for (const char* completion :
         {"5", "5.01", "a a a a", "x=b", "b", "import time\ntime.sleep(0.6)\nprint(2)",
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
         << o.assignment_timeout.count() << " " << o.max_queued_bytes << " " << o.journal_max_bytes
         << " " << static_cast<int>(o.fsync);
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

// What collate() makes its plans with.
std::string sequence_plan(const rl::Config& config) {
  const sp::SequenceOptions options = rl::sequence_options(config.sp);
  return std::to_string(options.async_ulysses) + " " + std::to_string(options.plan.heads_k_stride);
}

std::string recomputes(const rl::Config& config) {
  const test::TemporaryDirectory run_dir;
  bool on = false;
  trained(config, run_dir.path(),
          [&](rl::TrainingRun& run) { on = run.decoder().recompute_activations(); });
  return on ? "yes" : "no";
}

// ---- the table ----

using Consumer = std::function<std::string(const rl::Config&)>;

struct Effect {
  std::string key;
  std::string value;  // another than the key has under `base`
  Consumer consumer;
  Words base;  // under which the key acts
};
// Loading refuses every value but the default.
struct Refused {
  std::string key;
  std::string value;
};
// Read where only a process or a server shows it: the test that does, or the one expression that
// consumes it.
struct Elsewhere {
  std::string key;
  std::string file;
  std::string text;
};

Words common() {
  return {"model.path=" + files().path("model"),
          "data.train=" + files().path("train.jsonl"),
          "rollout.group_size=4",
          "rollout.prompts_per_step=2",
          "rollout.max_completion_tokens=12",
          "rollout.max_prompt_tokens=16",
          "train.steps=2",
          "optimizer.learning_rate=0.01",
          "log.progress=lines"};
}

const Words kKl{"algorithm.kl_coef=0.1", "optimizer.beta2=0.9"};
const Words kGae{"algorithm.preset=ppo", "rollout.group_size=4", "algorithm.num_iterations=2",
                 "train.num_mini_batches=2"};
const Words kTwice{"algorithm.num_iterations=3"};  // so that ratios leave 1

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<Effect> algorithm_effects() {
  const Words entropy{"algorithm.entropy_coef=0.1"};
  const Words correction{"algorithm.correction.mode=tis"};
  const Words rewards{"algorithm.advantage.estimator=reinforce"};
  const Words adaptive = with(kKl, {"algorithm.kl_target=0.05", "algorithm.kl_horizon=20"});
  return {
      {"algorithm.name", "sft", [](const rl::Config& c) { return rl::describe_batch(c)[0]; }, {}},
      {"algorithm.preset", "dr_grpo", recorded, {}},
      {"algorithm.kl_coef", "0.5", recorded, {}},
      {"algorithm.kl_in", "advantage", recorded, kKl},
      {"algorithm.kl_to", "rollout", recorded,
       with(kKl, {"model.reference_path=" + files().path("reference")})},
      {"algorithm.kl_target", "0.05", recorded, with(kKl, {"algorithm.kl_horizon=20"})},
      {"algorithm.kl_horizon", "10", recorded, adaptive},
      {"algorithm.reference_update_every", "1", recorded, kKl},
      {"algorithm.reference_mixup", "0.5", recorded,
       with(kKl, {"algorithm.reference_update_every=1", "train.steps=3"})},
      {"algorithm.entropy_coef", "0.5", recorded, {}},
      {"algorithm.entropy_target",
       "20",
       recorded,
       {"algorithm.entropy_step=0.1", "algorithm.entropy_coef=0.1"}},
      {"algorithm.entropy_step", "0.2", recorded,
       with(entropy,
            {"algorithm.entropy_target=20", "algorithm.entropy_step=0.1", "train.steps=3"})},
      {"algorithm.kl_estimator", "abs", recorded,
       with(kKl, {"model.reference_path=" + files().path("reference")})},
      {"algorithm.loss", "reinforce", recorded, kTwice},
      {"algorithm.importance_level", "sequence", recorded, kTwice},
      {"algorithm.clip_low", "0.0001", recorded, kTwice},
      {"algorithm.clip_high", "0.0001", recorded, kTwice},
      {"algorithm.dual_clip", "1.0001", recorded, with(kTwice, {"algorithm.clip_high=10"})},
      {"algorithm.delta", "0.9", recorded, with(kTwice, {"algorithm.clip_high=10"})},
      {"algorithm.cispo_bounds", "absolute", recorded, with(kTwice, {"algorithm.loss=cispo"})},
      {"algorithm.sapo_tau_positive", "5.0", recorded, with(kTwice, {"algorithm.loss=sapo"})},
      {"algorithm.sapo_tau_negative", "5.0", recorded, with(kTwice, {"algorithm.loss=sapo"})},
      {"algorithm.loss_aggregation", "seq_mean_token_mean", recorded, {}},
      {"algorithm.loss_divisor", "7", recorded, {"algorithm.loss_aggregation=constant"}},
      {"algorithm.reward.scale", "3", recorded, rewards},
      {"algorithm.reward.clip", "0.25", recorded, rewards},
      {"algorithm.reward.overlong_buffer_tokens", "8", recorded, rewards},
      {"algorithm.reward.overlong_factor", "2", recorded,
       with(rewards, {"algorithm.reward.overlong_buffer_tokens=8"})},
      {"algorithm.advantage.estimator", "rloo", recorded, {}},
      {"algorithm.advantage.std", "none", recorded, {}},
      {"algorithm.advantage.eps", "0.5", recorded, {}},
      {"algorithm.advantage.unbiased", "false", recorded, {}},
      {"algorithm.advantage.whiten", "tokens", recorded, {}},
      {"algorithm.advantage.whiten_eps", "0.5", recorded, {"algorithm.advantage.whiten=tokens"}},
      {"algorithm.advantage.gamma", "0.5", recorded, rewards},
      {"algorithm.advantage.lambda", "0.5", recorded, kGae},
      {"algorithm.critic.model_path", files().path("critic"), recorded, kGae},
      {"algorithm.critic.learning_rate", "0.1", recorded, kGae},
      {"algorithm.critic.value_clip", "0.0001", recorded,
       with(kGae, {"algorithm.critic.learning_rate=0.1"})},
      {"algorithm.critic.warmup_steps", "1", recorded, kGae},
      {"algorithm.critic.max_grad_norm", "0.001", recorded, with(kGae, {"optimizer.eps=0.1"})},
      {"algorithm.old_logprobs", "rollout", recorded, {}},
      {"algorithm.correction.mode", "icepop", recorded, correction},
      {"algorithm.correction.level", "sequence", recorded, correction},
      {"algorithm.correction.low", "1.5", recorded, correction},
      {"algorithm.correction.high", "0.1", recorded, correction},
      {"algorithm.correction.opsm_delta", "0.0001", recorded, kTwice},
      {"algorithm.num_iterations", "2", recorded, {}},
      {"algorithm.mask_truncated", "true", recorded, {}},
      {"algorithm.max_staleness", "2", worker_side, {}},
  };
}

std::vector<Effect> training_effects() {
  const Words cosine{"optimizer.lr_schedule=cosine"};
  const Words sft{"algorithm.name=sft", "data.sft=" + files().path("sft.jsonl"),
                  "train.batch_size=2"};
  // Sampled completions of different lengths, so that their mean tells which were looked at.
  const Words evaluated{"data.eval=" + files().path("train.jsonl"),
                        "eval.every=1",
                        "eval.temperature=1",
                        "rollout.reward=length",
                        "rollout.stop=d",
                        "rollout.max_completion_tokens=40"};
  return {
      {"seed", "5", jobs, {}},
      {"model.path", files().path("reference"), recorded, {}},
      // The tests are linked without CUDA, so that asking for it is an error.
      {"model.device", "cuda", [](const rl::Config& c) { return rl::device_problem(c, 0); }, {}},
      {"model.dtype", "float64", recorded, {}},
      {"model.reference_path", files().path("reference"), recorded, kKl},
      {"model.init", "random", recorded, {}},
      {"model.init_std", "0.5", recorded, {"model.init=random"}},
      {"model.recompute_activations", "true", recomputes, {}},
      {"model.fp32_norms", "true", recorded, {"model.dtype=float64"}},
      {"optimizer.learning_rate", "0.02", recorded, {}},
      {"optimizer.lr_schedule", "linear", recorded, {"train.steps=3"}},
      {"optimizer.warmup_steps", "2", recorded, {}},
      {"optimizer.min_lr_ratio", "0.5", recorded, cosine},
      {"optimizer.beta1", "0.5", recorded, {}},
      {"optimizer.beta2", "0.5", recorded, {}},
      {"optimizer.eps", "0.1", recorded, {}},
      {"optimizer.weight_decay", "0.5", recorded, {}},
      {"optimizer.max_grad_norm", "0.001", recorded, {"optimizer.eps=0.1"}},
      {"train.steps", "3", recorded, {}},
      {"train.tokens_per_micro_batch", "20", recorded, {}},
      {"train.num_mini_batches", "2", recorded, {}},
      {"train.batch_size", "3", fine_tuned, sft},
      {"data.sft", files().path("sft2.jsonl"), fine_tuned, sft},
      {"data.on_overlong", "truncate", fine_tuned,
       with(sft, {"data.on_overlong=drop", "train.tokens_per_micro_batch=8"})},
      {"data.eval", files().path("other.jsonl"), recorded, evaluated},
      {"eval.every", "2", recorded, evaluated},
      {"eval.max_prompts", "1", recorded, evaluated},
      {"eval.temperature", "0.0", recorded, evaluated},
      {"checkpoint.every", "1", recorded, {"checkpoint.every=2"}},
      {"checkpoint.keep", "1", recorded, {"checkpoint.every=1", "train.steps=3"}},
      {"log.rollouts", "true", recorded, {}},
      {"parallel.data_parallel_replicate_size", "2", recorded, {"train.tokens_per_micro_batch=20"}},
      {"parallel.ringattn_parallel_size", "2", recorded, {}},
      {"parallel.ulysses_parallel_size", "2", recorded, {}},
      {"parallel.context_parallel_size", "2", layout, {}},
      {"sp.method", "ring", layout, {"parallel.context_parallel_size=2", "sp.method=ulysses"}},
      {"sp.ring_impl", "all_gather", recorded, {"parallel.ringattn_parallel_size=2"}},
      {"sp.placement", "contiguous", recorded, {"parallel.ringattn_parallel_size=2"}},
      {"sp.shared_prefix", "false", recorded, {"train.tokens_per_micro_batch=64"}},
  };
}

std::vector<Effect> rollout_effects() {
  const Words json{"rollout.reward=json_schema"};
  const Words code{"rollout.reward=code_tests", "rollout.reward_options.code_timeout_s=10"};
  const Words server{"rollout.server=sglang"};
  const Words live_run{"rollout.reward=length"};
  return {
      {"data.train", files().path("other.jsonl"), jobs, {}},
      {"data.prompt_key", "question", jobs, {"data.train=" + files().path("keys.jsonl")}},
      {"data.answer_key", "solution", jobs, {"data.train=" + files().path("keys.jsonl")}},
      {"data.chat_template",
       "llama3",
       [](const rl::Config& c) { return rl::read_prompts(c.data.train, c.data)[0].prompt; },
       {"data.train=" + files().path("chat.jsonl"), "data.chat_template=chatml"}},
      {"data.shuffle", "false", jobs, {}},
      {"rollout.prompts_per_step", "3", worker_side, {}},
      {"rollout.group_size", "2", worker_side, {}},
      {"rollout.max_prompt_tokens", "2", jobs, {"data.on_overlong=drop"}},
      {"rollout.max_completion_tokens", "3", sampled, {}},
      {"rollout.temperature", "0.2", sampled, {}},
      {"rollout.top_p", "0.1", sampled, {}},
      {"rollout.top_k", "1", sampled, {}},
      {"rollout.stop", "d", sampled, {}},
      {"rollout.reward", "length", scored, {}},
      {"rollout.reward_separator", "=", scored, {}},
      {"rollout.reward_options.tolerance", "0.1", scored, {"rollout.reward=math_answer"}},
      {"rollout.reward_options.regex",
       "a.*",
       scored,
       {"rollout.reward=regex", "rollout.reward_options.regex=5.*"}},
      {"rollout.reward_options.json_schema", files().path("schema.json"), scored, json},
      {"rollout.reward_options.repetition_ngram", "1", scored, {"rollout.reward=repetition"}},
      {"rollout.reward_options.code_command", "sh", scored, code},
      {"rollout.reward_options.code_timeout_s", "0.4", scored, code},
      {"rollout.reward_options.code_memory_mb", "200", scored, code},
      {"rollout.reward_options.http_url",
       "ftp://x",
       scored,
       {"rollout.reward=http", "rollout.reward_options.http_url=http://127.0.0.1:1"}},
      {"rollout.reward_options.http_timeout_s",
       "1e7",
       scored,
       {"rollout.reward=http", "rollout.reward_options.http_url=http://127.0.0.1:1"}},
      {"rollout.server", "llama_cpp", server_client, server},
      {"rollout.server_options.url", "http://127.0.0.1:9", server_client, server},
      {"rollout.server_options.api_key_file", files().path("key"), server_client, server},
      {"rollout.server_options.request_timeout_s", "5", server_client, server},
      {"rollout.server_options.load_timeout_s", "5", server_client, server},
      {"bridge.rollout_address", "tcp://127.0.0.1:7001", endpoint, {}},
      {"bridge.weights_address", "tcp://127.0.0.1:7001", endpoint, {}},
      {"bridge.heartbeat_s", "2", endpoint, {}},
      {"bridge.worker_timeout_s", "20", endpoint, {}},
      {"bridge.pause_timeout_s", "20", endpoint, {}},
      {"bridge.assignment_timeout_s", "20", endpoint, {}},
      {"bridge.max_queued_mb", "20", endpoint, {}},
      {"bridge.journal_fsync", "always", endpoint, {}},
      {"bridge.journal_max_mb", "20", endpoint, {}},
      {"bridge.curve.trainer_secret",
       "/no/trainer.key",
       endpoint,
       {"bridge.curve.allowed_workers=/no/allowed", "bridge.curve.trainer_secret=/no/other.key"}},
      {"bridge.curve.worker_secret",
       "/no/worker.key",
       worker_side,
       {"bridge.curve.trainer_public=/no/t.pub", "bridge.curve.worker_secret=/no/other.key"}},
      {"weights.directory", files().path("versions"),
       [](const rl::Config& c) {
         std::error_code ignored;
         fs::remove_all(files().path("versions"), ignored);
         live(c, {});
         return std::string(fs::exists(files().path("versions")) ? "written" : "not");
       },
       live_run},
      {"weights.keep", "1",
       [](const rl::Config& c) {
         fs::remove_all(files().path("kept"));
         live(c, {});
         return std::to_string(std::distance(fs::directory_iterator(files().path("kept")), {}));
       },
       with(live_run,
            {"weights.directory=" + files().path("kept"), "weights.keep=0", "train.steps=3"})},
      {"weights.encoding", "dense", weights_sent,
       with(live_run,
            {"weights.shared_memory=false", "train.steps=3", "optimizer.learning_rate=1e-7"})},
      {"weights.full_every", "1", weights_sent,
       with(live_run,
            {"weights.shared_memory=false", "train.steps=3", "optimizer.learning_rate=1e-7"})},
      {"weights.shared_memory", "false", weights_sent, live_run},
      {"algorithm.dynamic_sampling", "refill", refilled, {}},
      {"algorithm.dynamic_sampling_rounds",
       "2",
       refilled,
       {"algorithm.dynamic_sampling=refill", "algorithm.dynamic_sampling_rounds=4"}},
      {"sp.async_ulysses", "true", sequence_plan, {"parallel.ulysses_parallel_size=2"}},
      {"sp.heads_k_stride",
       "1",
       sequence_plan,
       {"parallel.ringattn_parallel_size=2", "sp.ring_impl=all_gather"}},
      {"weights.publish_dtype",
       "bfloat16",
       [](const rl::Config& c) { return std::string(rl::to_string(rl::published_dtype(c))); },
       {}},
  };
}

const std::vector<Refused>& refused() {
  static const std::vector<Refused> all{{"parallel.cp_fsdp_mode", "none"}};
  return all;
}

const std::vector<Elsewhere>& elsewhere() {
  static const std::vector<Elsewhere> all{
      {"rollout.num_workers", "tests/tools/preflight_test.py",
       "test_num_workers_decides_how_many_workers_are_started"},
      {"rollout.worker_threads", "tools/cmd_rollout.cpp",
       "at::set_num_threads(static_cast<int>(loaded->config.rollout.worker_threads))"},
      {"rollout.server_options.model", "rl/worker/make_server.cpp",
       "from.model.empty() ? config.model.path : from.model"},
      {"rollout.server_options.concurrency", "tests/rl/server_worker_test.cpp",
       "server_options.concurrency = 1"},
      {"rollout.server_options.weights", "tests/rl/child_server_test.cpp",
       "restart route: a command that ends"},
      {"rollout.server_options.weights_directory", "rl/worker/served_directories.cpp",
       "weights_directory"},
      {"rollout.server_options.pause", "tests/rl/server_worker_test.cpp",
       "abort ends what runs at once and samples it anew"},
      {"rollout.server_options.start_command", "tests/rl/child_server_test.cpp",
       "restart route: a command that ends"},
      {"checkpoint.every_minutes", "tests/tools/run_lifecycle_test.py",
       "checkpoint.every_minutes=0.005"},
      {"eval.before_training", "rl/trainer/evaluation.cpp", "eval.before_training"},
      {"rollout.server_options.probe_tokens", "rl/worker/served_weights.cpp", "probe_tokens"},
      {"rollout.server_options.probe_tolerance", "rl/worker/served_weights.cpp", "probe_tolerance"},
      {"train.threads", "tools/distributed.cpp", "return static_cast<int>(config.train.threads)"},
      {"parallel.group_scope", "tools/distributed.cpp", "group_scope(config.parallel.group_scope)"},
      {"parallel.collective_timeout_s", "tools/distributed.cpp",
       "config.parallel.collective_timeout_s * 1000"},
      {"sp.reproducible", "tests/oracle/reproducible.py", "sp.reproducible={VIRTUAL}"},
      {"bridge.curve.allowed_workers", "rl/rollouts/trainer_options.cpp",
       "bridge::read_allowed_keys(curve.allowed_workers)"},
      {"bridge.curve.trainer_public", "rl/worker/worker_link.cpp",
       "bridge::read_public_key(curve.trainer_public)"},
      {"log.level", "tests/tools/preflight_test.py", "test_log_level_decides_what_is_logged"},
      {"log.progress", "rl/trainer/training_run.cpp",
       "const ProgressStyle style = config().log.progress"},
  };
  return all;
}

std::vector<Effect> all_effects() {
  std::vector<Effect> all = training_effects();
  for (const auto& more : {algorithm_effects(), rollout_effects()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace

TEST_CASE("every key has one entry in the table of effects, and every entry is a key") {
  std::multiset<std::string> entries;
  for (const Effect& effect : all_effects()) entries.insert(effect.key);
  for (const Refused& entry : refused()) entries.insert(entry.key);
  for (const Elsewhere& entry : elsewhere()) entries.insert(entry.key);
  const std::set<std::string> keys(rl::known_keys().begin(), rl::known_keys().end());
  for (const std::string& key : keys) {
    INFO(key);
    CHECK(entries.count(key) == 1);
  }
  for (const std::string& key : entries) {
    INFO(key);
    CHECK(keys.contains(key));
  }
}

TEST_CASE("changing a key changes what the code that reads it makes of it") {
  std::map<std::string, std::string>
      before;  // by consumer-independent text of the base: bases are shared
  for (const Effect& effect : all_effects()) {
    INFO(effect.key << " = " << effect.value);
    const Words base = with(common(), effect.base);
    const rl::Config plain = rl::load_config_or_throw({}, base);
    const rl::Config changed =
        rl::load_config_or_throw({}, with(base, {effect.key + "=" + effect.value}));
    REQUIRE(rl::dump(plain) != rl::dump(changed));
    const auto target = effect.consumer.target<std::string (*)(const rl::Config&)>();
    const std::string name =
        (target == nullptr ? effect.key
                           : std::to_string(reinterpret_cast<std::uintptr_t>(*target))) +
        rl::dump(plain);
    if (!before.contains(name)) {
      before[name] = effect.consumer(plain);
    }
    CHECK(before[name] != effect.consumer(changed));
  }
}

TEST_CASE("a run repeats itself, so that a difference is the key's") {
  const rl::Config config = rl::load_config_or_throw({}, with(common(), kKl));
  CHECK(recorded(config) == recorded(config));
  const rl::Config critic = rl::load_config_or_throw({}, with(common(), kGae));
  CHECK(recorded(critic) == recorded(critic));
  CHECK(sampled(config) == sampled(config));
  CHECK(scored(config) == scored(config));
}

TEST_CASE("keys of features that do not exist are refused at every value but the default") {
  for (const Refused& entry : refused()) {
    const auto errors = rl::load_config({}, {entry.key + "=" + entry.value}).errors;
    REQUIRE(errors.size() == 1);
    CHECK_THAT(errors[0], Catch::Contains(entry.key));
  }
}

TEST_CASE("tests and code that keys are said to be read by exist") {
  for (const Elsewhere& entry : elsewhere()) {
    INFO(entry.key << " in " << entry.file);
    bool found = false;
    if (fs::is_directory(kSource / entry.file)) {
      for (const auto& file : fs::recursive_directory_iterator(kSource / entry.file)) {
        found = found || (file.is_regular_file() &&
                          bytes_of(file.path()).find(entry.text) != std::string::npos);
      }
    } else {
      found = bytes_of(kSource / entry.file).find(entry.text) != std::string::npos;
    }
    CHECK(found);
  }
}
