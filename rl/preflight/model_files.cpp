#include "rl/preflight/model_files.h"

#include <exception>
#include <utility>

#include "engine/io/adapter_directory.h"
#include "engine/io/hf_directory.h"
#include "rl/sampling/prompt_scorer.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExpected =
    "expected a Hugging Face directory: config.json, tokenizer.json, *.safetensors";

// ".../Qwen/Qwen3-0.6B" where not even ".../Qwen" exists: most likely the name of a model on the
// hub.
std::string hub_advice(const fs::path& path) {
  const fs::path owner = path.parent_path();
  if (fs::exists(owner) || !fs::exists(owner.parent_path())) {
    return "";
  }
  const std::string name = (owner.filename() / path.filename()).string();
  return "; names of the Hugging Face hub are not downloaded: `hf download " + name +
         " --local-dir DIR`, then DIR";
}

// The reason why `path` cannot be a model's directory; "" when it can.
std::string directory_problem(const fs::path& path) {
  if (!fs::exists(path)) {
    return "is " + path.string() + ", which does not exist" + hub_advice(path) + "; " + kExpected;
  }
  if (!fs::is_directory(path)) {
    return "is the file " + path.string() + ", expected a directory (" + kExpected + ")";
  }
  if (!fs::exists(path / "config.json") && fs::exists(path / "adapter_config.json")) {
    return "is " + path.string() +
           ", which holds an adapter (adapter_config.json); expected its base model, and the "
           "adapter in lora.path";
  }
  return "";
}

// The configuration of the model at `path`, or a mistake of `key`.
std::optional<engine::ModelConfig> read_model(const std::string& key, const std::string& path,
                                              PreflightReport& report) {
  const std::string wrong = directory_problem(path);
  if (!wrong.empty()) {
    report.mistakes.push_back({key, wrong});
    return std::nullopt;
  }
  try {
    return engine::load_model_config(path);
  } catch (const std::exception& error) {
    report.mistakes.push_back({key, error.what()});
    return std::nullopt;
  }
}

void check_weights(const std::string& key, const std::string& path,
                   const engine::ModelConfig& model, PreflightReport& report) {
  try {
    for (std::string& problem : engine::check_weight_headers(path, model)) {
      report.mistakes.push_back({key, std::move(problem)});
    }
  } catch (const std::exception& error) {
    report.mistakes.push_back({key, error.what()});
  }
}

void check_tokenizer(const Config& config, ModelFiles& files, PreflightReport& report) {
  const fs::path path = fs::path(config.model.path) / "tokenizer.json";
  try {
    if (!fs::exists(path) && fs::exists(path.parent_path() / "tokenizer.model")) {
      throw std::runtime_error(
          path.string() +
          " does not exist, only tokenizer.model; expected the fast form, which "
          "transformers' AutoTokenizer writes with save_pretrained");
    }
    files.tokenizer = engine::Tokenizer::load(path);
  } catch (const std::exception& error) {
    report.mistakes.push_back({"model.path", error.what()});
    return;
  }
  const std::string wrong = files.model ? vocabulary_problem(*files.tokenizer, *files.model) : "";
  if (!wrong.empty()) {
    report.mistakes.push_back({"model.path", path.string() + " " + wrong});
  }
}

// Checks the parallel layout against the model's heads.
void check_heads(const Config& config, const engine::ModelConfig& model, PreflightReport& report) {
  const ParallelConfig& parallel = config.parallel;
  const std::string heads = std::to_string(model.num_attention_heads) +
                            " query heads; expected at most that, and ring "
                            "attention for the rest";
  if (parallel.ulysses_parallel_size > model.num_attention_heads) {
    report.mistakes.push_back(
        {"parallel.ulysses_parallel_size",
         "is " + std::to_string(parallel.ulysses_parallel_size) + ", but the model has " + heads});
  }
  if (config.sp.method == SpMethod::kUlysses &&
      parallel.context_parallel_size > model.num_attention_heads) {
    report.mistakes.push_back({"parallel.context_parallel_size",
                               "is " + std::to_string(parallel.context_parallel_size) +
                                   " under sp.method ulysses, but the model has " + heads});
  }
}

void check_router_replay(const Config& config, const engine::ModelConfig& model,
                         PreflightReport& report) {
  const RouterReplay replay = config.algorithm.router_replay;
  if (replay != RouterReplay::kNone && expert_layers(model).empty()) {
    report.mistakes.push_back(
        {"algorithm.router_replay", "is " + std::string(to_string(replay)) + ", but the model in " +
                                        config.model.path + " has no experts; expected none"});
  }
}

// Checks lora.path. Says what adapters change about other settings.
void check_adapters(const Config& config, const engine::ModelConfig* model,
                    PreflightReport& report) {
  const LoraConfig& lora = config.lora;
  if (lora.rank == 0) {
    return;
  }
  try {
    if (model != nullptr) {
      engine::check_adapter_options(*model, adapter_options(lora));
    }
  } catch (const c10::Error& error) {
    report.mistakes.push_back({"lora.target_modules", error.what_without_backtrace()});
  }
  if (config.sp.async_ulysses) {
    report.notes.push_back(
        "sp.async_ulysses: projections with adapters do not overlap the exchange of heads; the "
        "policy uses the synchronous form");
  }
  if (lora.path.empty()) {
    return;
  }
  try {
    const engine::AdapterOptions stored = engine::read_adapter_options(lora.path);
    const engine::AdapterOptions wanted = adapter_options(lora);
    if (!(stored == wanted)) {
      report.mistakes.push_back({"lora.path", "is " + lora.path + ", which holds adapters of " +
                                                  engine::describe(stored) +
                                                  "; lora.rank, alpha and target_modules ask for " +
                                                  engine::describe(wanted)});
    }
  } catch (const std::exception& error) {
    report.mistakes.push_back({"lora.path", error.what()});
  }
}

void check_reference(const Config& config, const ModelFiles& files, PreflightReport& report) {
  const bool used = config.algorithm.kl_coef > 0 && config.algorithm.kl_to == KlTo::kReference;
  const std::string& path = config.model.reference_path;
  if (!used || path.empty()) {
    return;
  }
  const auto model = read_model("model.reference_path", path, report);
  if (!model) {
    return;
  }
  if (config.model.init == ModelInit::kPretrained) {
    check_weights("model.reference_path", path, *model, report);
  }
  if (files.model && model->vocab_size != files.model->vocab_size) {
    report.mistakes.push_back(
        {"model.reference_path", path + "/config.json: vocab_size is " +
                                     std::to_string(model->vocab_size) + ", the policy's is " +
                                     std::to_string(files.model->vocab_size)});
  }
}

}  // namespace

ModelFiles check_model_files(const Config& config, bool needs_tokenizer, PreflightReport& report) {
  ModelFiles files;
  if (config.model.path.empty()) {
    report.mistakes.push_back({"model.path", std::string("is not set; ") + kExpected});
    return files;
  }
  files.model = read_model("model.path", config.model.path, report);
  if (files.model && config.model.init == ModelInit::kPretrained) {
    check_weights("model.path", config.model.path, *files.model, report);
  }
  if (needs_tokenizer && fs::is_directory(config.model.path)) {
    check_tokenizer(config, files, report);
  }
  if (files.model) {
    check_heads(config, *files.model, report);
    check_router_replay(config, *files.model, report);
    if (std::string problem = async_ulysses_problem(config, *files.model); !problem.empty()) {
      report.mistakes.push_back({"sp.async_ulysses", std::move(problem)});
    }
  }
  check_adapters(config, files.model ? &*files.model : nullptr, report);
  if (config.algorithm.name == AlgorithmName::kSft) {
    return files;
  }
  check_reference(config, files, report);
  const std::string& critic = config.algorithm.critic.model_path;
  if (config.algorithm.advantage.estimator == AdvantageEstimator::kGae && !critic.empty()) {
    read_model("algorithm.critic.model_path", critic, report);
  }
  return files;
}

}  // namespace ringside::rl
