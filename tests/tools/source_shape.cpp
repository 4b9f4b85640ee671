#include "tests/tools/source_shape.h"

#include <algorithm>
#include <map>
#include <regex>

namespace ringside::tools {
namespace {

// `text` with its comments, literals and preprocessor lines blanked, line breaks kept.
std::string code_of(std::string_view text) {
  static const std::regex skipped(
      R"re(//[^\n]*|/\*[^]*?\*/|R"(\w*)\([^]*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')re"
      R"re(|(?:^|\n)[ \t]*#(?:\\\n|[^\n])*)re");
  std::string code(text);
  for (std::cregex_iterator it(text.data(), text.data() + text.size(), skipped), end; it != end;
       ++it) {
    // A digit separator is no literal.
    const auto at = it->position();
    const bool separator = (*it)[0].str().front() == '\'' && at > 0 && std::isalnum(text[at - 1]);
    for (auto i = at; !separator && i < at + it->length(); ++i) {
      if (code[i] != '\n') {
        code[i] = ' ';
      }
    }
  }
  return code;
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) {
    return "";
  }
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

bool matches(const std::string& text, const char* pattern) {
  static std::map<const char*, std::regex> compiled;  // by address: patterns are literals
  return std::regex_search(text, compiled.try_emplace(pattern, pattern).first->second);
}

enum class Kind { kNamespace, kClass, kFunction, kBraces };

struct Scope {
  Kind kind;
  std::string head;
  int line;
  ClassSize members;  // of a class
};

// What the brace after `head` opens, in a scope of kind `outer`.
Kind kind_of(const std::string& head, Kind outer) {
  if (outer == Kind::kFunction || outer == Kind::kBraces) {
    return Kind::kBraces;
  }
  if (std::count(head.begin(), head.end(), '(') != std::count(head.begin(), head.end(), ')')) {
    return Kind::kBraces;
  }
  if (head.empty() || matches(head, R"(^(inline )?namespace\b|^extern\s*$)")) {
    return Kind::kNamespace;
  }
  if (matches(head, R"(^(template\s*<[^(]*>\s*)?(class|struct|union)\b)") && head.back() != ')') {
    return Kind::kClass;
  }
  if (matches(head, R"(\)\s*((const|noexcept|override|final|try|&&?)\s*)*$)")) {
    return Kind::kFunction;
  }
  if (matches(head, R"(\)\s*(const\s*)?->)")) {
    return Kind::kFunction;
  }
  if (matches(head, R"(\)\s*(noexcept\s*)?:[^:])") && head.back() == '}') {
    return Kind::kFunction;
  }
  return Kind::kBraces;
}

void count_member(ClassSize& size, const std::string& declaration) {
  if (declaration.empty() ||
      matches(declaration, R"(^(using|friend|static_assert|typedef|enum)\b)") ||
      matches(declaration, R"(=\s*(default|delete)$)") ||
      matches(declaration, R"(^(template\s*<[^(]*>\s*)?(class|struct|union)\s+\w+$)")) {
    return;
  }
  // A data member may have parentheses only in its type's template arguments or behind "=".
  static const std::regex arguments(R"(<[^<>]*>)");
  std::string plain = declaration;
  for (std::string before; before != plain;) {
    before = plain;
    plain = std::regex_replace(plain, arguments, "");
  }
  const bool method = plain.substr(0, plain.find('=')).find('(') != std::string::npos ||
                      matches(plain, R"(\boperator\b)");
  ++(method ? size.methods : size.data);
}

std::string class_name(const std::string& head) {
  static const std::regex name(
      R"(^(?:template\s*<[^(]*>\s*)?(?:class|struct|union)\s+(?:alignas\s*\([^)]*\)\s*)?(\w+))");
  std::smatch match;
  return std::regex_search(head, match, name) ? match[1].str() : "(unnamed)";
}

class Reader {
 public:
  SourceShape read(const std::string& code) {
    scopes_.push_back({Kind::kNamespace, "", 0, {}});
    for (const char c : code) {
      line_ += c == '\n';
      if (c == '{') {
        open();
      } else if (c == '}') {
        close();
      } else if (c == ';') {
        end_declaration();
      } else if (c == ':' && matches(head_, R"(^\s*(public|private|protected)\s*$)")) {
        head_.clear();
      } else {
        head_ += c;
      }
    }
    return shape_;
  }

 private:
  void open() {
    const std::string head = trimmed(head_);
    const Kind kind = kind_of(head, scopes_.back().kind);
    scopes_.push_back(
        {kind, kind == Kind::kBraces ? head_ : head, line_, {class_name(head), line_, 0, 0}});
    head_.clear();
  }

  void close() {
    if (scopes_.size() < 2) {
      return;
    }
    const Scope scope = scopes_.back();
    scopes_.pop_back();
    head_.clear();
    if (scope.kind == Kind::kFunction) {
      shape_.functions.push_back({scope.head, scope.line, line_ - scope.line + 1});
      if (scopes_.back().kind == Kind::kClass) {
        ++scopes_.back().members.methods;
      }
    } else if (scope.kind == Kind::kClass) {
      shape_.classes.push_back(scope.members);
    } else if (scope.kind == Kind::kBraces) {
      head_ = scope.head + "{}";  // the declaration goes on
    }
  }

  void end_declaration() {
    if (scopes_.back().kind == Kind::kClass) {
      count_member(scopes_.back().members, trimmed(head_));
    }
    head_.clear();
  }

  std::vector<Scope> scopes_;
  std::string head_;  // of the declaration under way
  int line_ = 1;
  SourceShape shape_;
};

}  // namespace

SourceShape shape_of(std::string_view text) { return Reader().read(code_of(text)); }

}  // namespace ringside::tools
