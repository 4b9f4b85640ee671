#include "tools/commands/command.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "rl/config/schema.h"
#include "rl/data/sft_file.h"
#include "rl/preflight/model_files.h"
#include "rl/report/log.h"
#include "tools/commands/installed_files.h"

namespace ringside::tools {
namespace {

bool is_known_key(const std::string& word) {
  const auto& keys = rl::known_keys();
  return std::find(keys.begin(), keys.end(), word) != keys.end();
}

// The mistake in words[at], which is neither an assignment nor a file; "" when it may be a recipe.
// Skips the words that the message covers.
std::string mistake_at(const std::vector<std::string>& words, std::size_t& at) {
  const std::string word = words[at];
  if (at + 1 < words.size() && words[at + 1] == "=") {
    const std::string value = at + 2 < words.size() ? words[at + 2] : "VALUE";
    at += at + 2 < words.size() ? 2 : 1;
    return word + " = " + value + ": expected " + word + "=" + value + ", without blanks";
  }
  if (word == "=") {
    return "=: stands alone; expected key.sub=value, without blanks";
  }
  const std::size_t colon = word.find(':');
  if (colon != std::string::npos && is_known_key(word.substr(0, colon))) {
    return word + ": expected " + word.substr(0, colon) + "=" + word.substr(colon + 1);
  }
  return is_known_key(word) ? word + ": is a key without a value; expected " + word + "=VALUE" : "";
}

rl::log::Level log_level(rl::LogLevel level) {
  switch (level) {
    case rl::LogLevel::kDebug:
      return rl::log::Level::kDebug;
    case rl::LogLevel::kInfo:
      return rl::log::Level::kInfo;
    case rl::LogLevel::kWarn:
      return rl::log::Level::kWarn;
    case rl::LogLevel::kError:
      return rl::log::Level::kError;
  }
  throw std::invalid_argument("unknown log.level");
}

void print_count(std::size_t mistakes) {
  std::cerr << mistakes << (mistakes == 1 ? " mistake" : " mistakes") << "; nothing was started\n";
}

// "recipe.yaml:3: data.train: ..."; a key at its default has no place in the message.
std::string sentence(const rl::LoadedConfig& loaded, const rl::Mistake& mistake) {
  const auto origin = loaded.origins.find(mistake.key);
  const bool written = origin != loaded.origins.end() && origin->second != "default";
  const bool unset = mistake.text.starts_with("is not set");
  return (written ? origin->second + ": " : "") + mistake.key + (unset ? " " : ": ") + mistake.text;
}

}  // namespace

namespace {

// The file that a recipe's word means: a path, or the name of a recipe or fragment that comes with
// the program.
std::filesystem::path recipe_file(const std::string& word) {
  const std::filesystem::path files = installed_files();
  for (const std::filesystem::path& candidate : {files / "recipes" / word, files / word}) {
    if (!files.empty() && !std::filesystem::exists(word) &&
        std::filesystem::is_regular_file(candidate)) {
      return candidate;
    }
  }
  return word;
}

}  // namespace

ConfigInputs split_inputs(const std::vector<std::string>& words) {
  ConfigInputs inputs;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool file = std::filesystem::exists(word);
    if (!file && word != "=" && word.find('=') != std::string::npos) {
      inputs.overrides.push_back(word);
      continue;
    }
    const std::string mistake = file ? "" : mistake_at(words, i);
    if (mistake.empty()) {
      inputs.recipes.push_back(recipe_file(word));
    } else {
      inputs.mistakes.push_back("command line: " + mistake);
    }
  }
  return inputs;
}

namespace {

// train.epochs becomes train.steps, which everything else counts in. A file that cannot be read is
// reported by the preflight.
void apply_epochs(rl::LoadedConfig& loaded) {
  if (loaded.config.train.epochs == 0) {
    return;
  }
  try {
    loaded.config.train.steps = rl::steps_of_epochs(loaded.config);
    loaded.origins["train.steps"] = "train.epochs";
  } catch (const std::exception&) {
  }
}

}  // namespace

rl::LoadedConfig load(const ConfigInputs& inputs) {
  rl::LoadedConfig loaded = rl::load_config(inputs.recipes, inputs.overrides, inputs.use);
  loaded.errors.insert(loaded.errors.begin(), inputs.mistakes.begin(), inputs.mistakes.end());
  if (loaded.ok()) {
    rl::log::set_level(log_level(loaded.config.log.level));
    apply_epochs(loaded);
  }
  return loaded;
}

void print_errors(const rl::LoadedConfig& loaded) {
  for (const std::string& error : loaded.errors) {
    std::cerr << error << "\n";
  }
  print_count(loaded.errors.size());
}

std::optional<rl::LoadedConfig> load_or_print_errors(const ConfigInputs& inputs) {
  rl::LoadedConfig loaded = load(inputs);
  if (loaded.ok()) {
    return loaded;
  }
  print_errors(loaded);
  return std::nullopt;
}

std::optional<rl::LoadedConfig> load_for_sampling(const std::filesystem::path& model,
                                                  const std::vector<std::string>& words) {
  ConfigInputs inputs = split_inputs(words);
  inputs.use = rl::ConfigUse::kSampleModel;
  inputs.overrides.push_back("model.path=" + model.string());
  inputs.overrides.push_back("model.init=pretrained");
  auto loaded = load_or_print_errors(inputs);
  if (!loaded || !check_model_directory(model)) {
    return std::nullopt;
  }
  if (loaded->config.train.threads > 0) {
    at::set_num_threads(static_cast<int>(loaded->config.train.threads));
  }
  return loaded;
}

bool pass_preflight(const rl::LoadedConfig& loaded, const rl::PreflightScope& scope,
                    std::vector<std::string>& notes) {
  rl::PreflightReport report = rl::preflight(loaded.config, scope);
  for (const rl::Mistake& mistake : report.mistakes) {
    std::cerr << sentence(loaded, mistake) << "\n";
  }
  if (!report.ok()) {
    print_count(report.mistakes.size());
  }
  notes = std::move(report.notes);
  return report.ok();
}

void fit_completions(const rl::LoadedConfig& loaded, const std::vector<rl::Prompt>& prompts,
                     rl::PromptSampler& sampler) {
  const std::string key = "rollout.max_completion_tokens";
  if (loaded.origins.at(key) != "default") {
    return;
  }
  const int64_t tokens = sampler.fit_completions(prompts);
  if (tokens < loaded.config.rollout.max_completion_tokens) {
    rl::log::info(key + ": " + std::to_string(tokens) + ", what the model's positions leave");
  }
}

bool check_model_directory(const std::filesystem::path& model) {
  const std::string problem = rl::model_directory_problem(model);
  if (!problem.empty()) {
    std::cerr << "the model " << problem << "\n";
  }
  return problem.empty();
}

std::string error_text(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch != nullptr ? torch->what_without_backtrace() : error.what();
  // An error may have been wrapped in another's text on its way.
  text = text.substr(0, text.find("\nException raised from "));
  constexpr std::string_view kLabel = "[json.exception.";
  for (std::size_t at = text.find(kLabel); at != std::string::npos; at = text.find(kLabel, at)) {
    const std::size_t end = text.find("] ", at);
    text.erase(at, end == std::string::npos ? end : end + 2 - at);
  }
  return text;
}

bool check_writable(const std::string& option, const std::filesystem::path& path) {
  const bool existed = std::filesystem::exists(path);
  errno = 0;
  const bool opened = std::ofstream(path, std::ios::app).is_open();
  if (!opened) {
    std::cerr << option << " " << path.string()
              << ": cannot be written: " << std::generic_category().message(errno) << "\n";
  } else if (!existed) {
    std::filesystem::remove(path);
  }
  return opened;
}

void require_run_dir(const CLI::App& command, bool dry_run) {
  if (!dry_run && command.count("--run-dir") == 0) {
    throw CLI::RequiredError("--run-dir");
  }
}

CLI::Validator at_least_one() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        long long value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool good = error == std::errc{} && end == text.data() + text.size() && value >= 1;
        return good ? "" : "is " + text + ", expected at least 1";
      },
      "N >= 1");
}

}  // namespace ringside::tools
