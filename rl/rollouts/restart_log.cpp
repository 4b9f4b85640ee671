#include "rl/rollouts/restart_log.h"

#include <fcntl.h>

#include <algorithm>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/base/posix_file.h"

namespace ringside::rl {
namespace {

using Starts = std::vector<std::pair<int64_t, int64_t>>;  // trainer_term, restored version

Starts read_starts(const std::filesystem::path& path) {
  Starts starts;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    int64_t term = 0, version = 0;
    const bool is_pair = static_cast<bool>(fields >> term >> version) && (fields >> std::ws).eof();
    if (!is_pair || (!starts.empty() && term <= starts.back().first)) {
      throw std::runtime_error(path.string() + ":" + std::to_string(starts.size() + 1) + ": \"" +
                               line +
                               "\", expected a rising trainer_term and the version it began with");
    }
    starts.emplace_back(term, version);
  }
  return starts;
}

// Written by rename, so that a crash leaves the old file or the new one.
void write_starts(const std::filesystem::path& path, const Starts& starts) {
  std::string text;
  for (const auto& [term, version] : starts) {
    text += std::to_string(term) + " " + std::to_string(version) + "\n";
  }
  auto fresh = path;
  fresh += ".new";
  {
    bridge::PosixFile file(fresh, O_WRONLY | O_CREAT | O_TRUNC);
    file.append(std::as_bytes(std::span(text)));
    file.sync();
  }
  std::filesystem::rename(fresh, path);
  bridge::sync_directory(path.parent_path());
}

}  // namespace

std::map<int64_t, int64_t> record_start(const std::filesystem::path& directory,
                                        int64_t trainer_term, int64_t restored_version) {
  std::filesystem::create_directories(directory);
  const auto path = directory / "trainer_terms";
  Starts starts = read_starts(path);
  if (!starts.empty() && trainer_term <= starts.back().first) {
    throw std::runtime_error(path.string() + ": trainer_term " + std::to_string(trainer_term) +
                             " after " + std::to_string(starts.back().first));
  }
  std::map<int64_t, int64_t> newest;
  int64_t lowest = restored_version;
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    newest[start->first] = lowest;  // lowest version of all later starts
    lowest = std::min(lowest, start->second);
  }
  starts.emplace_back(trainer_term, restored_version);
  write_starts(path, starts);
  return newest;
}

}  // namespace ringside::rl
