#include "engine/json/json_text.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kLfsHead = "version https://git-lfs.github.com/spec/";

// The library's message after the position, e.g. "unexpected end of input; expected string
// literal".
std::string syntax_problem(const std::string& what) {
  const std::size_t dash = what.find(" - ");
  return dash == std::string::npos ? what : what.substr(dash + 3);
}

}  // namespace

bool is_lfs_pointer(std::string_view head) { return head.starts_with(kLfsHead); }

std::string lfs_advice() {
  return "is a git-lfs pointer, not the file itself; fetch it with `git lfs pull`, or download it "
         "again";
}

std::string json_problem(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const std::size_t end =
      text.starts_with("[json.exception.") ? text.find("] ") : std::string::npos;
  return end == std::string::npos ? text : text.substr(end + 2);
}

std::string kind_of(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::object:
      return "an object";
    case nlohmann::json::value_t::array:
      return "an array";
    case nlohmann::json::value_t::null:
      return "null";
    default:
      return std::string("a ") + value.type_name();
  }
}

std::string quote_python_numbers(std::string text) {
  constexpr std::array<std::string_view, 3> kNames = {"-Infinity", "Infinity", "NaN"};
  const bool none = std::ranges::all_of(
      kNames, [&](std::string_view name) { return text.find(name) == std::string::npos; });
  if (none) {
    return text;
  }
  std::string quoted;
  bool in_text = false;
  for (std::size_t i = 0; i < text.size();) {
    const auto found = std::ranges::find_if(kNames, [&](std::string_view name) {
      return !in_text && std::string_view(text).substr(i).starts_with(name);
    });
    if (found != kNames.end()) {
      quoted.append("\"").append(*found).append("\"");
      i += found->size();
      continue;
    }
    if (in_text && text[i] == '\\' && i + 1 < text.size()) {
      quoted.push_back(text[i++]);  // what follows ends no text
    } else if (text[i] == '"') {
      in_text = !in_text;
    }
    quoted.push_back(text[i++]);
  }
  return quoted;
}

nlohmann::json parse_json(std::string_view text, const std::string& where, int64_t line) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const std::string_view before =
        text.substr(0, std::min(text.size(), error.byte > 0 ? error.byte - 1 : 0));
    const auto breaks = std::count(before.begin(), before.end(), '\n');
    const std::size_t column = before.size() - (breaks > 0 ? before.rfind('\n') + 1 : 0) + 1;
    const bool bytes = json_problem(error).find("UTF-8") != std::string::npos;
    throw std::runtime_error(where + ":" + std::to_string(line > 0 ? line : breaks + 1) + ":" +
                             std::to_string(column) + ": " +
                             (bytes ? "the text is not UTF-8"
                                    : "not valid JSON: " + syntax_problem(json_problem(error))));
  }
}

std::string read_text_file(const fs::path& file) {
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) {
    throw std::runtime_error(file.string() + " is a directory, expected a file");
  }
  if (!fs::exists(file, ignored)) {
    throw std::runtime_error(file.string() + " does not exist");
  }
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream || (text.str().empty() && fs::file_size(file, ignored) > 0)) {
    throw std::runtime_error("cannot read " + file.string() +
                             (errno != 0 ? ": " + std::generic_category().message(errno) : ""));
  }
  if (is_lfs_pointer(text.str())) {
    throw std::runtime_error(file.string() + " " + lfs_advice());
  }
  return text.str();
}

nlohmann::json read_json_file(const fs::path& file) {
  return parse_json(read_text_file(file), file.string());
}

}  // namespace ringside::engine
