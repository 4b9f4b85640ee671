#include "rl/losses/figures.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "sp/mesh/control.h"

namespace ringside::rl {
namespace {

// A figure's name among those of an optimizer step says its rule: "figure s loss".
constexpr std::string_view kPrefix = "figure ";
constexpr std::size_t kRuleAt = kPrefix.size();
constexpr std::size_t kNameAt = kRuleAt + 2;

std::string coded(char rule, const std::string& name) {
  return std::string(kPrefix) + rule + " " + name;
}

FigureRule rule_of(char code) {
  return code == 'x' ? FigureRule::kMax : code == 'm' ? FigureRule::kMean : FigureRule::kSum;
}

// The total of each number over the ranks, added from the last rank to the first. An all-reduce
// adds in an order that depends on a number's place in the buffer, so a new figure would change the
// last digits of the others.
std::vector<double> sum_over_ranks(const std::vector<double>& of_rank, sp::Communicator& world) {
  const at::Tensor all = world.all_gather(at::tensor(of_rank, at::kDouble), "figures");
  std::vector<double> totals(of_rank.size(), 0.0);
  for (int64_t rank = world.size() - 1; rank >= 0; --rank) {
    const at::Tensor row = all[rank];
    const double* values = row.const_data_ptr<double>();
    for (std::size_t i = 0; i < totals.size(); ++i) {
      totals[i] += values[i];
    }
  }
  return totals;
}

double larger(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b);
}

}  // namespace

void Figures::add(char rule, const std::string& name, const at::Tensor& x) {
  sums_.add(coded(rule, name), x.detach().sum(at::kDouble));
}

void Figures::max(const std::string& name, const at::Tensor& x_n) {
  const at::NoGradGuard no_grad;
  const auto options = x_n.options().dtype(at::kDouble);
  sums_.maximise(coded('x', name),
                 x_n.numel() > 0 ? x_n.detach().max().to(at::kDouble) : at::zeros({}, options));
}

void Figures::count(const at::Tensor& x_n) {
  sums_.add(coded('s', kTokens), at::full({}, static_cast<double>(x_n.numel()),
                                          x_n.options().dtype(at::kDouble).requires_grad(false)));
}

engine::DeviceSums Figures::take() { return std::exchange(sums_, {}); }

StepFigures StepFigures::reduce(const engine::HostSums& of_rank, sp::Communicator& world) {
  std::vector<const std::string*> summed, compared;  // names in the same order on every rank
  std::vector<double> sums, maxima;
  for (const auto& [name, values] : of_rank) {
    if (name.starts_with(kPrefix)) {
      const bool is_max = rule_of(name[kRuleAt]) == FigureRule::kMax;
      (is_max ? compared : summed).push_back(&name);
      (is_max ? maxima : sums).push_back(values.front());
    }
  }
  StepFigures result;
  const auto put = [&](const std::vector<const std::string*>& names,
                       const std::vector<double>& values) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      result.set(names[i]->substr(kNameAt), rule_of((*names[i])[kRuleAt]), values[i]);
    }
  };
  if (!sums.empty()) {
    put(summed, sum_over_ranks(sums, world));
  }
  if (!maxima.empty()) {
    put(compared, sp::max_scalars(maxima, world));
  }
  return result;
}

StepFigures& StepFigures::operator+=(const StepFigures& other) {
  for (const auto& [name, figure] : other.figures_) {
    const auto [mine, is_new] = figures_.try_emplace(name, figure);
    if (!is_new) {
      double& value = mine->second.value;
      value = figure.rule == FigureRule::kMax ? larger(value, figure.value) : value + figure.value;
    }
  }
  return *this;
}

double StepFigures::operator[](const std::string& name) const {
  const auto found = figures_.find(name);
  if (found == figures_.end()) {
    return 0.0;
  }
  if (found->second.rule != FigureRule::kMean) {
    return found->second.value;
  }
  const auto tokens = figures_.find(kTokens);
  const double count = tokens == figures_.end() ? 0.0 : tokens->second.value;
  return count > 0.0 ? found->second.value / count : 0.0;
}

}  // namespace ringside::rl
