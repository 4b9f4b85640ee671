#include "rl/algorithm/step_columns.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ringside::rl {

void TokenSets::add(std::span<const int32_t> set) {
  if (begin.empty()) {
    begin.push_back(0);
  }
  ids.insert(ids.end(), set.begin(), set.end());
  begin.push_back(static_cast<int64_t>(ids.size()));
}

void TokenSets::add(const TokenSets& from, int64_t first, int64_t end) {
  for (int64_t token = first; token < end; ++token) {
    add(std::span(from.ids).subspan(from.begin.at(token),
                                    from.begin.at(token + 1) - from.begin.at(token)));
  }
}

void check_samples(const StepColumns& table, std::string_view who) {
  if (table.begin.empty() || table.begin.front() != 0) {
    throw std::invalid_argument(
        std::string(who) + ": the table's begin must start with 0, got " +
        (table.begin.empty() ? "nothing" : std::to_string(table.begin.front())));
  }
  const auto fall = std::is_sorted_until(table.begin.begin(), table.begin.end());
  if (fall != table.begin.end()) {
    throw std::invalid_argument(std::string(who) + ": sample " +
                                std::to_string(fall - table.begin.begin() - 1) +
                                " ends at loss token " + std::to_string(*fall) +
                                ", before its first, " + std::to_string(*(fall - 1)));
  }
}

void check_column(const StepColumns& table, const std::vector<double>& column,
                  std::string_view name, std::string_view who) {
  if (static_cast<int64_t>(column.size()) != table.tokens()) {
    throw std::invalid_argument(std::string(who) + ": " + std::string(name) + " has " +
                                std::to_string(column.size()) + " numbers for " +
                                std::to_string(table.tokens()) + " loss tokens");
  }
  const auto bad =
      std::find_if(column.begin(), column.end(), [](double x) { return !std::isfinite(x); });
  if (bad != column.end()) {
    const int64_t token = bad - column.begin();
    const auto sample =
        std::upper_bound(table.begin.begin(), table.begin.end(), token) - table.begin.begin() - 1;
    throw std::invalid_argument(std::string(who) + ": " + std::string(name) + " of sample " +
                                std::to_string(sample) + " is " + std::to_string(*bad) +
                                " at loss token " + std::to_string(token));
  }
}

}  // namespace ringside::rl
