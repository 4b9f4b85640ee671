#include "tools/init/shell_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>

namespace ringside::tools {
namespace {

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool ends_word(char c) {
  return is_blank(c) || c == '\n' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')' ||
         c == '<' || c == '>';
}

// Value of a sum of products of whole numbers; none for anything else.
class Arithmetic {
 public:
  explicit Arithmetic(std::string_view text) : text_(text) {}

  std::optional<int64_t> value() {
    const auto result = sum();
    return at_ == text_.size() ? result : std::nullopt;
  }

 private:
  char next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) {
      ++at_;
    }
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  std::optional<int64_t> sum() {
    auto left = product();
    while (left && (next() == '+' || next() == '-')) {
      const char sign = text_[at_++];
      const auto right = product();
      left = right ? std::optional(sign == '+' ? *left + *right : *left - *right) : std::nullopt;
    }
    return left;
  }
  std::optional<int64_t> product() {
    auto left = factor();
    while (left && (next() == '*' || next() == '/')) {
      const char sign = text_[at_++];
      const auto right = factor();
      if (!right || (sign == '/' && *right == 0)) {
        return std::nullopt;
      }
      left = sign == '*' ? *left * *right : *left / *right;
    }
    return left;
  }
  std::optional<int64_t> factor() {
    if (next() == '(') {
      ++at_;
      const auto inner = sum();
      if (next() != ')') {
        return std::nullopt;
      }
      ++at_;
      next();
      return inner;
    }
    int64_t number = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), number);
    if (error != std::errc{}) {
      return std::nullopt;
    }
    at_ += static_cast<std::size_t>(end - begin);
    next();
    return number;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// The variables of a script and what became of their assignments.
struct Variables {
  std::map<std::string, ShellCommand, std::less<>> values;
  std::map<std::string, int, std::less<>> in_branches;  // line of an assignment not carried out
  std::set<std::string> named;                          // in remarks already
  std::vector<std::string> remarks;
};

class Reader {
 public:
  Reader(std::string_view text, int line, Variables& variables)
      : text_(text), line_(line), variables_(variables) {}

  // Reads the whole text.
  std::vector<ShellCommand> commands() {
    while (!done()) {
      read_command();
    }
    return std::move(commands_);
  }

  // The text as one word, as in double quotes.
  ShellWord one_word() {
    ShellWord word{"", line_, ""};
    while (!done()) {
      if (peek() == '"' || peek() == '\'') {
        ++at_;
      } else if (peek() == '$') {
        expand(word);
      } else {
        word.text += take();
      }
    }
    return word;
  }

 private:
  bool done() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  char take() {
    line_ += text_[at_] == '\n';
    return text_[at_++];
  }
  [[noreturn]] void wrong(int line, const std::string& what) const {
    throw std::invalid_argument(std::to_string(line) + ": " + what);
  }

  void skip_comment() {
    while (!done() && peek() != '\n') {
      ++at_;
    }
  }

  // Blanks, continued lines, comments and redirections.
  void skip_to_word() {
    while (!done()) {
      if (is_blank(peek())) {
        ++at_;
      } else if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
        while (take() != '\n') {
        }
      } else if (peek() == '#') {
        skip_comment();
      } else if (peek() == '<' || peek() == '>') {
        while (peek() == '<' || peek() == '>' || peek() == '&' || peek() == '-') {
          ++at_;
        }
        while (is_blank(peek())) {
          ++at_;
        }
        read_word();  // the file, or the mark of a here-document
      } else {
        return;
      }
    }
  }

  void read_command() {
    ShellCommand command;
    for (skip_to_word(); !done() && !ends_word(peek()); skip_to_word()) {
      const auto begin = at_;
      for (ShellWord& word : may_assign(command) ? read_words() : read_word()) {
        command.push_back(std::move(word));
      }
      const std::string_view raw = text_.substr(begin, at_ - begin);
      const bool number =
          std::all_of(raw.begin(), raw.end(), [](char c) { return std::isdigit(c); });
      if (number && !command.empty() && (peek() == '>' || peek() == '<')) {
        command.pop_back();  // 2>file
      }
    }
    if (!done()) {
      take();
    }
    finish(std::move(command));
  }

  // Whether NAME=value, as the next word of a command, is an assignment.
  static bool may_assign(const ShellCommand& command) {
    static constexpr std::array<std::string_view, 8> kWords = {
        "export", "local", "declare", "readonly", "then", "else", "do", "-x"};
    return command.empty() ||
           std::find(kWords.begin(), kWords.end(), command.back().text) != kWords.end();
  }

  // Follows what a command says to the shell itself; the others are kept.
  void finish(ShellCommand command) {
    static constexpr std::array<std::string_view, 4> kBefore = {"then", "else", "do", "!"};
    while (!command.empty() &&
           std::find(kBefore.begin(), kBefore.end(), command[0].text) != kBefore.end()) {
      command.erase(command.begin());
    }
    if (command.empty()) {
      return;
    }
    static constexpr std::array<std::string_view, 5> kOpen = {"if", "case", "for", "while",
                                                              "until"};
    static constexpr std::array<std::string_view, 3> kClose = {"fi", "esac", "done"};
    const std::string& first = command[0].text;
    if (std::find(kOpen.begin(), kOpen.end(), first) != kOpen.end()) {
      ++depth_;
    } else if (std::find(kClose.begin(), kClose.end(), first) != kClose.end()) {
      depth_ = std::max(0, depth_ - 1);
    } else {
      commands_.push_back(std::move(command));
    }
  }

  // One word; several where an array is expanded; none for an assignment, which is carried out.
  ShellCommand read_words() {
    const int line = line_;
    std::size_t end = at_;
    while (end < text_.size() && is_name_char(text_[end])) {
      ++end;
    }
    const bool adds = text_.substr(end).starts_with("+=");
    if (end == at_ || !is_name_start(peek()) || !(adds || text_.substr(end).starts_with("="))) {
      return read_word();
    }
    const std::string name(text_.substr(at_, end - at_));
    at_ = end + (adds ? 2 : 1);
    ShellCommand value = peek() == '(' ? read_array(line) : read_word();
    if (depth_ > 0) {
      variables_.in_branches[name] = line;
      return {};
    }
    ShellCommand& variable = variables_.values[name];
    if (!adds) {
      variable.clear();
    }
    variable.insert(variable.end(), value.begin(), value.end());
    return {};
  }

  ShellCommand read_array(int line) {
    ++at_;
    ShellCommand items;
    while (true) {
      skip_to_word();
      if (done()) {
        wrong(line, "the list that begins here has no )");
      }
      if (peek() == ')') {
        ++at_;
        return items;
      }
      if (ends_word(peek())) {
        take();
        continue;
      }
      const ShellCommand words = read_word();
      items.insert(items.end(), words.begin(), words.end());
    }
  }

  ShellCommand read_word() {
    ShellCommand words;
    ShellWord word{"", line_, ""};
    bool empty = true;  // nothing of the word was written, so that it vanishes
    while (!done() && !ends_word(peek())) {
      if (peek() == '\\') {
        if (peek(1) == '\n') {
          break;
        }
        ++at_;
        if (!done()) {
          word.text += take();
        }
        empty = false;
      } else if (peek() == '\'') {
        read_single(word);
        empty = false;
      } else if (peek() == '"') {
        if (const ShellCommand* array = quoted_array()) {
          words.insert(words.end(), array->begin(), array->end());
        } else {
          read_double(word);
          empty = false;
        }
      } else if (peek() == '$' || peek() == '`') {
        expand_and_split(words, word);
        empty = empty && word.text.empty() && word.unknown.empty();
      } else {
        word.text += take();
        empty = false;
      }
    }
    if (!empty) {
      words.push_back(std::move(word));
    }
    return words;
  }

  // What stands at a $ outside of quotes: at blanks in it a new word begins.
  void expand_and_split(ShellCommand& words, ShellWord& word) {
    ShellWord value{"", line_, ""};
    expand(value);
    word.unknown = word.unknown.empty() ? value.unknown : word.unknown;
    if (!value.unknown.empty()) {
      word.text += value.text;
      return;
    }
    for (const char c : value.text) {
      if (!is_blank(c) && c != '\n') {
        word.text += c;
      } else if (!word.text.empty()) {
        words.push_back(std::move(word));
        word = {"", line_, ""};
      }
    }
  }

  // The variable of "${NAME[@]}" or "$@", which is passed; nullptr at anything else.
  const ShellCommand* quoted_array() {
    static const ShellCommand kNothing;
    const std::string_view rest = text_.substr(at_);
    for (const std::string_view all : {"\"$@\"", "\"${@}\"", "\"$*\""}) {
      if (rest.starts_with(all)) {
        at_ += all.size();
        return &kNothing;
      }
    }
    const auto end = rest.find("[@]}\"");
    if (!rest.starts_with("\"${") || end == std::string_view::npos ||
        !std::all_of(rest.begin() + 3, rest.begin() + static_cast<std::ptrdiff_t>(end),
                     is_name_char)) {
      return nullptr;
    }
    at_ += end + 5;
    const auto found = variables_.values.find(rest.substr(3, end - 3));
    return found == variables_.values.end() ? &kNothing : &found->second;
  }

  void read_single(ShellWord& word) {
    const int line = line_;
    for (++at_; peek() != '\''; word.text += take()) {
      if (done()) {
        wrong(line, "the quote ' that begins here has no end");
      }
    }
    ++at_;
  }

  void read_double(ShellWord& word) {
    const int line = line_;
    for (++at_; peek() != '"';) {
      if (done()) {
        wrong(line, "the quote \" that begins here has no end");
      }
      if (peek() == '$' || peek() == '`') {
        expand(word);
      } else if (peek() == '\\' && peek(1) == '\n') {
        ++at_;
        take();
      } else {
        at_ += peek() == '\\' && (peek(1) == '"' || peek(1) == '\\' || peek(1) == '$');
        word.text += take();
      }
    }
    ++at_;
  }

  // The text up to the bracket that closes the one before it, which is passed.
  std::string_view inside(char open, char close) {
    const int line = line_;
    const auto begin = at_;
    for (int depth = 1; depth > 0;) {
      if (done()) {
        wrong(line, std::string("the ") + open + " that begins here has no " + close);
      }
      const char c = take();
      depth += open != close && c == open ? 1 : c == close ? -1 : 0;
    }
    return text_.substr(begin, at_ - begin - 1);
  }

  // What stands at a $ or at a back-quote.
  void expand(ShellWord& word) {
    if (peek() == '`') {
      ++at_;
      unknown(word, "`" + std::string(inside('`', '`')) + "`");
      return;
    }
    ++at_;
    if (peek() == '(' && peek(1) == '(') {
      at_ += 2;
      const std::string_view text = inside('(', ')');
      at_ += peek() == ')';
      arithmetic(word, text);
    } else if (peek() == '(') {
      ++at_;
      unknown(word, "$(" + std::string(inside('(', ')')) + ")");
    } else if (peek() == '{') {
      ++at_;
      braces(word, inside('{', '}'));
    } else if (is_name_start(peek())) {
      const auto begin = at_;
      while (is_name_char(peek())) {
        ++at_;
      }
      variable(word, std::string(text_.substr(begin, at_ - begin)));
    } else if (peek() == '@' || peek() == '*') {
      ++at_;  // arguments of the script: none
    } else if (std::isdigit(static_cast<unsigned char>(peek()))) {
      unknown(word, std::string("$") + take());
    } else {
      word.text += '$';
    }
  }

  static void unknown(ShellWord& word, const std::string& part) {
    word.unknown = word.unknown.empty() ? part : word.unknown;
    word.text += part;
  }

  void variable(ShellWord& word, const std::string& name) {
    const auto found = variables_.values.find(name);
    const auto branch = variables_.in_branches.find(name);
    if (branch != variables_.in_branches.end() && variables_.named.insert(name).second) {
      variables_.remarks.push_back(
          "line " + std::to_string(branch->second) + " sets " + name +
          " in a branch of the script, which is not followed" +
          (found == variables_.values.end() ? "" : "; its value before that is taken"));
    }
    if (found == variables_.values.end()) {
      name == "HOME" ? void(word.text += '~') : unknown(word, "$" + name);
      return;
    }
    for (std::size_t i = 0; i < found->second.size(); ++i) {
      word.text += (i == 0 ? "" : " ") + found->second[i].text;
      word.unknown = word.unknown.empty() ? found->second[i].unknown : word.unknown;
    }
  }

  void braces(ShellWord& word, std::string_view content) {
    std::size_t end = 0;
    while (end < content.size() && is_name_char(content[end])) {
      ++end;
    }
    const std::string name(content.substr(0, end));
    const std::string_view rest = content.substr(end);
    if (rest.empty() || rest == "[@]" || rest == "[*]") {
      variable(word, name);
      return;
    }
    for (const std::string_view mark : {":-", ":=", "-", "="}) {
      if (rest.starts_with(mark)) {
        const auto found = variables_.values.find(name);
        if (found != variables_.values.end() && !(mark[0] == ':' && is_empty(found->second))) {
          variable(word, name);
          return;
        }
        const ShellWord other = Reader(rest.substr(mark.size()), line_, variables_).one_word();
        word.text += other.text;
        word.unknown = word.unknown.empty() ? other.unknown : word.unknown;
        return;
      }
    }
    unknown(word, "${" + std::string(content) + "}");
  }

  static bool is_empty(const ShellCommand& value) {
    return value.empty() || (value.size() == 1 && value[0].text.empty());
  }

  void arithmetic(ShellWord& word, std::string_view text) {
    std::string plain;
    for (std::size_t i = 0; i < text.size();) {
      if (is_name_start(text[i])) {
        const auto begin = i;
        while (i < text.size() && is_name_char(text[i])) {
          ++i;
        }
        const auto found = variables_.values.find(text.substr(begin, i - begin));
        plain += found == variables_.values.end() || found->second.size() != 1
                     ? "?"
                     : found->second[0].text;
      } else {
        plain += text[i] == '$' || text[i] == '{' || text[i] == '}' ? ' ' : text[i];
        ++i;
      }
    }
    const auto value = Arithmetic(plain).value();
    if (value) {
      word.text += std::to_string(*value);
    } else {
      unknown(word, "$((" + std::string(text) + "))");
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_;
  int depth_ = 0;  // of if, case and loops
  Variables& variables_;
  std::vector<ShellCommand> commands_;
};

}  // namespace

ShellScript read_shell_script(std::string_view text) {
  Variables variables;
  std::vector<ShellCommand> commands = Reader(text, 1, variables).commands();
  return {std::move(commands), std::move(variables.remarks)};
}

}  // namespace ringside::tools
