#include "rl/config/rejections.h"

#include <yaml-cpp/yaml.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

namespace ringside::rl {
namespace {

struct Criterion {
  std::string_view name;
  RejectionLevel level;
  RejectionStatistic statistic;
};

constexpr std::array kCriteria = {
    Criterion{"token_k1", RejectionLevel::kToken, RejectionStatistic::kK1},
    Criterion{"token_k2", RejectionLevel::kToken, RejectionStatistic::kK2},
    Criterion{"token_k3", RejectionLevel::kToken, RejectionStatistic::kK3},
    Criterion{"seq_sum_k1", RejectionLevel::kSum, RejectionStatistic::kK1},
    Criterion{"seq_sum_k2", RejectionLevel::kSum, RejectionStatistic::kK2},
    Criterion{"seq_sum_k3", RejectionLevel::kSum, RejectionStatistic::kK3},
    Criterion{"seq_mean_k1", RejectionLevel::kMean, RejectionStatistic::kK1},
    Criterion{"seq_mean_k2", RejectionLevel::kMean, RejectionStatistic::kK2},
    Criterion{"seq_mean_k3", RejectionLevel::kMean, RejectionStatistic::kK3},
    Criterion{"seq_max_k2", RejectionLevel::kMax, RejectionStatistic::kK2},
    Criterion{"seq_max_k3", RejectionLevel::kMax, RejectionStatistic::kK3},
};

constexpr const char* kForm = "expected [{by: CRITERION, low: NUMBER, high: NUMBER}, ...]";

const Criterion& criterion_of(const std::string& name) {
  std::string names;
  for (const Criterion& criterion : kCriteria) {
    if (criterion.name == name) {
      return criterion;
    }
    names.append(names.empty() ? "" : ", ").append(criterion.name);
  }
  throw std::invalid_argument("has the criterion \"" + name + "\"; expected one of " + names);
}

double number_of(const YAML::Node& entry, const char* name, const std::string& by) {
  try {
    return entry[name].as<double>();
  } catch (const YAML::Exception&) {
    throw std::invalid_argument("has no number for " + std::string(name) + " of " + by + "; " +
                                kForm);
  }
}

void check_names(const YAML::Node& entry) {
  for (const auto& part : entry) {
    const std::string name = part.first.Scalar();
    if (name != "by" && name != "low" && name != "high") {
      throw std::invalid_argument("has the field \"" + name + "\"; " + kForm);
    }
  }
}

std::pair<std::string, Rejection> read_rejection(const YAML::Node& entry) {
  if (!entry.IsMap() || !entry["by"] || !entry["by"].IsScalar()) {
    throw std::invalid_argument(std::string("has an entry without \"by\"; ") + kForm);
  }
  check_names(entry);
  const std::string by = entry["by"].Scalar();
  const Criterion& criterion = criterion_of(by);
  Rejection rejection{criterion.level, criterion.statistic, 0.0, number_of(entry, "high", by)};
  const bool is_ratio = criterion.statistic == RejectionStatistic::kK1;
  if (!is_ratio && entry["low"]) {
    throw std::invalid_argument("has low for " + by +
                                ", which is 0 where the policies agree and has one bound; expected "
                                "high alone");
  }
  if (is_ratio) {
    rejection.low = entry["low"] ? number_of(entry, "low", by) : 1.0 / rejection.high;
  }
  if (!(rejection.high > 0) || (is_ratio && !(rejection.low > 0)) ||
      rejection.low > rejection.high) {
    throw std::invalid_argument("has bounds of " + by +
                                " that keep nothing; expected numbers above 0, and low at most "
                                "high");
  }
  return {by, rejection};
}

std::vector<std::pair<std::string, Rejection>> read_rejections(const std::string& text) {
  std::vector<std::pair<std::string, Rejection>> found;
  YAML::Node list;
  try {
    list = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw std::invalid_argument("is no list: " + error.msg + "; " + kForm);
  }
  if (list.IsNull()) {
    return found;
  }
  if (!list.IsSequence()) {
    throw std::invalid_argument("is \"" + text + "\"; " + kForm);
  }
  std::set<std::string> names;
  for (const YAML::Node& entry : list) {
    found.push_back(read_rejection(entry));
    if (!names.insert(found.back().first).second) {
      throw std::invalid_argument("names " + found.back().first + " twice");
    }
  }
  return found;
}

}  // namespace

bool is_rejections_key(std::string_view key) { return key == "algorithm.correction.reject"; }

std::string checked_rejections(const std::string& text, const std::filesystem::path& folder) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [by, rejection] : read_rejections(text)) {
    nlohmann::ordered_json entry{{"by", by}};
    if (rejection.statistic == RejectionStatistic::kK1) {
      entry["low"] = rejection.low;
    }
    entry["high"] = rejection.high;
    list.push_back(std::move(entry));
  }
  return list.empty() ? "" : list.dump();
}

std::vector<Rejection> parse_rejections(const std::string& text) {
  std::vector<Rejection> rejections;
  for (auto& [by, rejection] : read_rejections(text)) {
    rejections.push_back(rejection);
  }
  return rejections;
}

}  // namespace ringside::rl
