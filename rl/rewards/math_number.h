// Numbers as language models write them. Pure; linear in the text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ringside::rl {

struct MathNumber {
  double value = 0.0;  // finite; a percentage's value is what stands before the sign
  bool percent = false;
};

// What a mathematical answer says, written in one way: without white space, LaTeX spacing, $ and \(
// \), \left, \right, \text{} (dropped where it is a unit, kept bare where it is all there is),
// degrees, currency; \dfrac as \frac, \frac12 as \frac{1}{2}, \times and \cdot as *, a trailing
// full stop dropped. `with_spaces` keeps single blanks between words.
std::string plain_math(std::string_view text, bool with_spaces);

// A number out of plain_math(text, true): decimals, thousands separators (1,234.5),
// 1e-3, 1.2*10^{5}, a/b, \frac{a}{b}, mixed 1 1/2 and 1\frac{1}{2}, a percent sign, a unit behind
// ("5 cm", "42 apples", "5cm"). Nothing for anything else: products and sums are not worked out,
// infinite values and divisions by zero are no numbers.
std::optional<MathNumber> parse_math_number(std::string_view plain);

// Equal within `tolerance` times the larger of 1 and both magnitudes. Where one side alone is a
// percentage, 50% equals both 50 and 0.5.
bool same_number(const MathNumber& a, const MathNumber& b, double tolerance);

// The text of the last number in a running text, looked for in its last 64 KiB; nothing when there
// is none.
std::optional<std::string_view> last_number(std::string_view text);

}  // namespace ringside::rl
