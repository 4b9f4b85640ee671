#include "rl/config/eval_sets.h"

#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rl/config/data_files.h"
#include "rl/config/task.h"

namespace ringside::rl {
namespace {

constexpr const char* kSetsForm = "expected {NAME: FILES, ...}, with FILES as those of data.eval";
constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";

YAML::Node read_sets(const std::string& text) {
  YAML::Node sets;
  try {
    sets = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw std::invalid_argument("is no mapping: " + error.msg + "; " + kSetsForm);
  }
  if (!sets.IsMap()) {
    throw std::invalid_argument("is \"" + text + "\"; " + kSetsForm);
  }
  return sets;
}

std::string name_of(const YAML::Node& node) {
  const std::string name = node.IsScalar() ? node.Scalar() : "";
  if (name.empty() || name.find_first_not_of(kNameCharacters) != std::string::npos) {
    throw std::invalid_argument(
        "has the name \"" + name + "\"; expected letters, digits, \"_\", \"-\" and \".\"" +
        (name.find(':') != std::string::npos ? std::string(", and a blank after \":\"")
                                             : std::string()));
  }
  return name;
}

std::string files_of(const YAML::Node& node, const std::string& name,
                     const std::filesystem::path& folder) {
  std::string text;
  if (node.IsSequence()) {
    YAML::Emitter out;
    out.SetMapFormat(YAML::Flow);
    out.SetSeqFormat(YAML::Flow);
    out << YAML::Clone(node);
    text = out.c_str();
  } else if (node.IsScalar()) {
    text = node.Scalar();
  }
  if (text.empty()) {
    throw std::invalid_argument("has no file under " + name + "; " + kSetsForm);
  }
  return absolute_data_files(text, folder);
}

}  // namespace

std::string EvalSet::metric(std::string_view figure) const {
  if (!name.empty()) {
    return "eval/" + name + "/" + std::string(figure);
  }
  const bool leading = figure == "reward" || figure == "loss";
  return (leading ? "eval_" : "eval/") + std::string(figure);
}

bool is_eval_sets_key(std::string_view key) { return key == "eval.sets"; }

std::string absolute_eval_sets(const std::string& text, const std::filesystem::path& folder) {
  nlohmann::ordered_json sets = nlohmann::ordered_json::object();
  for (const auto& entry : read_sets(text)) {
    const std::string name = name_of(entry.first);
    if (sets.contains(name)) {
      throw std::invalid_argument("has two sets with the name \"" + name + "\"");
    }
    const std::string files = files_of(entry.second, name, folder);
    sets[name] = files.starts_with('[') ? nlohmann::ordered_json::parse(files)
                                        : nlohmann::ordered_json(files);
  }
  return sets.empty() ? "" : sets.dump();
}

std::vector<EvalSet> eval_sets(const Config& config) {
  const NamedFiles unnamed = held_out_files(config);
  std::vector<EvalSet> sets;
  if (!unnamed.files.empty()) {
    sets.push_back({"", unnamed.files, unnamed.key});
  }
  if (!config.eval.sets.empty()) {
    const auto named = nlohmann::ordered_json::parse(config.eval.sets);
    for (const auto& [name, files] : named.items()) {
      sets.push_back(
          {name, files.is_string() ? files.get<std::string>() : files.dump(), "eval.sets." + name});
    }
  }
  return sets;
}

bool evaluation_is_due(const EvalConfig& eval, int64_t step) {
  return eval.every > 0 && (step == 0 ? eval.before_training : step % eval.every == 0);
}

std::vector<std::string> evaluation_metrics(const Config& config) {
  std::vector<std::string> metrics;
  for (const EvalSet& set : eval_sets(config)) {
    if (!samples_completions(config)) {
      metrics.push_back(set.metric("loss"));
      if (learns_preferences(config)) {
        metrics.push_back(set.metric(preference_accuracy(config)));
      }
      continue;
    }
    metrics.push_back(set.metric("reward"));
    for (const int64_t k : pass_at_ks(config.eval.samples)) {
      metrics.push_back(set.metric("pass@" + std::to_string(k)));
    }
  }
  return metrics;
}

std::string best_metric(const Config& config) {
  const auto metrics = evaluation_metrics(config);
  if (metrics.empty() || !config.checkpoint.best_metric.empty()) {
    return config.checkpoint.best_metric;
  }
  return metrics.front();
}

std::vector<int64_t> pass_at_ks(int64_t samples) {
  std::vector<int64_t> ks;
  for (int64_t k = 1; k < samples; k *= 2) {
    ks.push_back(k);
  }
  ks.push_back(samples);
  return ks;
}

}  // namespace ringside::rl
