#include "rl/rollouts/rollout_log.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "rl/setup/endpoint_file.h"

namespace ringside::rl {
namespace {

using Json = nlohmann::ordered_json;

// Either no token of a rollout carries loss, or exactly those of its loss mask do.
Json by_token(const bridge::Rollout& rollout, std::span<const double> advantage) {
  Json values = Json::array();
  std::size_t next = 0;
  for (std::size_t i = 0; i < rollout.completion_ids.size(); ++i) {
    const bool masked_in = rollout.loss_mask.empty() || rollout.loss_mask[i] != 0;
    values.push_back(masked_in && next < advantage.size() ? Json(advantage[next]) : Json());
    next += masked_in ? 1 : 0;
  }
  if (!advantage.empty() && next != advantage.size()) {
    throw std::invalid_argument("rollout " + rollout.rollout_id + ": " +
                                std::to_string(advantage.size()) + " advantages for " +
                                std::to_string(next) + " loss tokens");
  }
  return values;
}

Json line_of(const bridge::Rollout& rollout, std::span<const double> advantage, int64_t step,
             int64_t logged_in_term) {
  Json versions = Json::array();
  for (const bridge::VersionSpan& span : rollout.versions) {
    versions.push_back({{"version", span.version}, {"begin", span.begin}, {"end", span.end}});
  }
  Json rewards = Json::array();
  for (const auto& [name, value] : rollout.rewards) {
    rewards.push_back(Json::array({name, value}));
  }
  Json line = {{"step", step},
               {"logged_in_term", logged_in_term},
               {"rollout_id", rollout.rollout_id},
               {"group_id", rollout.group_id},
               {"sample_index", rollout.sample_index},
               {"attempt", rollout.attempt},
               {"prompt_ids", rollout.prompt_ids},
               {"completion_ids", rollout.completion_ids},
               {"logprobs", rollout.logprobs},
               {"advantages", by_token(rollout, advantage)},
               {"temperature", rollout.temperature},
               {"versions", std::move(versions)},
               {"trainer_term", rollout.trainer_term},
               {"finish_reason", bridge::finish_reason_name(rollout.finish_reason)},
               {"rewards", std::move(rewards)}};
  // Written only if not empty, as in a recorded file.
  if (!rollout.loss_mask.empty()) {
    line["loss_mask"] = rollout.loss_mask;
  }
  if (!rollout.turn_offsets.empty()) {
    line["turn_offsets"] = rollout.turn_offsets;
  }
  if (!rollout.turn_rewards.empty()) {
    line["turn_rewards"] = rollout.turn_rewards;
  }
  for (const bridge::Branch& branch : rollout.branches) {
    line["branches"].push_back({{"begin", branch.begin}, {"context_end", branch.context_end}});
  }
  return line;
}

// Length of the file up to and including its last line end.
uint64_t end_of_last_line(const bridge::PosixFile& file) {
  std::array<char, 65536> block;
  uint64_t end = file.size();
  while (end > 0) {
    const uint64_t begin = end - std::min<uint64_t>(end, block.size());
    const std::span<char> part(block.data(), end - begin);
    file.read_at(begin, std::as_writable_bytes(part));
    const auto found = std::find(part.rbegin(), part.rend(), '\n');
    if (found != part.rend()) {
      return begin + static_cast<uint64_t>(part.rend() - found);
    }
    end = begin;
  }
  return 0;
}

}  // namespace

RolloutLog::RolloutLog(const std::filesystem::path& path, int64_t logged_in_term)
    : file_(path, O_RDWR | O_CREAT | O_APPEND), logged_in_term_(logged_in_term) {
  if (const uint64_t end = end_of_last_line(file_); end < file_.size()) {
    file_.truncate(end);
  }
}

void RolloutLog::write(int64_t step, std::span<const bridge::Rollout> rollouts,
                       std::span<const int64_t> begin, std::span<const double> advantage) {
  if (begin.size() != rollouts.size() + 1 ||
      begin.back() != static_cast<int64_t>(advantage.size())) {
    throw std::invalid_argument("rollout log: " + std::to_string(advantage.size()) +
                                " advantages in " + std::to_string(begin.size()) +
                                " - 1 ranges for " + std::to_string(rollouts.size()) + " rollouts");
  }
  std::string text;
  for (std::size_t r = 0; r < rollouts.size(); ++r) {
    const auto own = advantage.subspan(begin[r], begin[r + 1] - begin[r]);
    text += line_of(rollouts[r], own, step, logged_in_term_).dump() + "\n";
  }
  file_.append(std::as_bytes(std::span(text)));
}

RolloutLog open_rollout_log(const std::filesystem::path& run_dir) {
  const auto endpoint = read_endpoint_file(run_dir / "bridge" / "endpoint.json");
  return RolloutLog(run_dir / "rollouts.jsonl", endpoint ? endpoint->trainer_term : -1);
}

}  // namespace ringside::rl
