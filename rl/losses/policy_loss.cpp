#include "rl/losses/policy_loss.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace ringside::rl {

extern const PolicyLoss kPpoClip, kCispo, kSapo, kDppoTv, kGmpo, kReinforce, kClipCov, kKlCov,
    kDppoKl, kVespo, kDro;

namespace {

// The table: one file of this folder each.
constexpr std::array kTable = {&kPpoClip, &kCispo, &kSapo,   &kDppoTv, &kGmpo, &kReinforce,
                               &kClipCov, &kKlCov, &kDppoKl, &kVespo,  &kDro};

std::string dotted(std::string_view block, std::string_view key) {
  return std::string(block).append(".").append(key);
}

}  // namespace

std::span<const PolicyLoss* const> policy_losses() { return kTable; }

const PolicyLoss& policy_loss(std::string_view name) {
  const auto found = std::find_if(kTable.begin(), kTable.end(),
                                  [&](const PolicyLoss* loss) { return loss->name == name; });
  if (found == kTable.end()) {
    throw std::invalid_argument("algorithm.loss " + std::string(name) +
                                " is not in the table of losses");
  }
  return **found;
}

LossValues::LossValues() {
  for (const PolicyLoss* loss : kTable) {
    for (const LossKey& key : loss->keys) {
      values_.emplace(dotted(loss->block(), key.name), key.value);
    }
  }
}

double& LossValues::at(std::string_view name) {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    throw std::out_of_range("no loss has a key " + std::string(name));
  }
  return found->second;
}

double LossValues::at(std::string_view name) const {
  return const_cast<LossValues&>(*this).at(name);
}

double LossOptions::operator[](const LossKey& key) const {
  return values.at(dotted(block, key.name));
}

std::pair<double, double> ratio_bounds(const PolicyLoss& loss, const LossOptions& options) {
  return loss.clip_range != nullptr ? loss.clip_range(options)
                                    : std::pair{1.0 - options.clip_low, 1.0 + options.clip_high};
}

}  // namespace ringside::rl
