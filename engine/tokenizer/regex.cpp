#include "engine/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "engine/tokenizer/newer_characters.h"
#include "engine/tokenizer/onig_pattern.h"
#include "engine/tokenizer/utf8.h"

namespace ringside::engine {
namespace {

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

PCRE2_SPTR bytes(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

pcre2_code* compile(const std::string& pattern, int& error, PCRE2_SIZE& offset) {
  return pcre2_compile(bytes(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                       &error, &offset, nullptr);
}

bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      compile(pattern, error, offset), pcre2_code_free);
  return code != nullptr;
}

std::string translated(std::string_view pattern) {
  try {
    return pcre2_pattern(pattern, compiles);
  } catch (const std::runtime_error& e) {
    throw std::runtime_error("regular expression '" + std::string(pattern) + "': " + e.what());
  }
}

}  // namespace

Regex::Regex(std::string_view pattern)
    : pattern_(translated(pattern)), names_newer_(has_newer_characters(pattern)) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = compile(pattern_, error, offset);
  if (code == nullptr) {
    throw std::runtime_error("regular expression '" + pattern_ + "', character " +
                             std::to_string(offset) + ": " + error_text(error));
  }
  code_ = std::shared_ptr<const void>(code, [code](const void*) { pcre2_code_free(code); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // for speed only; matching works without it
}

std::vector<Piece> Regex::split(std::string_view text) const {
  const auto mapped = names_newer_ ? std::nullopt : with_stand_ins(text);
  return split_known(mapped ? *mapped : text);
}

std::vector<Piece> Regex::split_known(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  std::vector<Piece> pieces;
  std::size_t done = 0;
  for (std::size_t from = 0; from <= text.size();) {
    const int found =
        pcre2_match(code, bytes(text), text.size(), from, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (found < 0) {
      throw std::runtime_error("regular expression '" + pattern_ + "': " + error_text(found));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    const std::size_t begin = range[0], end = range[1];
    if (begin > done) {
      pieces.push_back({done, begin, false});
    }
    pieces.push_back({begin, end, true});
    done = end;
    // After an empty match the search continues after the next character.
    from = end > begin ? end : end + std::max<std::size_t>(1, utf8_char_bytes(text.substr(end)));
  }
  if (done < text.size()) {
    pieces.push_back({done, text.size(), false});
  }
  return pieces;
}

std::string quote_pattern(std::string_view text) {
  std::string quoted;
  for (const char c : text) {
    if (std::string_view("\\.+*?()|[]{}^$#&-~").find(c) != std::string_view::npos) {
      quoted += '\\';
    }
    quoted += c;
  }
  return quoted;
}

}  // namespace ringside::engine
