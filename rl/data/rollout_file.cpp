#include "rl/data/rollout_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "engine/io/json_text.h"

namespace ringside::rl {
namespace {

using nlohmann::json;

// Throws std::runtime_error naming the first that is missing.
void require_members(const json& line) {
  for (const char* key : {"group_id", "prompt_ids", "completion_ids", "logprobs"}) {
    if (!line.is_object() || !line.contains(key)) {
      throw std::runtime_error(std::string("has no \"") + key +
                               "\"; expected an object with group_id, prompt_ids, completion_ids, logprobs and reward or advantages");
    }
  }
}

bridge::FinishReason finish_reason(const json& line) {
  const auto name = line.value("finish_reason", std::string("stop"));
  const auto reason = bridge::finish_reason_from_name(name);
  if (!reason) {
    throw std::runtime_error("finish_reason is \"" + name + "\", expected stop, length, aborted or error");
  }
  return *reason;
}

std::vector<bridge::VersionSpan> versions(const json& line, int64_t completion_tokens) {
  if (!line.contains("versions")) {
    return {{0, 0, completion_tokens}};
  }
  std::vector<bridge::VersionSpan> spans;
  for (const json& span : line.at("versions")) {
    spans.push_back({span.at("version"), span.at("begin"), span.at("end")});
  }
  return spans;
}

bridge::Rollout parse(const json& line) {
  bridge::Rollout rollout;
  rollout.prompt_ids = line.at("prompt_ids").get<std::vector<int64_t>>();
  rollout.completion_ids = line.at("completion_ids").get<std::vector<int64_t>>();
  rollout.logprobs = line.at("logprobs").get<std::vector<float>>();
  if (line.contains("loss_mask")) {
    for (const json& m : line.at("loss_mask")) {
      rollout.loss_mask.push_back(m.is_boolean() ? m.get<bool>() : m.get<int>() != 0);
    }
  }
  rollout.turn_offsets = line.value("turn_offsets", std::vector<int32_t>{});
  rollout.turn_rewards = line.value("turn_rewards", std::vector<double>{});
  rollout.advantages = line.value("advantages", std::vector<float>{});
  if (line.contains("branches")) {
    for (const json& branch : line.at("branches")) {
      rollout.branches.push_back({branch.at("begin"), branch.at("context_end")});
    }
  }
  rollout.temperature = line.value("temperature", 1.0F);
  rollout.finish_reason = finish_reason(line);
  rollout.versions = versions(line, static_cast<int64_t>(rollout.completion_ids.size()));
  rollout.run_epoch = 0;
  if (line.contains("reward") || rollout.advantages.empty()) {
    rollout.rewards = {{"reward", line.at("reward").get<double>()}};
  }
  return rollout;
}

// Numbers groups and samples as lines come in, and holds them to group_size.
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
      throw std::runtime_error("group " + label_ + " ends after " + std::to_string(in_group_) +
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

std::vector<bridge::Rollout> read_rollout_file(const std::filesystem::path& path, int64_t group_size) {
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
      const json line = engine::parse_json(text, path.string(), line_number);
      require_members(line);
      bridge::Rollout rollout = parse(line);
      numbering.number(rollout, line.at("group_id").dump());
      const auto status = bridge::validate(rollout);
      if (!status.ok()) {
        throw std::runtime_error(status.error().detail);
      }
      rollouts.push_back(std::move(rollout));
    }
    numbering.finish();
  } catch (const json::exception& error) {
    throw std::runtime_error(path.string() + ":" + std::to_string(line_number) + ": a member has another type than expected: " +
                             engine::json_problem(error));
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const bool placed = what.starts_with(path.string() + ":");
    throw std::runtime_error(placed ? what : path.string() + ":" + std::to_string(line_number) + ": " + what);
  }
  if (rollouts.empty()) {
    throw std::runtime_error(path.string() + " holds no rollout");
  }
  return rollouts;
}

}  // namespace ringside::rl
