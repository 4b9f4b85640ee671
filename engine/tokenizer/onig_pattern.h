// Patterns of tokenizer.json in the syntax of Oniguruma, the engine of Hugging Face's tokenizers,
// as patterns of PCRE2 with the same meaning.
//
// What differs, and is rewritten:
// - x{1,3}+ is no possessive quantifier but (?:x{1,3})+; x{2}? is (?:x{2})?; x{,3} is x{0,3};
// - a class may hold classes, and && is an intersection: [\p{L}&&[^\p{Han}]], [^(\s|[.,!?])];
// - \h is a hexadecimal digit, \v is U+000B; \w, \b, \s and POSIX classes are wider or narrower;
// - \p{Han} is the script, not its extensions; \p{Letter} and \p{^L} are names of categories.
// `^` and `$` match at every line in Oniguruma: compile with PCRE2_MULTILINE.
// Source: Oniguruma's doc/RE (syntax ONIG_SYNTAX_ONIGURUMA); sets of characters measured with the
// Python package tokenizers 0.22.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ringside::engine {

// `pattern` is UTF-8, which is not checked. is_pattern: whether PCRE2 accepts a pattern; asked for
// names of scripts.
// Throws: std::runtime_error naming what has no counterpart: other inline options than i, absence
// operators, calls of groups, other escapes of letters.
std::string pcre2_pattern(std::string_view pattern,
                          const std::function<bool(const std::string&)>& is_pattern);

}  // namespace ringside::engine
