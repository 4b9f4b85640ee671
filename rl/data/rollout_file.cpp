#include "rl/data/rollout_file.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/json/json_text.h"
#include "rl/config/task.h"
#include "rl/data/json_lines.h"
#include "rl/data/record_members.h"
#include "rollout_bridge/base/base64.h"

namespace ringside::rl {
namespace {

using nlohmann::json;

constexpr const char* kForm =
    "a recorded rollout holds group_id, prompt_ids, completion_ids, logprobs, and reward, rewards "
    "or advantages";

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// The value under `name`, which must be present.
const json& field(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    fail("no \"" + std::string(name) + "\"; " + kForm);
  }
  return *found;
}

template <class T>
T value_of(const json& value, const char* name, const char* expected) {
  try {
    return value.get<T>();
  } catch (const json::exception&) {
    fail("\"" + std::string(name) + "\" is " +
         bridge::clip_text(value.dump(-1, ' ', false, json::error_handler_t::replace), 60) +
         ", expected " + expected);
  }
}

template <class T>
T required(const json& object, const char* name, const char* expected) {
  return value_of<T>(field(object, name), name, expected);
}

template <class T>
T optional(const json& object, const char* name, const char* expected, T otherwise) {
  const auto found = object.find(name);
  const bool absent = found == object.end() || found->is_null();
  return absent ? otherwise : value_of<T>(*found, name, expected);
}

// The objects of a list under `name`; none without such a list.
std::vector<json> objects(const json& line, const char* name, const char* expected) {
  auto list = optional<std::vector<json>>(line, name, expected, {});
  for (const json& item : list) {
    if (!item.is_object()) {
      value_of<std::map<std::string, json>>(item, name, expected);  // throws
    }
  }
  return list;
}

bridge::FinishReason finish_reason(const json& line) {
  const auto name =
      optional<std::string>(line, "finish_reason", "stop, length, aborted or error", "stop");
  const auto reason = bridge::finish_reason_from_name(name);
  if (!reason) {
    fail("finish_reason is \"" + name + "\", expected stop, length, aborted or error");
  }
  return *reason;
}

std::vector<bridge::VersionSpan> versions(const json& line, int64_t completion_tokens) {
  if (!line.contains("versions")) {
    return completion_tokens > 0 ? std::vector<bridge::VersionSpan>{{0, 0, completion_tokens}}
                                 : std::vector<bridge::VersionSpan>{};
  }
  std::vector<bridge::VersionSpan> spans;
  for (const json& span : objects(line, "versions", "a list of {version, begin, end}")) {
    spans.push_back({required<int64_t>(span, "version", "an integer"),
                     required<int64_t>(span, "begin", "an integer"),
                     required<int64_t>(span, "end", "an integer")});
  }
  return spans;
}

std::vector<uint8_t> loss_mask(const json& line) {
  std::vector<uint8_t> mask;
  for (const json& m : optional<std::vector<json>>(line, "loss_mask", "a list of 0 and 1", {})) {
    mask.push_back(m.is_boolean() ? m.get<bool>()
                                  : value_of<int64_t>(m, "loss_mask", "a list of 0 and 1") != 0);
  }
  return mask;
}

bridge::RoutedExperts routed_experts(const json& line) {
  const auto found = line.find("routed_experts");
  if (found == line.end() || found->is_null()) {
    return {};
  }
  if (!found->is_object()) {
    value_of<std::map<std::string, json>>(
        *found, "routed_experts", "an object of layers, per_token, id_bytes and ids");  // throws
  }
  bridge::RoutedExperts routed{
      required<std::vector<int32_t>>(*found, "layers", "a list of layers with experts"),
      required<int32_t>(*found, "per_token", "an integer"),
      required<int32_t>(*found, "id_bytes", "1 or 2"),
      {}};
  const auto text = required<std::string>(*found, "ids", "base64 of the ids");
  auto ids = bridge::from_base64(text);
  if (!ids) {
    fail("\"ids\" of routed_experts is no base64");
  }
  routed.ids = std::move(*ids);
  return routed;
}

bridge::KeptSets kept_sets(const json& line) {
  bridge::KeptSets kept;
  const auto sets = optional<std::vector<std::vector<int32_t>>>(
      line, "kept_sets", "a list with a list of token ids for each completion token", {});
  for (const std::vector<int32_t>& set : sets) {
    kept.counts.push_back(static_cast<int32_t>(set.size()));
    kept.ids.insert(kept.ids.end(), set.begin(), set.end());
  }
  return kept;
}

// Reads rewards or advantages into the rollout.
void read_rewards(const json& line, bridge::Rollout& rollout) {
  const bool failed = rollout.finish_reason == bridge::FinishReason::kAborted ||
                      rollout.finish_reason == bridge::FinishReason::kError;
  if (line.contains("rewards")) {
    rollout.rewards = required<std::vector<std::pair<std::string, double>>>(
        line, "rewards", "a list of [name, number]");
    return;
  }
  rollout.advantages = optional<std::vector<float>>(line, "advantages", "a list of numbers", {});
  if (line.contains("reward") || (rollout.advantages.empty() && !failed)) {
    rollout.rewards = {{"reward", required<double>(line, "reward", "a number")}};
  }
}

bridge::Rollout parse(const json& line) {
  if (!line.is_object()) {
    fail("the line is " + std::string(line.type_name()) + ", expected an object; " + kForm);
  }
  bridge::Rollout rollout;
  rollout.prompt_ids = required<std::vector<int64_t>>(line, "prompt_ids", "a list of token ids");
  rollout.completion_ids =
      required<std::vector<int64_t>>(line, "completion_ids", "a list of token ids");
  rollout.logprobs = required<std::vector<float>>(line, "logprobs", "a list of numbers");
  rollout.loss_mask = loss_mask(line);
  rollout.turn_offsets =
      optional<std::vector<int32_t>>(line, "turn_offsets", "a list of integers", {});
  rollout.turn_rewards =
      optional<std::vector<double>>(line, "turn_rewards", "a list of numbers", {});
  for (const json& branch : objects(line, "branches", "a list of {begin, context_end}")) {
    rollout.branches.push_back({required<int64_t>(branch, "begin", "an integer"),
                                required<int64_t>(branch, "context_end", "an integer")});
  }
  if (!objects(line, "images", "a list of objects").empty()) {
    fail(
        "the conversation has images, whose pixels are in no file; expected rollouts without "
        "\"images\"");
  }
  rollout.routed_experts = routed_experts(line);
  rollout.kept_sets = kept_sets(line);
  rollout.top_p = optional<float>(line, "top_p", "a number", 1.0F);
  rollout.top_k = optional<int32_t>(line, "top_k", "an integer", 0);
  rollout.temperature = optional<float>(line, "temperature", "a number", 1.0F);
  rollout.finish_reason = finish_reason(line);
  rollout.versions = versions(line, static_cast<int64_t>(rollout.completion_ids.size()));
  rollout.trainer_term = 0;
  read_rewards(line, rollout);
  return rollout;
}

json parse_line(const std::string& text) {
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    fail("is no JSON object: it goes wrong at character " + std::to_string(error.byte));
  }
}

// A group that was trained again after a restart is in log.rollouts' file a second time, under
// another trainer term.
std::string group_label(const json& line) {
  std::string label = field(line, "group_id").dump();
  return line.contains("logged_in_term") ? label + " of start " + line["logged_in_term"].dump()
                                         : label;
}

// Numbers groups and samples in file order and checks group_size.
class GroupNumbering {
 public:
  explicit GroupNumbering(int64_t group_size) : group_size_(group_size) {}

  void number(bridge::Rollout& rollout, const std::string& label) {
    if (label != label_ || in_group_ == 0) {
      finish();
      label_ = label;
      ++group_;
    }
    if (in_group_ == group_size_) {
      throw std::runtime_error("group " + label + " has more than rollout.group_size = " +
                               std::to_string(group_size_) + " consecutive lines");
    }
    rollout.group_id = group_;
    rollout.group_size = static_cast<int32_t>(group_size_);
    rollout.sample_index = static_cast<int32_t>(in_group_++);
    rollout.rollout_id = std::to_string(group_) + "/" + std::to_string(rollout.sample_index);
  }

  void finish() {
    if (group_ >= 0 && in_group_ != group_size_) {
      throw std::runtime_error(
          "group " + label_ + " ends after " + std::to_string(in_group_) +
          " lines, expected rollout.group_size = " + std::to_string(group_size_));
    }
    in_group_ = 0;
  }

 private:
  int64_t group_size_;
  int64_t group_ = -1;
  int64_t in_group_ = 0;
  std::string label_;
};

}  // namespace

std::vector<bridge::Rollout> read_rollout_file(
    const std::filesystem::path& path, int64_t group_size,
    const std::function<bridge::Status(const bridge::Rollout&)>& admit) {
  std::ifstream file(path);
  if (!file) {
    throw std::runtime_error("cannot read rollouts from " + path.string());
  }
  std::vector<bridge::Rollout> rollouts;
  GroupNumbering numbering(group_size);
  std::string text;
  int64_t line_number = 0;
  try {
    while (std::getline(file, text)) {
      ++line_number;
      if (text.empty()) {
        continue;
      }
      const json line = parse_line(text);
      bridge::Rollout rollout = parse(line);
      numbering.number(rollout, group_label(line));
      bridge::Status status = bridge::validate(rollout);
      if (status.ok() && admit) {
        status = admit(rollout);
      }
      if (!status.ok()) {
        throw std::runtime_error(status.error().detail);
      }
      rollouts.push_back(std::move(rollout));
    }
    numbering.finish();
  } catch (const json::exception& error) {
    throw std::runtime_error(
        path.string() + ":" + std::to_string(line_number) +
        ": a member has another type than expected: " + engine::json_problem(error));
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const bool placed = what.starts_with(path.string() + ":");
    throw std::runtime_error(
        placed ? what : path.string() + ":" + std::to_string(line_number) + ": " + what);
  }
  if (rollouts.empty()) {
    throw std::runtime_error(path.string() + " holds no rollout");
  }
  return rollouts;
}

std::vector<int64_t> recorded_kinds(const std::filesystem::path& path, const Config& config) {
  const auto choices = record_choices(config);
  std::vector<int64_t> kinds;
  LineIndex lines(path);
  for (int64_t i = 0; i < lines.size(); i += sampled_group_size(config)) {
    const std::string place = path.string() + ":" + std::to_string(lines.line_number(i));
    use_record(place, [&] {
      kinds.push_back(record_kind(nlohmann::ordered_json::parse(lines.line(i)), choices));
    });
  }
  return kinds;
}

}  // namespace ringside::rl
