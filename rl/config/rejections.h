// Criteria by which algorithm.correction.reject leaves out tokens and sequences. Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

// Over what a criterion's statistic is taken: one token, or the loss tokens of a sample.
enum class RejectionLevel { kToken, kSum, kMean, kMax };
// With d = sampler - trainer log-prob: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d.
enum class RejectionStatistic { kK1, kK2, kK3 };

// A token, or all tokens of a sample, are kept if log(low) <= statistic <= log(high) for k1, which
// is a log-ratio, and if statistic <= high for k2 and k3, which are 0 where the policies agree.
// Source: verl 0.9.1's rollout_rs and rollout_rs_threshold, of the same names and bounds.
struct Rejection {
  RejectionLevel level = RejectionLevel::kToken;
  RejectionStatistic statistic = RejectionStatistic::kK1;
  double low = 0.0;  // of k1 alone
  double high = 0.0;
};

// Whether the key holds such a list, and so may have a YAML list as its value.
bool is_rejections_key(std::string_view key);

// The text of the key, a list in YAML's flow style of {by, low, high}, as JSON, which reads back to
// the same; "" for an empty list. `by` is verl's name of the criterion: token_k1, token_k2,
// token_k3, seq_sum_k1 to k3, seq_mean_k1 to k3, seq_max_k2, seq_max_k3. low is of k1 alone;
// without one it is 1 / high. folder is not used: no file is named. Throws: std::invalid_argument
// for another form, a criterion that is named twice, and bounds that keep nothing.
std::string checked_rejections(const std::string& text, const std::filesystem::path& folder);

// The criteria of a text that checked_rejections() has returned; all must hold.
// Throws: as above.
std::vector<Rejection> parse_rejections(const std::string& text);

}  // namespace ringside::rl
