#include "rl/trainer/mismatch_alarms.h"

#include <cmath>
#include <cstdio>
#include <optional>

namespace ringside::rl {
namespace {

bool is_rounded(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

}  // namespace

MismatchLimits mismatch_limits(DType dtype) {
  return is_rounded(dtype) ? MismatchLimits{1.1, 1e-2} : MismatchLimits{1.01, 1e-4};
}

std::vector<std::string> MismatchAlarms::add(Metrics& metrics) {
  ++steps_;
  if (find_metric(metrics, "staleness/max").value_or(0.0) > 0) {
    return {};
  }
  struct Alarm {
    const char* watched;
    const char* name;
    double limit;
    Said& said;
  };
  const MismatchLimits limits = mismatch_limits(dtype_);
  std::vector<std::string> sentences;
  for (const Alarm& alarm :
       {Alarm{"token_mult_prob_error", "alarm/mult_prob_error", limits.mult_prob_error, said_[0]},
        Alarm{"rollout_corr/k3_kl", "alarm/mismatch_kl", limits.k3_kl, said_[1]}}) {
    const std::optional<double> value = find_metric(metrics, alarm.watched);
    if (!value) {
      continue;
    }
    const bool rings = !(*value <= alarm.limit);
    metrics.emplace_back(alarm.name, rings ? 1.0 : 0.0);
    const bool worse =
        std::isnan(*value) ? !std::isnan(alarm.said.value) : *value > 2 * alarm.said.value;
    const bool is_due = steps_ - alarm.said.step >= kRepeatSteps;
    if (!rings || (alarm.said.step > 0 && !worse && !is_due)) {
      continue;
    }
    alarm.said = {steps_, *value};
    char text[256];
    std::snprintf(
        text, sizeof text,
        "%s is %.3g, above %.3g, which rounding in %s does not reach: trainer and rollout "
        "engine do not compute the same policy (recipes/troubleshooting.md, \"Mismatch "
        "alarm\")",
        alarm.watched, *value, alarm.limit, std::string(to_string(dtype_)).c_str());
    sentences.emplace_back(text);
  }
  return sentences;
}

}  // namespace ringside::rl
