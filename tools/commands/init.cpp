// Command `ringside init`: asks five questions and writes a recipe that `ringside check` accepts,
// or translates another system's configuration.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "engine/device/device_backend.h"
#include "rl/rewards/weighted_rewards.h"
#include "tools/commands/commands.h"
#include "tools/init/new_recipe.h"
#include "tools/init/questions.h"
#include "tools/init/translated_recipe.h"

namespace ringside::tools {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxGpus = 1024;

struct InitOptions {
  fs::path from;
  std::string model;
  std::string data;
  std::string task;
  std::string gpus;
  std::string run_dir;
  fs::path output = "recipe.yaml";
  bool yes = false;
};

std::string model_problem(const std::string& path) {
  if (path.starts_with("~")) {
    return "is " + path + "; ~ is not replaced here, expected the whole path";
  }
  for (const char* file : {"config.json", "tokenizer.json"}) {
    if (!fs::exists(fs::path(path) / file)) {
      return "is " + path + ", where no " + file +
             " is; expected a Hugging Face directory (`hf download NAME --local-dir DIR`)";
    }
  }
  return "";
}

std::string data_problem(const std::string& path) {
  try {
    if (!fs::is_regular_file(path)) {
      return "is " + path +
             ", which is no file; expected JSON Lines, a JSON array or Parquet of {\"prompt\": "
             "..., "
             "\"answer\": ...}";
    }
    sample_data(path);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string task_problem(const std::string& task, const DataSample& sample) {
  if ((task == "sft") != sample.supervised) {
    return "is " + task + ", but the data holds " +
           (sample.supervised ? "completions to learn from; expected sft"
                              : "prompts without completions; expected a reward");
  }
  if (task == "sft") {
    return "";
  }
  try {
    rl::parse_rewards(task);
    return "";
  } catch (const std::exception& error) {
    return std::string("is no task: ") + error.what() + ", or sft";
  }
}

std::optional<int64_t> number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good =
      error == std::errc{} && end == text.data() + text.size() && value >= 0 && value <= kMaxGpus;
  return good ? std::optional<int64_t>(value) : std::nullopt;
}

int64_t gpus_here() {
  int64_t count = 0;
  for (const engine::DeviceBackend* backend : engine::device_backends()) {
    count = backend->name() == "cpu" ? count : std::max(count, backend->device_count());
  }
  return count;
}

RecipeAnswers ask(const InitOptions& options, DataSample& sample) {
  Interview interview(std::cin, std::cout, !options.yes);
  RecipeAnswers answers;
  answers.model =
      interview.answer({"--model", "1/5 directory of the model", "", model_problem}, options.model);
  answers.data = interview.answer(
      {"--data", "2/5 file of prompts and answers, or of completions (JSONL, JSON, Parquet)", "",
       data_problem},
      options.data);
  sample = sample_data(answers.data);
  answers.task = interview.answer(
      {"--task", "3/5 task: sft, or a reward (math_answer, exact_match, code_tests, ...)",
       sample.task, [&](const std::string& task) { return task_problem(task, sample); }},
      options.task);
  const std::string gpus = interview.answer(
      {"--gpus", "4/5 GPUs of the machine that trains (0 = CPU)", std::to_string(gpus_here()),
       [](const std::string& text) {
         return number(text) ? std::string() : "is " + text + ", expected 0 to 1024";
       }},
      options.gpus);
  answers.gpus = *number(gpus);
  answers.run_dir = interview.answer(
      {"--run-dir", "5/5 directory of the run (metrics, checkpoints)",
       "runs/" + options.output.stem().string(), [](const std::string&) { return std::string(); }},
      options.run_dir);
  return answers;
}

// How this program is started from here: by its name if PATH finds it, else by its path.
std::string program_command() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed) {
    return "ringside";
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (fs::equivalent(fs::path(folder) / "ringside", program, failed)) {
      return "ringside";
    }
  }
  const fs::path here = fs::current_path(failed);
  const fs::path rest = program.lexically_relative(here);
  const bool below = !rest.empty() && *rest.begin() != "..";
  return below ? (rest.has_parent_path() ? rest.string() : "./" + rest.string()) : program.string();
}

// Prints what `ringside check` would find wrong.
bool passes_check(const fs::path& recipe) {
  const auto loaded = load_or_print_errors({.recipes = {recipe}, .overrides = {}, .mistakes = {}});
  std::vector<std::string> notes;
  return loaded && pass_preflight(*loaded, {}, notes);
}

// Prints the commands that come next.
void print_next(const InitOptions& options, const std::string& run_dir) {
  const std::string program = program_command(), recipe = options.output.string();
  std::cout << "next:\n  " << program << " check " << recipe << "\n  " << program << " run "
            << recipe << " --dry-run\n  " << program << " run " << recipe << " --run-dir "
            << run_dir << "\n";
}

// Writes the recipe of --from.
int translate(const InitOptions& options) {
  for (const auto& [name, value] :
       {std::pair{"--model", options.model}, {"--data", options.data}, {"--task", options.task}}) {
    if (!value.empty()) {
      std::cerr << name << ": is set together with --from, whose file has it; change the recipe "
                << "afterwards\n";
      return kExitUsage;
    }
  }
  const auto gpus = options.gpus.empty() ? std::optional<int64_t>(0) : number(options.gpus);
  if (!gpus) {
    std::cerr << "--gpus: is " << options.gpus << ", expected 0 to " << kMaxGpus << "\n";
    return kExitUsage;
  }
  TranslatedRecipe recipe;
  try {
    recipe = translate_recipe(read_foreign_config(options.from), *gpus);
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return kExitUsage;
  }
  std::ofstream(options.output) << recipe.yaml;
  std::cout << "written: " << options.output.string() << ", " << recipe.taken << " keys from "
            << recipe.system << "\n";
  for (const std::string& line : recipe.left) {
    std::cout << line << "\n";
  }
  std::cout << (recipe.to_dos.empty() ? "" : "to do by hand:\n");
  for (const std::string& sentence : recipe.to_dos) {
    std::cout << "  " << sentence << "\n";
  }
  print_next(options,
             options.run_dir.empty() ? "runs/" + options.output.stem().string() : options.run_dir);
  return kExitOk;
}

int init(const InitOptions& options) {
  if (fs::exists(options.output)) {
    std::cerr << "--output " << options.output.string()
              << ": exists already; recipes are not overwritten\n";
    return kExitUsage;
  }
  if (!check_writable("--output", options.output)) {
    return kExitUsage;
  }
  if (!options.from.empty()) {
    return translate(options);
  }
  DataSample sample;
  RecipeAnswers answers;
  try {
    answers = ask(options, sample);
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return kExitUsage;
  }
  answers.folder = fs::absolute(options.output).parent_path().string();
  std::string text;
  try {
    text = new_recipe(answers, sample);
  } catch (const std::runtime_error& error) {
    std::cerr << error.what() << "\n";
    return kExitUsage;
  }
  std::ofstream(options.output) << text;
  const std::string recipe = options.output.string();
  if (!passes_check(options.output)) {
    fs::remove(options.output);
    std::cerr << recipe << " is not written: the model and the data do not fit together as above\n";
    return kExitUsage;
  }
  std::cout << "written: " << recipe << "\n";
  if (!sample.messages && answers.task != "sft" &&
      text.find("text_prompts: user") == std::string::npos) {
    std::cout << "the prompts are plain text and go to the model as they are; a chat model wants "
                 "lists of messages\n";
  }
  print_next(options, answers.run_dir);
  return kExitOk;
}

}  // namespace

void add_init_command(CommandContext& context) {
  const auto options = std::make_shared<InitOptions>();
  CLI::App* command = context.app.add_subcommand(
      "init",
      "Ask five questions and write a recipe; options answer them too. --from translates a "
      "configuration of verl, TRL, axolotl or OpenRLHF");
  command->add_option("--from", options->from,
                      "configuration of another system: YAML, JSON or a shell script; what it says "
                      "goes into the recipe, and the rest is listed with the reason");
  command->add_option("--model", options->model,
                      "Hugging Face directory: config.json, tokenizer.json, *.safetensors");
  command->add_option(
      "--data", options->data,
      "JSONL, JSON array or Parquet of prompts and answers, or of completions or conversations");
  command->add_option("--task", options->task,
                      "sft, or text for rollout.reward (default: what suits the data)");
  command->add_option(
      "--gpus", options->gpus,
      "GPUs of the machine, 0 = CPU (default: those of this machine; with --from, those "
      "that the file names)");
  command->add_option("--run-dir", options->run_dir,
                      "run directory for the commands that are printed");
  command->add_option("--output", options->output, "file to write")->capture_default_str();
  command->add_flag("--yes", options->yes, "ask nothing: options, and defaults for the rest");
  command->callback([options, &context] { context.exit_code = init(*options); });
}

}  // namespace ringside::tools
