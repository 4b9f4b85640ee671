#include "rl/algorithm/pair_losses.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ringside::rl {
namespace {

// A loss of one pair and its derivatives.
struct PairLoss {
  double loss = 0.0;
  double by_chosen = 0.0;
  double by_rejected = 0.0;
};

double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x >= 0 ? 1.0 : e) / (1.0 + e);
}

double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

void check_pairs(const ScoredPairs& pairs, bool with_reference) {
  const std::size_t documents = pairs.score.size();
  const bool even = documents % 2 == 0;
  if (!even || (with_reference &&
                (pairs.reference.size() != documents || pairs.tokens.size() != documents))) {
    throw std::invalid_argument("pair losses: " + std::to_string(documents) +
                                " scores, expected two a pair, with a reference and a number of "
                                "tokens each for a policy");
  }
}

// chosen, rejected: score - reference.
PairLoss loss_of_policy(double chosen, double rejected, double chosen_tokens,
                        double rejected_tokens, const PreferenceConfig& config) {
  const double beta = config.beta;
  const double margin = beta * (chosen - rejected);
  switch (config.loss) {
    case PreferenceLoss::kSigmoid: {
      const double e = config.label_smoothing;
      const double by_margin = -(1 - e) * sigmoid(-margin) + e * sigmoid(margin);
      return {-(1 - e) * log_sigmoid(margin) - e * log_sigmoid(-margin), beta * by_margin,
              -beta * by_margin};
    }
    case PreferenceLoss::kHinge: {
      const double slope = margin < 1 ? -beta : 0.0;
      return {std::max(0.0, 1 - margin), slope, -slope};
    }
    case PreferenceLoss::kIpo: {
      const double of_chosen = std::max(1.0, chosen_tokens);
      const double of_rejected = std::max(1.0, rejected_tokens);
      const double difference = chosen / of_chosen - rejected / of_rejected - 1 / (2 * beta);
      return {difference * difference, 2 * difference / of_chosen, -2 * difference / of_rejected};
    }
  }
  throw std::invalid_argument("unknown loss of preferences");
}

void add_reward(PairFigures& figures, double reward, bool first) {
  figures.min_reward = first ? reward : std::min(figures.min_reward, reward);
  figures.max_reward = first ? reward : std::max(figures.max_reward, reward);
}

// Adds a pair with the rewards of its documents.
void add_pair(PairLosses& all, const PairLoss& loss, const ScoredPairs& pairs, std::size_t chosen,
              double chosen_reward, double rejected_reward) {
  all.derivative.push_back(loss.by_chosen);
  all.derivative.push_back(loss.by_rejected);
  PairFigures& figures = all.figures;
  add_reward(figures, chosen_reward, figures.pairs == 0.0);
  add_reward(figures, rejected_reward, false);
  figures.pairs += 1.0;
  figures.loss += loss.loss;
  figures.correct += chosen_reward > rejected_reward ? 1.0 : 0.0;
  figures.chosen_reward += chosen_reward;
  figures.rejected_reward += rejected_reward;
  figures.chosen_score += pairs.score[chosen];
  figures.rejected_score += pairs.score[chosen + 1];
  figures.chosen_tokens += pairs.tokens.empty() ? 0.0 : static_cast<double>(pairs.tokens[chosen]);
}

}  // namespace

PairFigures& PairFigures::operator+=(const PairFigures& other) {
  if (other.pairs > 0.0) {
    min_reward = pairs > 0.0 ? std::min(min_reward, other.min_reward) : other.min_reward;
    max_reward = pairs > 0.0 ? std::max(max_reward, other.max_reward) : other.max_reward;
  }
  for (double PairFigures::*sum :
       {&PairFigures::pairs, &PairFigures::loss, &PairFigures::correct, &PairFigures::chosen_reward,
        &PairFigures::rejected_reward, &PairFigures::chosen_score, &PairFigures::rejected_score,
        &PairFigures::chosen_tokens}) {
    this->*sum += other.*sum;
  }
  return *this;
}

double PairFigures::mean(double PairFigures::*sum) const {
  return pairs > 0.0 ? this->*sum / pairs : 0.0;
}

double PairFigures::total_loss(double sft_coef) const {
  const double of_chosen = chosen_tokens > 0.0 ? -chosen_score / chosen_tokens : 0.0;
  return mean(&PairFigures::loss) + (sft_coef > 0.0 ? sft_coef * of_chosen : 0.0);
}

PairLosses dpo_losses(const ScoredPairs& pairs, const PreferenceConfig& config) {
  check_pairs(pairs, /*with_reference=*/true);
  PairLosses losses;
  for (std::size_t c = 0; c < pairs.score.size(); c += 2) {
    const double chosen = pairs.score[c] - pairs.reference[c];
    const double rejected = pairs.score[c + 1] - pairs.reference[c + 1];
    const PairLoss loss = loss_of_policy(chosen, rejected, static_cast<double>(pairs.tokens[c]),
                                         static_cast<double>(pairs.tokens[c + 1]), config);
    add_pair(losses, loss, pairs, c, config.beta * chosen, config.beta * rejected);
  }
  return losses;
}

PairLosses bradley_terry_losses(const ScoredPairs& pairs, const PreferenceConfig& config) {
  check_pairs(pairs, /*with_reference=*/false);
  PairLosses losses;
  for (std::size_t c = 0; c < pairs.score.size(); c += 2) {
    const double chosen = pairs.score[c];
    const double rejected = pairs.score[c + 1];
    const double slope = sigmoid(rejected - chosen);
    const double sum = chosen + rejected;
    const PairLoss loss{-log_sigmoid(chosen - rejected) + config.center_coef * sum * sum,
                        -slope + 2 * config.center_coef * sum,
                        slope + 2 * config.center_coef * sum};
    add_pair(losses, loss, pairs, c, chosen, rejected);
  }
  return losses;
}

std::vector<double> token_weights(const ScoredPairs& pairs, const PairLosses& losses,
                                  double sft_coef) {
  const double count = std::max(1.0, losses.figures.pairs);
  const double of_chosen = sft_coef / std::max(1.0, losses.figures.chosen_tokens);
  std::vector<double> weights;
  for (std::size_t d = 0; d < losses.derivative.size(); ++d) {
    const int64_t tokens = pairs.tokens.empty() ? 1 : pairs.tokens[d];
    const double weight = losses.derivative[d] / count - (d % 2 == 0 ? of_chosen : 0.0);
    weights.insert(weights.end(), static_cast<std::size_t>(tokens), weight);
  }
  return weights;
}

}  // namespace ringside::rl
