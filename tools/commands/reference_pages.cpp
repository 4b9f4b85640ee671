#include "tools/commands/reference_pages.h"

#include <sstream>
#include <vector>

#include "rl/config/schema.h"

namespace ringside::tools {
namespace {

using Command = const CLI::App*;

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->nonpositional(); });
}

std::vector<const CLI::Option*> positionals_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// Whether the command takes recipes and key=value words.
bool takes_keys(const CLI::App& command) {
  for (const CLI::Option* option : positionals_of(command)) {
    if (option->get_name() == "inputs") {
      return true;
    }
  }
  return false;
}

std::string long_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? "-" + option.get_snames().front()
                                     : "--" + option.get_lnames().front();
}

std::string all_names(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) {
    names += "-" + name + ", ";
  }
  for (const std::string& name : option.get_lnames()) {
    names += "--" + name + ", ";
  }
  return names.substr(0, names.size() - 2);
}

// Text for man: no character is taken for a macro or an escape.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool line_start = out.empty() || out.back() == '\n';
    if (line_start && (c == '.' || c == '\'')) {
      out += "\\&";
    }
    if (c == '\\') {
      out += "\\e";
    } else {
      out += c == '-' ? "\\-" : std::string(1, c);
    }
  }
  return out;
}

void write_option(std::ostream& out, const CLI::Option& option) {
  out << ".TP\n.B " << roff(all_names(option)) << (is_flag(option) ? "" : " \\fIVALUE\\fR") << "\n"
      << roff(option.get_description());
  if (!option.get_default_str().empty()) {
    out << roff(" (default: " + option.get_default_str() + ")");
  }
  out << "\n";
}

void write_command(std::ostream& out, const CLI::App& command) {
  out << ".SS " << roff("ringside " + command.get_name());
  for (const CLI::Option* option : positionals_of(command)) {
    const std::string name = option->get_name();
    out << " " << roff(name == "inputs" ? "[RECIPE...] [KEY=VALUE...]" : name);
  }
  out << "\n" << roff(command.get_description()) << ".\n";
  for (const CLI::Option* option : options_of(command)) {
    write_option(out, *option);
  }
  if (!command.get_footer().empty()) {
    out << ".PP\n.nf\n" << roff(command.get_footer()) << "\n.fi\n";
  }
}

constexpr const char* kPageEnd = R"(.SH EXIT STATUS
.TP
.B 0
Success.
.TP
.B 1
The run failed.
.TP
.B 2
A mistake in the command line, a recipe, a model or data. Nothing was started.
.TP
.B 128 + n
Stopped by signal n after the step ended and a checkpoint was saved: 130 for SIGINT, 143 for SIGTERM,
129 for SIGHUP. The same command resumes. A second signal, 0.2 s or more later, stops at once.
.SH ENVIRONMENT
.TP
.B RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
The rank of this process, as torchrun sets them. Under srun the variables of Slurm are read.
.TP
.B NO_COLOR
No colours on a terminal.
.TP
.B TMPDIR
Where dry runs keep their files.
)";

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_of(command)) {
    names.push_back(long_name(*option));
  }
  return names;
}

// Text between single quotes of a shell, for zsh's _arguments: no bracket or colon.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':') {
      out += "\\";
    }
    out += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return out;
}

}  // namespace

std::string manual_page(const CLI::App& app) {
  std::ostringstream out;
  out << ".TH RINGSIDE 1 \"\" \"ringside " RINGSIDE_VERSION "\"\n.SH NAME\nringside \\- "
      << roff("reinforcement-learning post-training of language models")
      << "\n.SH SYNOPSIS\n.B ringside\n.I COMMAND\n.RI [ OPTIONS ]\n.SH COMMANDS\n";
  for (const Command command : app.get_subcommands(nullptr)) {
    write_command(out, *command);
  }
  out << ".SH OPTIONS\n";
  for (const CLI::Option* option : options_of(app)) {
    write_option(out, *option);
  }
  out << ".SH RECIPES\n"
      << roff(
             "A recipe is a YAML file of keys that differ from the defaults. Later files override "
             "earlier ones, and key.sub=value on the command line overrides all files. `ringside "
             "check --defaults` explains every key.")
      << "\n"
      << kPageEnd;
  return out.str();
}

std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> commands, with_keys;
  std::ostringstream cases;
  for (const Command command : app.get_subcommands(nullptr)) {
    commands.push_back(command->get_name());
    if (takes_keys(*command)) {
      with_keys.push_back(command->get_name());
    }
    cases << "    " << command->get_name() << ") options='" << joined(option_names(*command))
          << "' ;;\n";
  }
  std::string keys;
  for (const std::string& key : rl::known_keys()) {
    keys += (keys.empty() ? "" : " ") + key + "=";
  }
  std::ostringstream out;
  out << "# bash completion of ringside, from `ringside completion bash`.\n"
      << "_ringside() {\n"
      << "  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} options=\n"
      << "  COMPREPLY=()\n"
      << "  if ((COMP_CWORD == 1)); then\n"
      << "    COMPREPLY=($(compgen -W '" << joined(commands) << " " << joined(option_names(app))
      << "' -- \"$word\"))\n    return\n  fi\n"
      << "  case $command in\n"
      << cases.str() << "  esac\n"
      << "  if [[ $word == -* ]]; then\n"
      << "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n    return\n  fi\n"
      << "  if [[ ' " << joined(with_keys) << " ' == *\" $command \"* && -n $word ]]; then\n"
      << "    COMPREPLY=($(compgen -W '" << keys << "' -- \"$word\"))\n"
      << "    ((${#COMPREPLY[@]} == 0)) || compopt -o nospace 2>/dev/null\n  fi\n"
      << "}\ncomplete -o default -F _ringside ringside\n";
  return out.str();
}

std::string zsh_completion(const CLI::App& app) {
  std::ostringstream names, cases;
  for (const Command command : app.get_subcommands(nullptr)) {
    names << "    '" << command->get_name() << ":" << zsh_text(command->get_description()) << "'\n";
    cases << "    " << command->get_name() << ")\n      _arguments \\\n";
    for (const CLI::Option* option : options_of(*command)) {
      cases << "        '" << long_name(*option) << "[" << zsh_text(option->get_description())
            << "]" << (is_flag(*option) ? "" : ":value:_files") << "' \\\n";
    }
    cases << "        '*:file or key=value:"
          << (takes_keys(*command) ? "_ringside_inputs" : "_files") << "' ;;\n";
  }
  std::ostringstream out;
  out << "#compdef ringside\n# zsh completion of ringside, from `ringside completion zsh`.\n"
      << "_ringside_inputs() {\n  local -a keys\n  keys=(";
  for (const std::string& key : rl::known_keys()) {
    out << " " << key << "=";
  }
  out << " )\n  _files\n  compadd -S '' -a keys\n}\n_ringside() {\n  local -a commands\n"
      << "  commands=(\n"
      << names.str() << "  )\n  if (( CURRENT == 2 )); then\n"
      << "    _describe command commands\n    return\n  fi\n  local command=$words[2]\n"
      << "  shift words\n  (( CURRENT-- ))\n  case $command in\n"
      << cases.str() << "  esac\n}\n_ringside \"$@\"\n";
  return out.str();
}

}  // namespace ringside::tools
