// The `ringside` executable: one subcommand per file, tools/commands.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <iostream>

#include "rl/config/schema.h"
#include "rl/config/suggest.h"
#include "rl/rewards/edit_distance.h"
#include "sp/mesh/vector_math.h"
#include "tools/commands/commands.h"
#include "tools/commands/end_process.h"
#include "tools/commands/examples.h"
#include "tools/commands/version.h"

namespace {

// The message for a first argument that names no subcommand and no option; "" for others.
std::string unknown_subcommand(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty() || app.get_option_no_throw(words.front()) != nullptr) {
    return "";
  }
  const std::string& word = words.front();
  if (word.starts_with('-')) {
    return "'" + word + "' is no option; options follow a subcommand: `ringside --help` lists them";
  }
  std::string nearest;
  std::string list;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    const std::string& name = command->get_name();
    if (name == word) {
      return "";
    }
    const auto distance = ringside::rl::edit_distance(name, word);
    if (distance <= 2 &&
        (nearest.empty() || distance < ringside::rl::edit_distance(nearest, word))) {
      nearest = name;
    }
    list += (list.empty() ? "" : ", ") + name;
  }
  return "'" + word + "' is no subcommand; " +
         (nearest.empty() ? "" : "did you mean " + nearest + "? ") + "Expected one of " + list;
}

// What an unknown option of a subcommand may have been meant for: a key, or an option of nearly the
// same name; "" for other errors.
std::string unknown_option(const CLI::App& app, const std::vector<std::string>& words) {
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) {
    return "";
  }
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string word = words[i].substr(0, words[i].find('='));
    if (!word.starts_with("--") || chosen.front()->get_option_no_throw(word) != nullptr) {
      continue;
    }
    const auto& keys = ringside::rl::known_keys();
    if (const std::string key = word.substr(2);
        std::find(keys.begin(), keys.end(), key) != keys.end()) {
      const bool separate = words[i] == word && i + 1 < words.size();
      return word + ": keys are written without dashes: " +
             (separate ? key + "=" + words[i + 1]
                       : key + (words[i] == word ? "=VALUE" : words[i].substr(word.size())));
    }
    if (word.find('.') != std::string::npos) {
      const std::string key = word.substr(2);
      return word + ": keys are written without dashes, and " + key +
             " is none: " + ringside::rl::suggestion(key);
    }
    std::string nearest;
    std::size_t distance = 4;
    for (const CLI::Option* option : chosen.front()->get_options()) {
      const std::string name = option->get_name();
      if (const auto d = ringside::rl::edit_distance(name, word); d < distance) {
        distance = d;
        nearest = name;
      }
    }
    return word + ": is no option of " + chosen.front()->get_name() +
           (nearest.empty() ? "" : "; did you mean " + nearest + "?");
  }
  return "";
}

int run(int argc, char** argv) {
  using namespace ringside::tools;
  std::signal(SIGXFSZ,
              SIG_IGN);  // write() then fails at the file size limit instead of killing the process
  ringside::sp::prepare_vector_math();  // before threads begin
  CLI::App app("Ringside: reinforcement-learning post-training of language models", "ringside");
  app.require_subcommand(1);
  app.footer(
      "Begin with `ringside init`; `ringside COMMAND --help` has options and examples.\n"
      "Exit codes: 0 success, 1 failure, 2 a mistake in the command line or a recipe (nothing was "
      "started),\n128 + n after signal n: 143 for SIGTERM, 130 for Ctrl-C, 141 if the reader of "
      "the "
      "output is gone; the run has saved, and the same command resumes.");
  app.set_version_flag("--version", version_text);
  CommandContext context{.app = app, .arguments = {argv + 1, argv + argc}};
  for (const auto add : kCommands) {
    add(context);
  }
  set_examples(app);
  try {
    app.parse(argc, argv);
    return context.exit_code;
  } catch (const CLI::ParseError& e) {
    std::string unknown = unknown_subcommand(app, context.arguments);
    if (unknown.empty() && e.get_exit_code() != 0) {
      unknown = unknown_option(app, context.arguments);
    }
    if (!unknown.empty()) {
      std::cerr << "ringside: " << unknown << "\n";
      return kExitUsage;
    }
    return app.exit(e) == 0 ? kExitOk : kExitUsage;
  } catch (const UsageError& e) {
    std::cerr << "ringside: " << e.what() << "\n";
    return kExitUsage;
  } catch (const std::exception& e) {
    std::cerr << "ringside: " << error_text(e) << "\n";
    return kExitFailure;
  }
}

}  // namespace

int main(int argc, char** argv) { ringside::tools::end_process(run(argc, argv)); }
