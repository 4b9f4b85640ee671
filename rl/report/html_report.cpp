#include "rl/report/html_report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "rl/config/load.h"
#include "rl/config/yaml_source.h"
#include "rl/report/metrics_reader.h"
#include "rl/report/report_curves.h"
#include "rl/report/run_state.h"
#include "rl/report/run_summary.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;
using PageJson = nlohmann::ordered_json;

constexpr std::size_t kMostWarnings = 200;  // of a run, the last ones
constexpr std::string_view kDataMarker = "@REPORT_DATA@";

// How much of the samples is shown.
struct SampleDetail {
  std::size_t tokens = 1024;  // of a completion
  std::size_t stride = 1;     // every how many steps
};

struct ReportRun {
  std::string name;
  std::vector<MetricsLine> lines;
  std::map<int64_t, std::vector<PageJson>> samples;  // by step
  std::map<std::string, std::string> config;
  PageJson starts = PageJson::array();
  std::vector<std::string> warnings;
  RunState state;
};

// Calls use(object, where) with each complete line of a file of JSON objects, if it exists.
template <class Use>
void for_each_object(const fs::path& path, Use use) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  for (int64_t number = 1; std::getline(file, text) && !file.eof(); ++number) {
    const std::string where = path.string() + ":" + std::to_string(number);
    PageJson object = PageJson::parse(text, nullptr, false);
    if (!object.is_object()) {
      throw std::runtime_error(where + ": expected a JSON object");
    }
    try {
      use(std::move(object));
    } catch (const nlohmann::json::exception& error) {
      throw std::runtime_error(where + ": a field is missing or has another type: " + error.what());
    }
  }
}

// A step that is trained again after a restart replaces what there was from it on.
std::map<int64_t, std::vector<PageJson>> read_samples(const fs::path& path) {
  std::map<int64_t, std::vector<PageJson>> samples;
  int64_t last_step = 0;
  int64_t last_term = -1;
  for_each_object(path, [&](PageJson line) {
    const auto step = line.at("step").get<int64_t>();
    const auto term = line.at("logged_in_term").get<int64_t>();
    if (step < last_step || (step == last_step && term != last_term)) {
      samples.erase(samples.lower_bound(step), samples.end());
    }
    last_step = step;
    last_term = term;
    samples[step].push_back(std::move(line));
  });
  return samples;
}

std::vector<std::string> read_warnings(const fs::path& path) {
  std::vector<std::string> warnings;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    warnings.push_back(std::move(line));
  }
  if (warnings.size() > kMostWarnings) {
    warnings.erase(warnings.begin(), warnings.end() - static_cast<std::ptrdiff_t>(kMostWarnings));
  }
  return warnings;
}

std::map<std::string, std::string> flat_values(const std::string& name, const std::string& text) {
  std::vector<std::string> errors;  // a key of another version of the program is left out
  std::map<std::string, std::string> values;
  for (const SourceValue& value : flatten_yaml({name, text, {}}, errors)) {
    values[value.key] = value.text;
  }
  return values;
}

std::string file_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ReportRun read_run(const fs::path& dir, const ReportOptions& options) {
  ReportRun run;
  run.name = fs::weakly_canonical(dir).filename().string();
  run.lines = read_metrics(dir / "metrics.jsonl");
  if (run.lines.empty()) {
    throw std::runtime_error(dir.string() +
                             ": has no metrics.jsonl with a step in it; expected a run directory");
  }
  run.samples = read_samples(dir / "samples.jsonl");
  run.config = flat_values((dir / "config.yaml").string(), file_text(dir / "config.yaml"));
  for_each_object(dir / "starts.jsonl",
                  [&](PageJson line) { run.starts.push_back(std::move(line)); });
  run.warnings = read_warnings(dir / "warnings.log");
  run.state =
      read_run_state(dir, run.lines, options.trainer_at_work && options.trainer_at_work(dir));
  return run;
}

// Directories of the same name are told apart by the folder above.
void name_apart(std::vector<ReportRun>& runs, const std::vector<fs::path>& dirs) {
  std::map<std::string, int> uses;
  for (const ReportRun& run : runs) {
    ++uses[run.name];
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (uses[runs[i].name] > 1) {
      const fs::path whole = fs::weakly_canonical(dirs[i]);
      runs[i].name = whole.parent_path().filename().string() + "/" + runs[i].name;
    }
  }
}

// Largest absolute advantage among the samples of a step.
double advantage_scale(const std::vector<PageJson>& samples) {
  double scale = 0.0;
  for (const PageJson& sample : samples) {
    if (const auto list = sample.find("advantages"); list != sample.end()) {
      for (const PageJson& value : *list) {
        scale = std::max(scale, value.is_null() ? 0.0 : std::abs(value.get<double>()));
      }
    }
  }
  return scale > 0.0 ? scale : 1.0;
}

// Null for a sample that was scored once.
PageJson ratios_of(const PageJson& sample, std::size_t shown) {
  if (!sample.contains("old_logprobs") || !sample.contains("new_logprobs")) {
    return {};
  }
  const PageJson& before = sample.at("old_logprobs");
  const PageJson& after = sample.at("new_logprobs");
  PageJson ratios = PageJson::array();
  for (std::size_t i = 0; i < std::min(shown, before.size()); ++i) {
    ratios.push_back(before.at(i).is_null()
                         ? PageJson()
                         : rounded(std::exp(after.at(i).get<double>() - before[i].get<double>())));
  }
  return ratios;
}

PageJson advantages_of(const PageJson& sample, std::size_t shown) {
  const PageJson& list = sample.at("advantages");
  PageJson values = PageJson::array();
  for (std::size_t i = 0; i < std::min(shown, list.size()); ++i) {
    values.push_back(list[i].is_null() ? PageJson() : rounded(list[i].get<double>()));
  }
  const bool constant = std::all_of(values.begin(), values.end(),
                                    [&](const PageJson& v) { return v == values.front(); });
  return constant && !values.empty() ? PageJson(values.front()) : values;
}

PageJson page_sample(const PageJson& sample, double scale, std::size_t most_tokens) {
  const PageJson& tokens = sample.at("tokens");
  const std::size_t shown = std::min(most_tokens, tokens.size());
  PageJson page{{"reward", rounded(sample.at("reward").get<double>())},
                {"rewards", sample.at("rewards")},
                {"finish", sample.at("finish_reason")},
                {"version", sample.at("version")},
                {"group", sample.at("group_id")},
                {"prompt", sample.at("prompt")},
                {"answer", sample.contains("answer") ? sample["answer"] : PageJson()},
                {"length", sample.at("length")},
                {"scale", rounded(scale)}};
  if (page["prompt"].is_string()) {
    page["prompt"] = page["prompt"].get<std::string>().substr(0, 8 * most_tokens);
  }
  if (sample.contains("images")) {
    page["images"] = sample["images"];
  }
  page["tokens"] = PageJson(
      std::vector<PageJson>(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(shown)));
  if (sample.contains("advantages")) {
    page["a"] = advantages_of(sample, shown);
    page["r"] = ratios_of(sample, shown);
  }
  return page;
}

void add_samples(PageJson& page, const ReportRun& run, const SampleDetail& detail) {
  page["samples"] = PageJson::object();
  std::size_t index = 0;
  for (const auto& [step, samples] : run.samples) {
    if (index++ % detail.stride != 0) {
      continue;
    }
    const double scale = advantage_scale(samples);
    for (const PageJson& sample : samples) {
      page["samples"][std::to_string(step)].push_back(page_sample(sample, scale, detail.tokens));
    }
  }
}

PageJson page_run(const ReportRun& run, const SampleDetail& detail) {
  PageJson page{
      {"name", run.name},
      {"state", describe_status(run.state)},
      {"times", describe_times(run.state)},
      {"failed", run.state.status == RunStatus::kFailed || run.state.status == RunStatus::kLost},
      {"summary", summarize_run(run.lines)},
      {"starts", run.starts}};
  page["stages"] = PageJson::array();
  for (const StageShare& share : stage_shares(run.lines)) {
    page["stages"].push_back({{"stage", share.stage},
                              {"text", stage_text(share.stage)},
                              {"seconds", rounded(share.seconds)},
                              {"share", rounded(share.share)}});
  }
  page["warnings"] = report_alarms(run.lines);
  for (const std::string& warning : run.warnings) {
    page["warnings"].push_back(warning);
  }
  page.update(report_curves(run.lines));
  add_samples(page, run, detail);
  return page;
}

// Keys whose values differ between the runs; of a single run, those that differ from the defaults.
void add_configuration(PageJson& page, const std::vector<ReportRun>& runs) {
  using Values = std::map<std::string, std::string>;
  std::vector<std::pair<std::string, Values>> columns;
  for (const ReportRun& run : runs) {
    columns.emplace_back(run.name, run.config);
  }
  const bool single = runs.size() == 1;
  if (single) {
    const Config defaults;
    columns.insert(columns.begin(), {"default", flat_values("defaults", dump(defaults))});
  }
  std::set<std::string> keys;
  for (const auto& [name, values] : columns) {
    page["config_columns"].push_back(name);
    for (const auto& [key, value] : values) {
      keys.insert(key);
    }
  }
  page["config_keys"] = PageJson::array();
  for (const std::string& key : keys) {
    PageJson row = PageJson::array();
    std::set<std::string> different;
    for (const auto& [name, values] : columns) {
      const auto found = values.find(key);
      row.push_back(found == values.end() ? PageJson() : PageJson(found->second));
      different.insert(row.back().dump(-1, ' ', false, PageJson::error_handler_t::replace));
    }
    if (different.size() > 1) {
      page["config_keys"].push_back({{"key", key}, {"values", std::move(row)}});
    }
  }
  const bool known = std::any_of(runs.begin(), runs.end(),
                                 [](const ReportRun& run) { return !run.config.empty(); });
  page["config_note"] = !known                        ? "No config.yaml was found."
                        : single                      ? "Keys that differ from the defaults."
                        : page["config_keys"].empty() ? "The runs have the same configuration."
                                                      : "Keys that differ between the runs.";
  if (!known) {
    page["config_keys"] = PageJson::array();
  }
}

std::string page_data(const std::vector<ReportRun>& runs, const SampleDetail& detail) {
  PageJson page{{"runs", PageJson::array()}};
  for (const ReportRun& run : runs) {
    page["runs"].push_back(page_run(run, detail));
  }
  add_configuration(page, runs);
  const std::string text = page.dump(-1, ' ', false, PageJson::error_handler_t::replace);
  std::string escaped;  // "</script>" in a completion must not end the script
  for (const char c : text) {
    escaped += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return escaped;
}

// Less and less of the samples.
std::vector<SampleDetail> detail_levels() {
  std::vector<SampleDetail> levels{{1024, 1}, {512, 1}, {256, 1}, {128, 1}, {64, 1}};
  for (std::size_t stride = 2; stride <= (1U << 20); stride *= 4) {
    levels.push_back({64, stride});
  }
  return levels;
}

}  // namespace

std::string html_report(const std::vector<fs::path>& run_dirs, const ReportOptions& options) {
  std::vector<ReportRun> runs;
  for (const fs::path& dir : run_dirs) {
    runs.push_back(read_run(dir, options));
  }
  name_apart(runs, run_dirs);
  const std::string_view page = report_page();
  const std::size_t at = page.find(kDataMarker);
  std::string text;
  for (const SampleDetail& detail : detail_levels()) {
    text = std::string(page.substr(0, at)) + page_data(runs, detail) +
           std::string(page.substr(at + kDataMarker.size()));
    if (text.size() <= options.max_bytes) {
      break;
    }
  }
  return text;
}

}  // namespace ringside::rl
