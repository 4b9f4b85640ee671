#include "rl/step/teacher_server.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>

#include "rollout_bridge/servers/answer.h"

namespace ringside::rl {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{500};
constexpr milliseconds kLongestPause{30'000};
// Of an answer: text around it, and one log-prob of a token with its rank and text.
constexpr std::size_t kAnswerBytes = std::size_t{1} << 20;
constexpr std::size_t kBytesOfLogprob = 512;

std::string key_in(const std::string& path) {
  if (path.empty()) {
    return "";
  }
  std::ifstream file(path);
  std::string key;
  if (!std::getline(file, key) || key.empty()) {
    throw std::invalid_argument("algorithm.distillation.server_api_key_file " + path +
                                " cannot be read or holds no key in its first line");
  }
  return key;
}

// The address without "/v1" or "/" at its end: paths begin with it.
std::string base_of(std::string url) {
  for (const std::string_view end : {"/", "/v1", "/"}) {
    if (url.ends_with(end)) {
      url.resize(url.size() - end.size());
    }
  }
  return url;
}

bool may_pass(bridge::Reason reason) {
  return reason == bridge::Reason::kClosed || reason == bridge::Reason::kBusy;
}

// Of one token: the log-probs that the answer has, by id.
std::vector<std::pair<int64_t, float>> logprobs_of_token(const json& entry) {
  if (!entry.is_object()) {
    throw std::runtime_error("a token of the answer has no log-probs");
  }
  std::vector<std::pair<int64_t, float>> all;
  for (const auto& [id, said] : entry.items()) {
    const json* value = bridge::member(said, "logprob");
    const auto logprob = value == nullptr
                             ? bridge::Result<float>(bridge::Error{bridge::Reason::kMalformed,
                                                                   "a log-prob is missing"})
                             : bridge::read_logprob(*value, "prompt_logprobs");
    if (!logprob) {
      throw std::runtime_error(logprob.error().detail);
    }
    int64_t number = 0;
    const char* const end = id.data() + id.size();
    if (const auto read = std::from_chars(id.data(), end, number);
        read.ec != std::errc() || read.ptr != end) {
      throw std::runtime_error("\"" + bridge::clip_text(id, 40) + "\" is no token id");
    }
    all.emplace_back(number, logprob.value());
  }
  return all;
}

}  // namespace

TeacherServer::TeacherServer(const DistillationConfig& config, const std::string& url,
                             int64_t words, Wait wait)
    : url_(base_of(url)),
      model_(config.server_model),
      words_(words),
      top_k_(config.over == DistillationOver::kTopK ? config.top_k : 0),
      concurrency_(config.server_concurrency),
      timeout_(static_cast<int64_t>(config.server_timeout_s * 1000)),
      api_key_(key_in(config.server_api_key_file)),
      wait_(wait ? std::move(wait)
                 : [](milliseconds pause) { std::this_thread::sleep_for(pause); }) {
  try {
    bridge::HttpJson(url_, api_key_, kAnswerBytes);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("algorithm.distillation.teacher " + url + ": " + error.what());
  }
}

std::vector<ServedScores> TeacherServer::score(const std::vector<ServedDocument>& documents) const {
  std::vector<ServedScores> scores(documents.size());
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t d = next++; d < documents.size() && !failed; d = next++) {
      try {
        scores[d] = score_one(documents[d]);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = failed.exchange(true) ? failure : std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const auto count = std::min<std::size_t>(documents.size(), concurrency_);
    for (std::size_t t = 0; t < count; ++t) {
      threads.emplace_back(work);
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  return scores;
}

ServedScores TeacherServer::score_one(const ServedDocument& document) const {
  json body{{"prompt", document.ids},
            {"max_tokens", 1},
            {"temperature", 1.0},
            {"prompt_logprobs", top_k_}};
  if (!model_.empty()) {
    body["model"] = model_;
  }
  const std::size_t logprobs = document.ids.size() * static_cast<std::size_t>(top_k_ + 2);
  const bridge::HttpJson server(url_, api_key_, kAnswerBytes + kBytesOfLogprob * logprobs);
  const auto deadline = Clock::now() + timeout_;
  milliseconds pause = kFirstPause;
  for (int tries = 1;; ++tries) {
    const auto answer = server.post_json("/v1/completions", body, deadline);
    if (answer) {
      return read(document, answer.value());
    }
    if (!may_pass(answer.error().reason) || Clock::now() + pause >= deadline) {
      throw std::runtime_error(
          "teacher " + url_ + ": a completion of " + std::to_string(document.ids.size()) +
          " tokens is not judged after " + std::to_string(tries) +
          (tries == 1 ? " try" : " tries") +
          " (algorithm.distillation.server_timeout_s): " + answer.error().detail);
    }
    wait_(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

ServedScores TeacherServer::read(const ServedDocument& document,
                                 const bridge::JsonAnswer& answer) const {
  const auto refuse = [&](const std::string& what) {
    return std::runtime_error("teacher " + url_ + ": " + what + " in " + answer.context);
  };
  const json::json_pointer place("/choices/0/prompt_logprobs");
  if (!answer.value.is_object() || !answer.value.contains(place) ||
      !answer.value.at(place).is_array()) {
    throw refuse("no prompt_logprobs (expected a server of vLLM)");
  }
  const json& tokens = answer.value.at(place);
  if (tokens.size() != document.ids.size()) {
    throw refuse("log-probs of " + std::to_string(tokens.size()) + " tokens, expected " +
                 std::to_string(document.ids.size()));
  }
  ServedScores scores;
  for (const int64_t t : document.places) {
    std::vector<std::pair<int64_t, float>> said;
    try {
      said = logprobs_of_token(tokens[static_cast<std::size_t>(t)]);
    } catch (const std::exception& error) {
      throw refuse(error.what());
    }
    const auto own = std::ranges::find(said, document.ids[static_cast<std::size_t>(t)],
                                       [](const auto& one) { return one.first; });
    if (own == said.end()) {
      throw refuse("no log-prob of token " + std::to_string(document.ids[t]));
    }
    scores.logprobs.push_back(own->second);
    if (std::ssize(said) < top_k_) {
      throw refuse(std::to_string(said.size()) + " log-probs of a token, expected " +
                   std::to_string(top_k_) + " (algorithm.distillation.top_k)");
    }
    std::ranges::stable_sort(said, std::greater<>(), [](const auto& one) { return one.second; });
    for (int64_t k = 0; k < top_k_; ++k) {
      const auto& [id, logprob] = said[static_cast<std::size_t>(k)];
      if (id < 0 || id >= words_) {
        throw refuse("the likely token " + std::to_string(id) + ", but the policy has " +
                     std::to_string(words_) +
                     " words; expected a teacher with the same vocabulary");
      }
      scores.top_ids.push_back(id);
      scores.top_logprobs.push_back(logprob);
    }
  }
  return scores;
}

std::string TeacherServer::problem(milliseconds patience) const {
  const auto answer =
      bridge::HttpJson(url_, api_key_, kAnswerBytes).get("/health", Clock::now() + patience);
  return answer ? "" : answer.error().detail;
}

}  // namespace ringside::rl
