// Report of one or more run directories as one self-contained HTML page: state, curves, time by
// stage, samples with coloured tokens, differences of configuration, warnings, machines. The page
// loads nothing over the network. Torch-free.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

struct ReportOptions {
  // The page stays below this. Longer runs are averaged over neighbouring steps, then samples are
  // shortened, then samples of some steps are left out.
  std::size_t max_bytes = 1'900'000;
  // Whether a trainer works in a run directory now; empty: none does.
  std::function<bool(const std::filesystem::path&)> trainer_at_work{};
};

// The page about the runs, in order. Reads metrics.jsonl, config.yaml, samples.jsonl, starts.jsonl,
// ends.jsonl and warnings.log of each; all but metrics.jsonl may be missing.
// Throws: std::runtime_error naming the directory or the file and line, when a directory has no
// metrics or a file does not have its form.
std::string html_report(const std::vector<std::filesystem::path>& run_dirs,
                        const ReportOptions& options = {});

// The page without its data, which replaces the marker @REPORT_DATA@.
std::string_view report_page();

}  // namespace ringside::rl
