#include "rl/trainer/run_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "rl/config/load.h"
#include "rl/config/schema.h"
#include "rl/config/yaml_source.h"
#include "rl/report/metrics_writer.h"
#include "rl/trainer/checkpoint.h"
#include "rollout_bridge/base/posix_file.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct ChangedKey {
  std::string key;
  std::string sentence;  // "seed: was 0, now 7"
  bool may_change = false;
};

// Keys that only one of the two configurations has are ignored: the other was written by another
// version of the program.
std::vector<ChangedKey> changed_keys(const fs::path& path, Config config) {
  std::vector<std::string> unknown;
  std::map<std::string, std::string> before;
  for (const SourceValue& value :
       flatten_yaml({path.string(), text_of(path), path.parent_path()}, unknown)) {
    before[value.key] = value.text;
  }
  const auto shown = [](const std::string& text) { return text.empty() ? "empty" : text; };
  std::vector<ChangedKey> changed;
  for (const Field& field : fields_of(config)) {
    const auto found = before.find(field.key);
    const std::string now = value_text(field.slot);
    if (found != before.end() && found->second != now) {
      changed.push_back({field.key,
                         field.key + ": was " + shown(found->second) + ", now " + shown(now),
                         field.may_change_on_resume});
    }
  }
  return changed;
}

// The keys whose files have changed, and whose path has not.
std::vector<ChangedKey> changed_sources(const fs::path& path, const SourceFingerprints& sources,
                                        const std::vector<ChangedKey>& keys) {
  std::vector<ChangedKey> changed;
  if (!fs::exists(path)) {
    return changed;
  }
  const auto before = nlohmann::json::parse(text_of(path), nullptr, /*allow_exceptions=*/false);
  if (!before.is_object()) {
    throw std::runtime_error(path.string() + ": expected a JSON object; remove the file if the " +
                             "data and the models of the run are as they were");
  }
  for (const auto& [key, hash] : sources) {
    const bool moved = std::any_of(keys.begin(), keys.end(),
                                   [&](const ChangedKey& other) { return other.key == key; });
    if (!moved && before.contains(key) && before[key] != hash) {
      changed.push_back({key, key + ": the contents of its files have changed"});
    }
  }
  return changed;
}

// Writes RUN_DIR/name by rename, so that a crash leaves the old file or the new one.
void replace_file(const fs::path& run_dir, const std::string& name, const std::string& text) {
  const fs::path fresh = run_dir / (name + ".new");
  {
    bridge::PosixFile file(fresh, O_WRONLY | O_CREAT | O_TRUNC);
    file.append(std::as_bytes(std::span(text)));
    file.sync();
  }
  fs::permissions(fresh, fs::perms::group_read | fs::perms::others_read, fs::perm_options::add);
  fs::rename(fresh, run_dir / name);
}

StartPlan refuse(const fs::path& run_dir, const std::vector<std::string>& sentences) {
  StartPlan plan{StartKind::kRefused, {}, false};
  plan.lines.push_back(run_dir.string() +
                       " holds a run with another configuration (config.yaml, sources.json):");
  for (const std::string& sentence : sentences) {
    plan.lines.push_back("  " + sentence);
  }
  plan.lines.emplace_back(
      "nothing was started; expected another --run-dir, or --accept-changes to go on with the new "
      "values");
  return plan;
}

}  // namespace

bool trainer_at_work(const fs::path& run_dir) {
  std::ifstream file(run_dir / "trainer.pid");
  pid_t pid = 0;
  return (file >> pid) && pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

RunDirectoryLock::RunDirectoryLock(const fs::path& run_dir) {
  fs::create_directories(run_dir);
  const fs::path path = run_dir / "trainer.pid";
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    throw std::system_error(errno, std::generic_category(), path.string());
  }
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    close(fd_);
    if (error != EWOULDBLOCK) {
      throw std::system_error(error, std::generic_category(), "locking " + path.string());
    }
    std::string pid = text_of(path);
    pid.erase(pid.find_last_not_of(" \n") + 1);
    throw std::runtime_error("another trainer " + (pid.empty() ? "" : "(pid " + pid + ") ") +
                             "is at work in " + run_dir.string() +
                             "; expected another --run-dir, or that trainer to be stopped first");
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(fd_, 0) != 0 ||
      write(fd_, pid.data(), pid.size()) != static_cast<ssize_t>(pid.size())) {
    const int error = errno;
    close(fd_);
    throw std::system_error(error, std::generic_category(), "writing " + path.string());
  }
}

RunDirectoryLock::~RunDirectoryLock() { close(fd_); }

StartPlan plan_start(const fs::path& run_dir, const Config& config, int64_t steps,
                     bool accept_changes, const SourceFingerprints& sources) {
  StartPlan plan;
  const auto checkpoint = latest_checkpoint(run_dir);
  const bool trained = checkpoint || last_metrics_step(run_dir / "metrics.jsonl") > 0;
  std::vector<std::string> refused;
  if (const fs::path kept = run_dir / "config.yaml"; fs::exists(kept)) {
    std::vector<ChangedKey> changes = changed_keys(kept, config);
    const auto contents = changed_sources(run_dir / "sources.json", sources, changes);
    changes.insert(changes.end(), contents.begin(), contents.end());
    for (const ChangedKey& change : changes) {
      plan.lines.push_back(change.sentence);
      if (!change.may_change) {
        refused.push_back(change.sentence);
      }
    }
    plan.drop_journal = !refused.empty();
  } else if (checkpoint) {
    refused.emplace_back("config.yaml is missing, so changed keys cannot be found");
    plan.lines = refused;
  }
  if (!refused.empty() && trained && !accept_changes) {
    return refuse(run_dir, refused);
  }
  const auto finished = final_step(run_dir);
  if (finished >= steps && (!checkpoint || checkpoint_step(*checkpoint) <= *finished)) {
    return {StartKind::kFinished,
            {"already finished: " + std::to_string(*finished) + " steps, " +
             final_directory(run_dir).string()},
            false};
  }
  if (finished && !checkpoint && !accept_changes) {
    return {StartKind::kRefused,
            {final_directory(run_dir).string() + " holds the weights of step " +
                 std::to_string(*finished) + ", but " + (run_dir / "checkpoints").string() +
                 " holds no checkpoint, which training would go on from",
             "nothing was started; expected the checkpoint of that step, another --run-dir, or "
             "--accept-changes to start again from step 1"},
            false};
  }
  return plan;
}

void begin_start(const fs::path& run_dir, const Config& config, const StartPlan& plan,
                 const SourceFingerprints& sources) {
  if (plan.drop_journal) {
    fs::remove_all(run_dir / "bridge" / "journal");
  }
  replace_file(run_dir, "config.yaml", dump(config));
  replace_file(run_dir, "sources.json", nlohmann::json(sources).dump(2) + "\n");
}

std::optional<EarlierTry> set_earlier_try_aside(const fs::path& run_dir) {
  const fs::path metrics = run_dir / "metrics.jsonl";
  const int64_t steps = last_metrics_step(metrics);
  if (steps == 0) {
    return std::nullopt;
  }
  const auto numbered = [&](const char* name, int number, const char* extension) {
    return run_dir / (name + ("." + std::to_string(number)) + extension);
  };
  int number = 1;
  while (fs::exists(numbered("metrics", number, ".jsonl")) ||
         fs::exists(numbered("samples", number, ".jsonl")) ||
         fs::exists(numbered("tensorboard", number, ""))) {
    ++number;
  }
  const fs::path kept = numbered("metrics", number, ".jsonl");
  for (const auto& [name, extension] :
       {std::pair("samples", ".jsonl"), std::pair("tensorboard", "")}) {
    if (const fs::path file = run_dir / (name + std::string(extension)); fs::exists(file)) {
      fs::rename(file, numbered(name, number, extension));
    }
  }
  fs::rename(metrics, kept);
  return EarlierTry{steps, kept};
}

}  // namespace ringside::rl
