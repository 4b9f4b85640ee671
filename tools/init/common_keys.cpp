#include "tools/init/common_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

namespace ringside::tools {
namespace {

// Whether a text names a file or folder rather than something on the hub.
bool is_path(const std::string& text) {
  static constexpr std::array<std::string_view, 9> kBegins = {
      "/", "./", "../", "~", "hdfs:", "models/", "data/", "checkpoints/", "outputs/"};
  static constexpr std::array<std::string_view, 4> kEnds = {".jsonl", ".json", ".parquet", ".csv"};
  const auto begins = [&](std::string_view part) { return text.starts_with(part); };
  const auto ends = [&](std::string_view part) { return text.ends_with(part); };
  return std::any_of(kBegins.begin(), kBegins.end(), begins) ||
         std::any_of(kEnds.begin(), kEnds.end(), ends) || std::filesystem::exists(text);
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('/') + 1); }

// The files of one data set.
std::string data_path(Translator& keys, const std::string& text, std::string_view ours) {
  if (is_path(text)) {
    return text;
  }
  const std::string folder = "data/" + last_part(text);
  keys.to_do("`hf download --repo-type dataset " + text + " --local-dir " + folder +
             "`, and name its files in " + std::string(ours));
  return folder + "/*.parquet";
}

}  // namespace

std::string first_written(const Translator& keys, std::initializer_list<std::string> names) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const std::string& name) { return keys.has(name); });
  return found == names.end() ? *names.begin() : *found;
}

void set_model(Translator& keys, std::string_view theirs) {
  const auto name = keys.text(theirs);
  if (!name) {
    keys.set("model.path", "models/MODEL", "the file names no model");
    keys.to_do("name the model in model.path");
  } else if (is_path(*name)) {
    keys.set("model.path", *name, keys.from({theirs}));
  } else {
    const std::string folder = "models/" + last_part(*name);
    keys.set("model.path", folder, keys.from({theirs}));
    keys.to_do("`hf download " + *name + " --local-dir " + folder + "`");
  }
}

void set_data(Translator& keys, std::string_view theirs, std::string_view ours) {
  const auto names = keys.items(theirs);
  std::string list;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ", ") + data_path(keys, name, ours);
  }
  if (names.empty() && (ours == "data.train" || ours == "data.sft")) {
    keys.set(ours, "train.jsonl", "the file names no data");
    keys.to_do("name the data in " + std::string(ours));
  } else if (!names.empty()) {
    keys.set(ours, names.size() > 1 ? "[" + list + "]" : list, keys.from({theirs}));
  }
}

void set_quotient(Translator& keys, std::string_view ours, int64_t whole, int64_t part,
                  std::string_view key, const std::string& what, const std::string& comment) {
  if (part <= 0 || whole <= 0 || whole % part != 0) {
    keys.mistake(key, what + " would be " + std::to_string(whole) + " / " + std::to_string(part) +
                          ", expected a whole number of at least 1");
  } else {
    keys.set(ours, static_cast<double>(whole / part), comment);
  }
}

void set_steps(Translator& keys, std::string_view theirs, std::string_view ours, int64_t per_step) {
  const auto steps = keys.number(theirs);
  if (!steps || *steps <= 0) {
    return;
  }
  keys.set(ours, std::ceil(*steps / static_cast<double>(per_step)),
           keys.from({theirs}) +
               (per_step > 1 ? " / " + std::to_string(per_step) + " optimizer steps a step" : ""));
}

void set_warmup_share(Translator& keys, std::string_view theirs, double share, int64_t per_step) {
  if (share <= 0) {
    return;
  }
  const std::string steps = keys.value_of("train.steps");
  const std::string comment =
      keys.from({theirs}).empty()
          ? number_text(share) + " of the run, the default of " + std::string(theirs)
          : keys.from({theirs});
  if (steps.empty()) {
    keys.to_do("optimizer.warmup_steps: " + number_text(share) + " of the run's optimizer steps (" +
               comment + ")");
    return;
  }
  const double all = std::stod(steps) * static_cast<double>(per_step);
  keys.set("optimizer.warmup_steps", std::ceil(share * all),
           comment + "; of " + number_text(all) + " optimizer steps");
}

void steps_of_epochs(Translator& keys, std::string_view theirs, std::string_view per_step) {
  if (const auto epochs = keys.number(theirs)) {
    keys.to_do("train.steps: " + number_text(*epochs) + " x the number of prompts / " +
               std::string(per_step) + " (" + keys.from({theirs}) + "); the default is 100");
    keys.leave(theirs, "train.steps counts steps; see what is left to do");
  }
}

void set_betas(Translator& keys, std::string_view theirs) {
  const auto betas = keys.items(theirs);
  if (betas.size() == 2) {
    keys.set("optimizer.beta1", betas[0], keys.from({theirs}));
    keys.set("optimizer.beta2", betas[1], keys.from({theirs}));
  } else if (!betas.empty()) {
    keys.mistake(theirs, "has " + std::to_string(betas.size()) + " numbers, expected two");
  }
}

void set_shards(Translator& keys, int64_t processes, int64_t sequence, const std::string& comment) {
  if (processes > 1 && sequence > 0 && processes % sequence == 0 && processes / sequence > 1) {
    keys.set("parallel.data_parallel_shard_size", static_cast<double>(processes / sequence),
             comment);
  }
}

void leave_known(Translator& keys, std::initializer_list<KnownReason> reasons) {
  for (const KnownReason& known : reasons) {
    keys.leave_all(known.key, std::string(known.reason));
  }
}

std::string server_reason(const std::string& name) {
  return "the built-in generator samples; for " + name +
         " start a server, and set rollout.server (configs/servers)";
}

}  // namespace ringside::tools
