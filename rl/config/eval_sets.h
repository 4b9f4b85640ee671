// Held-out sets of a run: the one of data.eval or data.sft_eval, which has no name, and those of
// eval.sets. Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

struct EvalSet {
  std::string name;   // "": that of data.eval or data.sft_eval
  std::string files;  // as data_file_entries()
  std::string key;    // where it was set: "data.eval", or "eval.sets.NAME"

  // The metric that holds a figure of its evaluation: "eval_reward" and "eval/pass@1" without a
  // name, "eval/NAME/reward" and "eval/NAME/pass@1" with one.
  std::string metric(std::string_view figure) const;
};

// Whether the key holds sets by name, and so may have a YAML mapping as its value.
bool is_eval_sets_key(std::string_view key);

// The text of eval.sets, {NAME: FILES, ...} in YAML's flow style, with absolute paths; it becomes
// JSON, which reads back to the same. "" for "{}".
// Throws: std::invalid_argument for text of another form, for a name with other characters than
// letters, digits, "_", "-" and ".", and for one that two sets have.
std::string absolute_eval_sets(const std::string& text, const std::filesystem::path& folder);

// The sets that evaluations of this configuration use, the one without a name first.
std::vector<EvalSet> eval_sets(const Config& config);

// Whether an evaluation is due after `step` steps; step 0: before training.
bool evaluation_is_due(const EvalConfig& eval, int64_t step);

// The metrics that checkpoint.best_metric may name: of each set its reward and pass@k, or its loss.
// The first is the default.
std::vector<std::string> evaluation_metrics(const Config& config);

// The metric that decides on the best checkpoint and that a run shows as its evaluation; "" if
// nothing is evaluated.
std::string best_metric(const Config& config);

// The numbers k of pass@k for this many completions of a prompt: 1, 2, 4, ... below `samples`, and
// `samples`.
std::vector<int64_t> pass_at_ks(int64_t samples);

}  // namespace ringside::rl
