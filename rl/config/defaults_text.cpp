#include <algorithm>
#include <cstddef>
#include <sstream>

#include "rl/config/load.h"
#include "rl/config/schema.h"

namespace ringside::rl {
namespace {

constexpr std::size_t kSentenceColumn = 36, kLineWidth = 120;

constexpr std::string_view kHead =
    "# Every key of Ringside, its default and its meaning. A recipe names only the keys that it "
    "changes.\n"
    "# Precedence, lowest first: this file, algorithm.preset, recipe files from left to right, "
    "key.sub=value on the\n"
    "# command line. Relative paths in a recipe are relative to the recipe's folder. Relative "
    "paths on the command\n"
    "# line are relative to the working directory.\n"
    "# In every section the keys come first that the recipes and READMEs set most, after "
    "a blank line the others.\n"
    "#\n"
    "# Printed by `ringside check --defaults` from the table in rl/config; a test compares the "
    "two.\n";

// A line of the document with its sentence, which goes on below it.
void write_line(std::ostream& out, const std::string& text, const std::string& sentence) {
  std::string line = text;
  std::size_t words = 0;
  std::istringstream in(sentence);
  for (std::string word; in >> word;) {
    if (words == 0) {
      line.append(line.size() < kSentenceColumn ? kSentenceColumn - line.size() : 2, ' ');
      line += "# " + word;
    } else if (line.size() + 1 + word.size() > kLineWidth) {
      out << line << "\n";
      line = std::string(kSentenceColumn, ' ') + "# " + word;
    } else {
      line += " " + word;
    }
    ++words;
  }
  out << line << "\n";
}

// A value as YAML readers of every version take it: "" for no text, 1.0e-06 for 1e-06.
std::string yaml_value(const Slot& slot) {
  std::string text = value_text(slot);
  if (text.empty()) {
    return "\"\"";
  }
  const std::size_t exponent = text.find('e');
  const bool number = std::holds_alternative<RealSlot>(slot) && exponent != std::string::npos;
  if (number && text.find('.') == std::string::npos) {
    text.insert(exponent, ".0");
  }
  return text;
}

std::string print_defaults() {
  Config config;
  const SectionSentences sections = section_sentences();
  std::ostringstream out;
  out << kHead;
  bool was_often = false;
  std::string open;  // the section whose keys are being written, with a dot at its end
  for (const Field& field : fields_of(config)) {
    std::size_t begin = 0;
    for (std::size_t dot = field.key.find('.'); dot != std::string::npos;
         begin = dot + 1, dot = field.key.find('.', begin)) {
      const std::string name = field.key.substr(0, dot);
      if (!open.starts_with(name + ".")) {
        const auto sentence = sections.find(name);
        out << (begin == 0 ? "\n" : "");
        write_line(
            out,
            std::string(begin == 0 ? 0 : 2 * (std::count(name.begin(), name.end(), '.')), ' ') +
                name.substr(begin) + ":",
            sentence == sections.end() ? "" : sentence->second);
      }
    }
    if (begin == 0 || (was_often && !field.often_set && open == field.key.substr(0, begin))) {
      out << "\n";
    }
    was_often = field.often_set;
    open = field.key.substr(0, begin);
    const auto depth = static_cast<std::size_t>(std::count(open.begin(), open.end(), '.'));
    write_line(
        out, std::string(2 * depth, ' ') + field.key.substr(begin) + ": " + yaml_value(field.slot),
        field.sentence);
  }
  return out.str();
}

}  // namespace

std::string_view defaults_yaml() {
  static const std::string text = print_defaults();
  return text;
}

}  // namespace ringside::rl
