#include "rl/preflight/model_files.h"

#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include "engine/io/adapter_directory.h"
#include "engine/io/hf_directory.h"
#include "engine/io/value_model_files.h"
#include "engine/layers/decoder_layer.h"
#include "engine/runner/collator_options.h"
#include "rl/config/adapter_names.h"
#include "rl/config/checks.h"
#include "rl/config/task.h"
#include "rl/config/teacher.h"
#include "rl/sampling/prompt_scorer.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/sharding.h"
#include "rl/step/teacher_server.h"

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

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

// Checks what the parallel layout demands of every model of a run.
void check_experts(const Config& config, const std::string& key, const engine::ModelConfig& model,
                   PreflightReport& report) {
  std::string problem = expert_count_problem(config.parallel, model.experts.count);
  if (!problem.empty()) {
    report.mistakes.push_back({"parallel.expert_parallel_size",
                               std::move(problem) + (key == "model.path" ? "" : " (" + key + ")")});
  }
}

// Whether the layer that predicts a further token can be trained. From here on the model has it.
void check_further(const Config& config, const std::string& key, engine::ModelConfig& model,
                   PreflightReport& report) {
  if (config.model.mtp_loss_coef == 0.0 || (key != "model.path" && key != "model.reference_path")) {
    return;
  }
  if (const std::string problem = engine::further_problem(model); !problem.empty()) {
    report.mistakes.push_back({"model.mtp_loss_coef", "is " + text_of(config.model.mtp_loss_coef) +
                                                          ", but " + problem + " (" + key +
                                                          "); expected 0"});
    return;
  }
  model.on_disk.predicts_further = true;
}

// The configuration of the model at `path`, or a mistake of `key`.
std::optional<engine::ModelConfig> read_model(const Config& config, const std::string& key,
                                              const std::string& path, PreflightReport& report) {
  const std::string wrong = model_directory_problem(path);
  if (!wrong.empty()) {
    report.mistakes.push_back({key, wrong});
    return std::nullopt;
  }
  try {
    engine::ModelConfig model =
        engine::load_model_config(path, {.vision = !config.data.image_key.empty()});
    check_experts(config, key, model, report);
    check_further(config, key, model, report);
    if (const auto& fields = model.on_disk.fields_passed_over; !fields.empty()) {
      report.notes.push_back(key +
                             ": fields of config.json that change nothing here are passed "
                             "over: " +
                             joined(fields));
    }
    if (model.attention.plain_tokens > 0) {
      report.notes.push_back(
          key + ": documents of more than " + std::to_string(model.attention.plain_tokens) +
          " tokens are refused: beyond that length of dual_chunk_attention_config vLLM attends in "
          "chunks, which this program does not");
    }
    return model;
  } catch (const std::exception& error) {
    report.mistakes.push_back({key, error.what()});
    return std::nullopt;
  }
}

// of_rewards: of a reward model, which may be a language model's.
void check_weights(const std::string& key, const std::string& path,
                   const engine::ModelConfig& model, bool of_rewards, PreflightReport& report) {
  try {
    for (std::string& problem : of_rewards ? engine::check_reward_headers(path, model)
                                           : engine::check_weight_headers(path, model)) {
      report.mistakes.push_back({key, std::move(problem)});
    }
    for (const auto& [part, count] : engine::unused_tensors(path, model)) {
      const bool kept = !of_rewards && engine::predicts_further(model, part);
      report.notes.push_back(
          key + ": the " + std::to_string(count) + " tensors " + part +
          (kept ? "* predict further tokens and are not trained. Saved models hold them as they are"
                : "* are not read: they take no part in text. Saved models do not hold them"));
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
    for (const std::string& field : files.tokenizer->passed_over()) {
      report.notes.push_back(path.string() + ": " + field +
                             " is not used; rollout.max_prompt_tokens and data.max_length limit "
                             "lengths, and nothing is padded");
    }
  } catch (const std::exception& error) {
    report.mistakes.push_back({"model.path", error.what()});
    return;
  }
  const std::string wrong = files.model ? vocabulary_problem(*files.tokenizer, *files.model) : "";
  if (!wrong.empty()) {
    report.mistakes.push_back({"model.path", path.string() + " " + wrong});
  }
}

// Checks the parallel layout against a model's heads. key: of its path.
void check_heads(const Config& config, const std::string& key, const engine::ModelConfig& model,
                 PreflightReport& report) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t tensor = parallel.tensor_parallel_size;
  const int64_t most = engine::most_ulysses_ranks(model, tensor);
  const bool few_key_heads = engine::most_ulysses_ranks(model) < model.num_attention_heads;
  const std::string heads =
      std::to_string(most) +
      (few_key_heads ? " key heads in its delta nets (linear_num_key_heads)" : " query heads") +
      (tensor > 1 ? " for each tensor-parallel rank that has any" : "") +
      "; expected at most that, and ring attention for the rest";
  const std::string has = key == "model.path" ? ", but the model has " : ", but " + key + " has ";
  if (parallel.ulysses_parallel_size > most) {
    report.mistakes.push_back(
        {"parallel.ulysses_parallel_size",
         "is " + std::to_string(parallel.ulysses_parallel_size) + has + heads});
  }
  if (config.sp.method == SpMethod::kUlysses && parallel.context_parallel_size > most) {
    report.mistakes.push_back(
        {"parallel.context_parallel_size", "is " + std::to_string(parallel.context_parallel_size) +
                                               " under sp.method ulysses" + has + heads});
  }
}

void check_router_replay(const Config& config, const engine::ModelConfig& model,
                         PreflightReport& report) {
  const RouterReplay replay = config.algorithm.router_replay;
  if (replay != RouterReplay::kNone &&
      !engine::any_layer_supports(model, engine::Feature::kRoutes)) {
    report.mistakes.push_back(
        {"algorithm.router_replay", "is " + std::string(to_string(replay)) + ", but the model in " +
                                        config.model.path + " has no experts; expected none"});
  }
}

void check_router_balance(const Config& config, const engine::ModelConfig& model,
                          PreflightReport& report) {
  const ModelConfig& settings = config.model;
  const auto refuse = [&](const char* key, double value, const std::string& why) {
    report.mistakes.push_back({key, "is " + text_of(value) + ", but the model in " + settings.path +
                                        " has no " + why + "; expected 0"});
  };
  if (settings.router_aux_loss_coef > 0 &&
      !engine::any_layer_supports(model, engine::Feature::kRoutes)) {
    refuse("model.router_aux_loss_coef", settings.router_aux_loss_coef, "experts");
  }
  if (settings.router_bias_update_rate > 0 &&
      !engine::any_layer_supports(model, engine::Feature::kRouterCorrections)) {
    refuse("model.router_bias_update_rate", settings.router_bias_update_rate,
           "corrections of routers (e_score_correction_bias)");
  }
}

// What adapters and a quantised base ask of the model.
void check_adapted_model(const Config& config, const engine::ModelConfig& model,
                         PreflightReport& report) {
  const LoraConfig& lora = config.lora;
  try {
    engine::check_adapter_options(model, adapter_options(lora));
  } catch (const c10::Error& error) {
    report.mistakes.push_back({"lora.target_modules", error.what_without_backtrace()});
  }
  if (lora.rank > model.hidden_size) {
    report.mistakes.push_back(
        {"lora.rank", "is " + std::to_string(lora.rank) + ", but the model is " +
                          std::to_string(model.hidden_size) +
                          " wide (hidden_size): such adapters have more parameters than the "
                          "weights; expected at most that, or 0 to train all weights"});
  }
  const engine::Support packed = engine::supports(model, engine::Feature::kPackedBase);
  if (lora.base != LoraBase::kModel && !packed) {
    report.mistakes.push_back({"lora.base", "is " + std::string(to_string(lora.base)) + ", but " +
                                                packed.reason() + " (model_type " +
                                                model.model_type + "); expected model"});
  }
}

// Whether the adapters in a directory are those that lora.* describes.
void check_adapter_start(const std::string& path, const LoraConfig& lora, PreflightReport& report) {
  try {
    const engine::AdapterOptions stored = engine::read_adapter_options(path);
    const engine::AdapterOptions wanted = adapter_options(lora);
    if (!(stored == wanted)) {
      report.mistakes.push_back({"lora.path", "is " + path + ", which holds adapters of " +
                                                  engine::describe(stored) +
                                                  "; lora.rank, alpha and target_modules ask for " +
                                                  engine::describe(wanted)});
    }
  } catch (const std::exception& error) {
    report.mistakes.push_back({"lora.path", error.what()});
  }
}

// Checks lora.path. Says what adapters change about other settings.
void check_adapters(const Config& config, const engine::ModelConfig* model,
                    PreflightReport& report) {
  const LoraConfig& lora = config.lora;
  if (lora.rank == 0) {
    return;
  }
  if (model != nullptr) {
    check_adapted_model(config, *model, report);
  }
  if (config.sp.async_ulysses == AsyncUlysses::kTrue) {
    report.notes.push_back(
        "sp.async_ulysses: projections with adapters do not overlap the exchange of heads; the "
        "policy uses the synchronous form");
  }
  if (lora.path.empty()) {
    return;
  }
  std::vector<std::string> names = adapter_names(lora);
  if (names.empty()) {
    names.emplace_back();
  }
  for (const std::string& name : names) {
    check_adapter_start(adapter_start(lora, name), lora, report);
  }
}

void check_reference(const Config& config, const ModelFiles& files, PreflightReport& report) {
  const std::string& path = config.model.reference_path;
  if (!has_reference(config) || path.empty()) {
    return;
  }
  const auto model = read_model(config, "model.reference_path", path, report);
  if (!model) {
    return;
  }
  if (config.model.init == ModelInit::kPretrained) {
    check_weights("model.reference_path", path, *model, /*of_rewards=*/false, report);
  }
  if (files.model && model->vocab_size != files.model->vocab_size) {
    report.mistakes.push_back(
        {"model.reference_path", path + "/config.json: vocab_size is " +
                                     std::to_string(model->vocab_size) + ", the policy's is " +
                                     std::to_string(files.model->vocab_size)});
  }
}

// What is wrong with a run that has no teacher.
void check_no_teacher(const Config& config, PreflightReport& report) {
  const std::string expected = "expected algorithm.distillation.teacher, the directory of a model";
  if (config.algorithm.preset == "opd") {
    report.mistakes.push_back(
        {"algorithm.preset",
         "is opd, which distils from a teacher, and there is none; " + expected});
  }
  if (config.algorithm.task == Task::kRl && config.rollout.reward == kNoReward) {
    report.mistakes.push_back({"rollout.reward",
                               "is none, and there is no teacher: nothing is "
                               "learned; expected a reward, or " +
                                   expected.substr(9)});
  }
}

// Whether token ids mean the same to both.
void check_same_vocabulary(const engine::Tokenizer& policy, const std::string& key,
                           const std::string& teacher, PreflightReport& report) {
  const fs::path file = fs::path(teacher) / "tokenizer.json";
  if (!fs::exists(file)) {
    report.notes.push_back(key + ": " + teacher +
                           " has no tokenizer.json; its vocabulary is taken for the policy's");
    return;
  }
  try {
    const engine::Tokenizer other = engine::Tokenizer::load(file);
    for (int64_t id = 0; id < policy.id_bound(); ++id) {
      const std::vector<int64_t> one{id};
      if (policy.decode(one, false) != other.decode(one, false)) {
        report.mistakes.push_back({key, "is " + teacher + ", whose token " + std::to_string(id) +
                                            " is \"" + other.decode(one, false) +
                                            "\", the policy's is \"" + policy.decode(one, false) +
                                            "\"; expected a teacher with the same vocabulary"});
        return;
      }
    }
  } catch (const std::exception& error) {
    report.mistakes.push_back({key, error.what()});
  }
}

// A teacher in a directory.
void check_teacher_model(const Config& config, const std::string& key, const std::string& path,
                         const ModelFiles& files, PreflightReport& report) {
  const auto model = read_model(config, key, path, report);
  if (!model) {
    return;
  }
  if (config.model.init == ModelInit::kPretrained || path != config.model.path) {
    check_weights(key, path, *model, /*of_rewards=*/false, report);
  }
  check_heads(config, key, *model, report);
  if (files.model && model->vocab_size < files.model->vocab_size) {
    report.mistakes.push_back({key, path + "/config.json: vocab_size is " +
                                        std::to_string(model->vocab_size) + ", the policy's is " +
                                        std::to_string(files.model->vocab_size) +
                                        "; expected at least that"});
  }
  if (files.model && files.tokenizer) {
    check_same_vocabulary(*files.tokenizer, key, path, report);
  }
}

// A teacher on a server. One that does not answer yet is no mistake: a run may wait for it.
void check_teacher_server(const Config& config, const std::string& key, const std::string& url,
                          PreflightReport& report) {
  constexpr std::chrono::seconds kPatience{5};
  try {
    const TeacherServer server(config.algorithm.distillation, url, /*words=*/1);
    if (const std::string problem = server.problem(kPatience); !problem.empty()) {
      report.notes.push_back("WARNING: the server of " + key + " does not answer: " + problem +
                             "; a run waits for it for algorithm.distillation.server_timeout_s");
    }
  } catch (const std::invalid_argument& error) {
    report.mistakes.push_back({key, error.what()});
  }
}

void check_teachers(const Config& config, const ModelFiles& files, PreflightReport& report) {
  const DistillationConfig& distillation = config.algorithm.distillation;
  if (config.algorithm.task != Task::kRl || !has_teacher(config.algorithm)) {
    check_no_teacher(config, report);
    return;
  }
  for (const TeacherEntry& teacher : teachers_of(distillation)) {
    const std::string key = teacher.source.empty() ? "algorithm.distillation.teacher"
                                                   : "algorithm.distillation.teachers";
    if (teacher.is_server()) {
      check_teacher_server(config, key, teacher.place, report);
    } else {
      check_teacher_model(config, key, teacher.place, files, report);
    }
  }
  if (files.model && distillation.over == DistillationOver::kTopK &&
      distillation.top_k > files.model->vocab_size) {
    report.mistakes.push_back(
        {"algorithm.distillation.top_k", "is " + std::to_string(distillation.top_k) +
                                             ", but the policy has " +
                                             std::to_string(files.model->vocab_size) +
                                             " words (vocab_size); expected at most that"});
  }
}

}  // namespace

std::string model_directory_problem(const fs::path& path) {
  if (!fs::exists(path)) {
    return "is " + path.string() + ", which does not exist" + hub_advice(path) + "; " + kExpected;
  }
  if (const std::string problem = engine::gguf_problem(path); !problem.empty()) {
    return "is " + path.string() + ": " + problem;
  }
  if (!fs::is_directory(path)) {
    return "is the file " + path.string() + ", expected a directory (" + kExpected + ")";
  }
  if (fs::exists(path / "config.json")) {
    return "";
  }
  if (fs::exists(path / "checkpoint-final/config.json")) {
    return "is " + path.string() + ", the directory of a run; its model is " +
           (path / "checkpoint-final").string();
  }
  if (fs::exists(path / "manifest.json")) {
    return "is " + path.string() +
           ", a checkpoint; `ringside export` makes a model's directory of it";
  }
  if (fs::exists(path / "adapter_config.json")) {
    return "is " + path.string() +
           ", which holds an adapter (adapter_config.json); expected its base model, and the "
           "adapter in lora.path";
  }
  return "";
}

ModelFiles check_model_files(const Config& config, bool needs_tokenizer, PreflightReport& report) {
  ModelFiles files;
  if (config.model.path.empty()) {
    report.mistakes.push_back({"model.path", std::string("is not set; ") + kExpected});
    return files;
  }
  files.model = read_model(config, "model.path", config.model.path, report);
  if (files.model && config.model.init == ModelInit::kPretrained) {
    check_weights("model.path", config.model.path, *files.model,
                  config.algorithm.task == Task::kRewardModel, report);
  }
  if (needs_tokenizer && fs::is_directory(config.model.path)) {
    check_tokenizer(config, files, report);
  }
  if (files.model) {
    check_heads(config, "model.path", *files.model, report);
    check_router_replay(config, *files.model, report);
    check_router_balance(config, *files.model, report);
    if (std::string problem = async_ulysses_problem(config, *files.model); !problem.empty()) {
      report.mistakes.push_back({"sp.async_ulysses", std::move(problem)});
    }
    if (std::string problem = tensor_parallel_problem(config, *files.model); !problem.empty()) {
      report.mistakes.push_back({"parallel.tensor_parallel_size", std::move(problem)});
    }
  }
  check_adapters(config, files.model ? &*files.model : nullptr, report);
  check_reference(config, files, report);
  check_teachers(config, files, report);
  const std::string& critic = config.algorithm.critic.model_path;
  if (has_critic(config) && !critic.empty()) {
    read_model(config, "algorithm.critic.model_path", critic, report);
  }
  return files;
}

}  // namespace ringside::rl
