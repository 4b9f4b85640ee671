#include "rl/rollouts/rollout_log.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "rl/setup/endpoint_file.h"
#include "rollout_bridge/base/base64.h"

namespace ringside::rl {
namespace {

using Json = nlohmann::ordered_json;

// The values of the loss tokens at their completion tokens, null elsewhere. Either no token of a
// rollout carries loss, or exactly those of its loss mask do.
Json by_token(const bridge::Rollout& rollout, std::span<const double> of_loss_tokens,
              const char* what) {
  Json values = Json::array();
  std::size_t next = 0;
  for (std::size_t i = 0; i < rollout.completion_ids.size(); ++i) {
    const bool masked_in = rollout.loss_mask.empty() || rollout.loss_mask[i] != 0;
    values.push_back(masked_in && next < of_loss_tokens.size() ? Json(of_loss_tokens[next])
                                                               : Json());
    next += masked_in ? 1 : 0;
  }
  if (!of_loss_tokens.empty() && next != of_loss_tokens.size()) {
    throw std::invalid_argument("rollout " + rollout.rollout_id + ": " +
                                std::to_string(of_loss_tokens.size()) + " " + what + " for " +
                                std::to_string(next) + " loss tokens");
  }
  return values;
}

Json rewards_of(const bridge::Rollout& rollout) {
  Json rewards = Json::array();
  for (const auto& [name, value] : rollout.rewards) {
    rewards.push_back(Json::array({name, value}));
  }
  return rewards;
}

Json text_of(const std::optional<engine::Tokenizer>& tokenizer, std::span<const int64_t> ids) {
  return tokenizer ? Json(tokenizer->decode(ids, /*skip_special=*/false)) : Json();
}

void cut(Json& list, std::size_t size) {
  if (list.size() > size) {
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(size), list.end());
  }
}

Json line_of(const bridge::Rollout& rollout, std::span<const double> advantage, int64_t step,
             int64_t logged_in_term, const std::optional<engine::Tokenizer>& tokenizer) {
  Json versions = Json::array();
  for (const bridge::VersionSpan& span : rollout.versions) {
    versions.push_back({{"version", span.version}, {"begin", span.begin}, {"end", span.end}});
  }
  Json line = {{"step", step},
               {"logged_in_term", logged_in_term},
               {"rollout_id", rollout.rollout_id},
               {"group_id", rollout.group_id},
               {"sample_index", rollout.sample_index},
               {"attempt", rollout.attempt},
               {"prompt", text_of(tokenizer, rollout.prompt_ids)},
               {"completion", text_of(tokenizer, rollout.completion_ids)},
               {"prompt_ids", rollout.prompt_ids},
               {"completion_ids", rollout.completion_ids},
               {"logprobs", rollout.logprobs},
               {"advantages", by_token(rollout, advantage, "advantages")},
               {"temperature", rollout.temperature},
               {"versions", std::move(versions)},
               {"trainer_term", rollout.trainer_term},
               {"finish_reason", bridge::finish_reason_name(rollout.finish_reason)},
               {"rewards", rewards_of(rollout)}};
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
  for (const bridge::ConversationImage& image : rollout.images) {
    line["images"].push_back({{"hash", image.hash},
                              {"begin", image.begin},
                              {"end", image.end},
                              {"height", image.height},
                              {"width", image.width}});
  }
  if (const bridge::RoutedExperts& routed = rollout.routed_experts; !routed.empty()) {
    line["routed_experts"] = {{"layers", routed.layers},
                              {"per_token", routed.per_token},
                              {"id_bytes", routed.id_bytes},
                              {"ids", bridge::base64(routed.ids)}};
  }
  if (rollout.top_p != 1.0F) {
    line["top_p"] = rollout.top_p;
  }
  if (rollout.top_k != 0) {
    line["top_k"] = rollout.top_k;
  }
  auto id = rollout.kept_sets.ids.begin();
  for (const int32_t count : rollout.kept_sets.counts) {
    line["kept_sets"].push_back(std::vector(id, id + count));
    id += count;
  }
  return line;
}

// The same with the many placeholders of an image written once.
Json short_text(const std::optional<engine::Tokenizer>& tokenizer, std::span<const int64_t> ids,
                int64_t placeholder) {
  if (!tokenizer) {
    return Json();
  }
  return text_with_short_images(ids, placeholder, [&](std::span<const int64_t> part) {
    return tokenizer->decode(part, /*skip_special=*/false);
  });
}

Json line_of(const LoggedSample& sample, int64_t step, int64_t logged_in_term,
             const std::optional<engine::Tokenizer>& tokenizer, int64_t placeholder) {
  const bridge::Rollout& rollout = *sample.rollout;
  const std::size_t length = rollout.completion_ids.size();
  const std::size_t shown = std::min(length, SampleLog::kMaxTokens);
  Json line = {{"step", step},
               {"logged_in_term", logged_in_term},
               {"group_id", rollout.group_id},
               {"sample_index", rollout.sample_index},
               {"reward", sample.reward},
               {"rewards", rewards_of(rollout)},
               {"finish_reason", bridge::finish_reason_name(rollout.finish_reason)},
               {"version", rollout.versions.empty() ? -1 : rollout.versions.front().version},
               {"prompt", short_text(tokenizer, rollout.prompt_ids, placeholder)},
               {"answer", sample.answer.empty() ? Json() : Json(sample.answer)},
               {"completion", short_text(tokenizer, rollout.completion_ids, placeholder)},
               {"length", length}};
  for (const LoggedImage& image : sample.images) {
    line["images"].push_back({{"name", image.name}, {"uri", image.uri}});
  }
  Json tokens = Json::array();
  for (std::size_t i = 0; i < shown; ++i) {
    const int64_t id = rollout.completion_ids[i];
    tokens.push_back(tokenizer ? text_of(tokenizer, std::span(&id, 1)) : Json(std::to_string(id)));
  }
  line["tokens"] = std::move(tokens);
  line["logprobs"] = rollout.logprobs;
  cut(line["logprobs"], shown);
  const std::pair<const char*, std::span<const double>> figures[] = {
      {"old_logprobs", sample.old_logprob},
      {"new_logprobs", sample.new_logprob},
      {"advantages", sample.advantage}};
  for (const auto& [name, values] : figures) {
    if (!values.empty()) {
      line[name] = by_token(rollout, values, name);
      cut(line[name], shown);
    }
  }
  return line;
}

// One line of the file. Text that is not UTF-8 gets replacement characters: a log ends no run.
std::string written(const Json& line) {
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
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

bridge::PosixFile open_for_lines(const std::filesystem::path& path) {
  bridge::PosixFile file(path, O_RDWR | O_CREAT | O_APPEND);
  if (const uint64_t end = end_of_last_line(file); end < file.size()) {
    file.truncate(end);
  }
  return file;
}

int64_t term_of(const std::filesystem::path& run_dir) {
  const auto endpoint = read_endpoint_file(run_dir / "bridge" / "endpoint.json");
  return endpoint ? endpoint->trainer_term : -1;
}

std::optional<engine::Tokenizer> tokenizer_of(const std::filesystem::path& model) {
  const auto path = model / "tokenizer.json";
  return std::filesystem::exists(path) ? std::optional(engine::Tokenizer::load(path))
                                       : std::nullopt;
}

}  // namespace

RolloutLog::RolloutLog(const std::filesystem::path& path, int64_t logged_in_term,
                       std::optional<engine::Tokenizer> tokenizer)
    : file_(open_for_lines(path)),
      logged_in_term_(logged_in_term),
      tokenizer_(std::move(tokenizer)) {}

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
    text += written(line_of(rollouts[r], own, step, logged_in_term_, tokenizer_)) + "\n";
  }
  file_.append(std::as_bytes(std::span(text)));
}

SampleLog::SampleLog(const std::filesystem::path& path, int64_t logged_in_term,
                     std::optional<engine::Tokenizer> tokenizer, int64_t placeholder)
    : file_(open_for_lines(path)),
      logged_in_term_(logged_in_term),
      tokenizer_(std::move(tokenizer)),
      placeholder_(placeholder) {}

void SampleLog::write(int64_t step, std::span<const LoggedSample> samples) {
  std::string text;
  for (const LoggedSample& sample : samples) {
    text += written(line_of(sample, step, logged_in_term_, tokenizer_, placeholder_)) + "\n";
  }
  file_.append(std::as_bytes(std::span(text)));
}

std::vector<std::size_t> lowest_and_highest(std::span<const double> score, std::size_t count) {
  std::vector<std::size_t> order(score.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return score[a] < score[b]; });
  std::vector<std::size_t> picked;
  std::size_t low = 0;
  std::size_t high = order.size();
  while (picked.size() < count && low < high) {
    if (picked.size() % 2 == 0) {
      picked.push_back(order[low++]);
      continue;
    }
    // The first of those with the highest score that is left.
    const double highest = score[order[high - 1]];
    const auto first = std::find_if(order.begin() + static_cast<std::ptrdiff_t>(low),
                                    order.begin() + static_cast<std::ptrdiff_t>(high),
                                    [&](std::size_t i) { return score[i] == highest; });
    picked.push_back(*first);
    order.erase(first);
    --high;
  }
  return picked;
}

RolloutLog open_rollout_log(const std::filesystem::path& run_dir,
                            const std::filesystem::path& model) {
  return RolloutLog(run_dir / "rollouts.jsonl", term_of(run_dir), tokenizer_of(model));
}

SampleLog open_sample_log(const std::filesystem::path& run_dir, const std::filesystem::path& model,
                          int64_t placeholder) {
  return SampleLog(run_dir / "samples.jsonl", term_of(run_dir), tokenizer_of(model), placeholder);
}

}  // namespace ringside::rl
