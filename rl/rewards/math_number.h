// Numbers as language models write them. Pure functions; linear in the text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ringside::rl {

struct MathNumber {
  double value = 0.0;  // finite; of a percentage, the number before the sign
  bool percent = false;
};

// Normal form of a mathematical answer: without white space, LaTeX spacing, $ and \( \), \left,
// \right, degrees and currency; \text{} dropped if it is a unit, unwrapped if it is the whole
// answer; \dfrac as \frac, \frac12 as \frac{1}{2}, \times and \cdot as *; without a trailing full
// stop. `with_spaces` keeps single blanks between words.
std::string plain_math(std::string_view text, bool with_spaces);

// The number in plain_math(text, true): decimals, thousands separators (1,234.5), 1e-3, 1.2*10^{5},
// a/b, \frac{a}{b}, mixed 1 1/2 and 1\frac{1}{2}, a percent sign, a unit after it ("5 cm", "42
// apples", "5cm"). nullopt for anything else: products and sums are not evaluated; infinite values
// and divisions by zero are not numbers.
std::optional<MathNumber> parse_math_number(std::string_view plain);

// Whether a and b are equal within `tolerance` times the larger of 1 and both magnitudes. If
// exactly one of them is a percentage, 50% equals both 50 and 0.5.
bool same_number(const MathNumber& a, const MathNumber& b, double tolerance);

// The text of the last number in running text, searched in the last 64 KiB; nullopt when there is
// none.
std::optional<std::string_view> last_number(std::string_view text);

}  // namespace ringside::rl
