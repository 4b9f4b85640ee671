// A gateway for tests, with a model that says what it is told.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rl/gateway/gateway.h"
#include "rl/gateway/openai_api.h"
#include "tests/rl/gateway/character_tokenizer.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl::test {

using namespace ringside::test;

// A gateway whose model says what the test has queued, character by character, and then the end
// marker unless the text ends in "...".
class GatewayDesk {
 public:
  explicit GatewayDesk(const std::string& tokenizer = character_tokenizer(),
                       int64_t end_id = kTokenEnd, const std::string& chat_template = kToolTemplate)
      : end_id_(end_id) {
    write_file(folder_.path() / "tokenizer.json", tokenizer);
    write_file(folder_.path() / "chat_template.jinja", chat_template);
    Config config;
    config.model.path = folder_.path().string();
    config.data.chat_template = ChatTemplate::kModel;
    tokenizer_ = std::make_unique<engine::Tokenizer>(
        engine::Tokenizer::load(folder_.path() / "tokenizer.json"));
    text_ = std::make_unique<ChatText>(ChatFormat(config), *tokenizer_);
    gateway_ = std::make_unique<Gateway>(desk_, *text_, "hermes");
    model_ = std::thread([this] { serve(); });
  }
  ~GatewayDesk() {
    ended_ = true;
    model_.join();
  }

  std::shared_ptr<Session> session(SessionLimits limits = {.max_turns = 8,
                                                           .max_new_tokens = 64,
                                                           .max_tokens = 0,
                                                           .vocab_size = kCharacterTokens}) {
    bridge::GrantedSample sample;
    sample.group_id = 3;
    sample.sample_index = next_session_++;
    auto session = std::make_shared<Session>("s" + std::to_string(next_session_), sample,
                                             nlohmann::ordered_json{{"prompt", "q"}}, limits, 5,
                                             StatedSampling{});
    desk_.open(session);
    return session;
  }

  // What the model says next.
  void says(const std::string& text) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(text);
  }
  ModelReplies chat(const std::shared_ptr<Session>& session, const nlohmann::ordered_json& messages,
                    nlohmann::ordered_json more = nlohmann::ordered_json::object()) {
    more["messages"] = messages;
    return gateway_->answer(session, read_openai_chat(more));
  }
  std::vector<int64_t> encode(const std::string& text) const { return tokenizer_->encode(text); }
  std::string decode(const std::vector<int64_t>& ids) const {
    return tokenizer_->decode(ids, false);
  }
  Gateway& gateway() { return *gateway_; }  // with the parser hermes
  ChatText& text() { return *text_; }
  SessionDesk& desk() { return desk_; }

  std::chrono::hours later{0};  // than now, by the desk's clock
  // Called by the model's thread before each token, with its number and the completion's tokens.
  // What it throws fails the request. Set it before anything is asked.
  std::function<void(std::size_t token, std::size_t tokens)> before_token;

 private:
  void serve() {
    while (!ended_) {
      for (const auto& waiting : desk_.take_requests()) {
        draw(*waiting, answer(waiting->request()));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  void draw(WaitingRequest& waiting, const TokenAnswer& answer) {
    const SampledTokens& sampled = answer.sampled;
    try {
      for (std::size_t i = 0; i < sampled.ids.size(); ++i) {
        if (before_token) {
          before_token(i, sampled.ids.size());
        }
        if (i + 1 < sampled.ids.size()) {
          waiting.drawn(sampled.ids[i], sampled.logprobs[i]);
        }
      }
      waiting.answer(answer);
    } catch (const std::runtime_error&) {
      waiting.fail(std::current_exception());
    }
  }
  TokenAnswer answer(const TokenRequest& request) {
    const std::lock_guard lock(mutex_);
    std::string line = lines_.empty() ? "ok" : lines_.front();
    if (!lines_.empty()) {
      lines_.pop_front();
    }
    TokenAnswer answer;
    answer.stopped = !line.ends_with("...");
    for (const char c : line) {  // "ab" stays two tokens
      answer.sampled.ids.push_back(static_cast<unsigned char>(c));
    }
    if (answer.stopped) {
      answer.sampled.ids.push_back(end_id_);
    }
    if (std::ssize(answer.sampled.ids) > request.max_tokens) {
      answer.sampled.ids.resize(request.max_tokens);
      answer.stopped = false;
    }
    answer.sampled.logprobs.assign(answer.sampled.ids.size(), -0.5F);
    answer.sampled.version = 0;
    return answer;
  }

  const int64_t end_id_;
  TemporaryDirectory folder_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
  std::unique_ptr<ChatText> text_;
  SessionDesk desk_{std::chrono::hours(1), [this] { return Session::Clock::now() + later; }};
  std::unique_ptr<Gateway> gateway_;
  std::mutex mutex_;
  std::deque<std::string> lines_;
  std::atomic<bool> ended_{false};
  std::thread model_;
  int next_session_ = 0;
};

}  // namespace ringside::rl::test
