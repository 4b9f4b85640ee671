// Bench of the gateway alone: how long a chat request takes whose model answers at once, with so
// many sessions at a time. Each session is a conversation over HTTP; a turn continues the tokens of
// the turns before. Prints one JSON object per number of sessions: requests a second, and the
// median and 95th percentile of a request in milliseconds.
//
// Usage: bench_gateway MODEL_DIR [--sessions N,N] [--turns N] [--new-tokens N] [--template
// model|chatml] The directory needs tokenizer.json and, for --template model, a chat template.
#include <httplib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "rl/gateway/gateway_server.h"

namespace {

using namespace ringside;
using namespace ringside::rl;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model;
  std::vector<int64_t> sessions{1, 64, 500};
  int64_t turns = 8, new_tokens = 32;
  std::string chat_template = "model";
};

// Answers whatever waits with the same tokens.
class InstantModel {
 public:
  InstantModel(SessionDesk& desk, std::vector<int64_t> said)
      : thread_([this, &desk, said = std::move(said)] {
          while (!ended_) {
            for (const auto& waiting : desk.take_requests()) {
              const std::vector<float> logprobs(said.size(), -1.0F);
              waiting->answer({{said, logprobs, 0, 0}, false});
            }
            std::this_thread::sleep_for(std::chrono::microseconds(200));
          }
        }) {}
  ~InstantModel() {
    ended_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Plays one conversation; returns the milliseconds of each request.
std::vector<double> play(const std::string& url, const std::string& session, int64_t turns) {
  httplib::Client client(url);
  client.set_read_timeout(600);
  client.set_keep_alive(true);
  client.set_tcp_nodelay(true);
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  std::vector<double> times;
  for (int64_t turn = 0; turn < turns; ++turn) {
    messages.push_back({{"role", "user"}, {"content", "question " + std::to_string(turn)}});
    const nlohmann::ordered_json body{{"messages", messages}};
    const auto begin = Clock::now();
    const auto answer = client.Post("/sessions/" + session + "/v1/chat/completions", body.dump(),
                                    "application/json");
    if (!answer || answer->status != 200) {
      throw std::runtime_error(answer ? answer->body
                                      : "no answer to turn " + std::to_string(turn) + ": " +
                                            httplib::to_string(answer.error()));
    }
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    messages.push_back(nlohmann::ordered_json::parse(answer->body)["choices"][0]["message"]);
  }
  return times;
}

void measure(const Options& options, int64_t sessions, ChatText& text) {
  SessionDesk desk(std::chrono::hours(1), Clock::now);
  Gateway gateway(desk, text, "none");
  const GatewayServer server("127.0.0.1:0", static_cast<int>(sessions) + 8, "bench", gateway);
  std::vector<int64_t> said;
  for (int64_t i = 0; i < options.new_tokens; ++i) {
    said.push_back(100 + i % 50);
  }
  const InstantModel model(desk, said);
  for (int64_t s = 0; s < sessions; ++s) {
    bridge::GrantedSample sample;
    sample.sample_index = static_cast<int32_t>(s);
    desk.open(std::make_shared<Session>(
        std::to_string(s), sample, nullptr,
        SessionLimits{.max_turns = options.turns, .max_new_tokens = options.new_tokens}, 1,
        StatedSampling{}));
  }
  std::mutex mutex;
  std::vector<double> times;
  std::vector<std::thread> players;
  const auto begin = Clock::now();
  for (int64_t s = 0; s < sessions; ++s) {
    players.emplace_back([&, s] {
      const auto own = play(server.url(), std::to_string(s), options.turns);
      const std::lock_guard lock(mutex);
      times.insert(times.end(), own.begin(), own.end());
    });
  }
  for (std::thread& player : players) {
    player.join();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::sort(times.begin(), times.end());
  const nlohmann::json line{{"template", options.chat_template},
                            {"sessions", sessions},
                            {"turns", options.turns},
                            {"requests_per_s", static_cast<double>(times.size()) / seconds},
                            {"median_ms", times[times.size() / 2]},
                            {"p95_ms", times[times.size() * 95 / 100]}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The gateway in front of a model that answers at once");
  app.add_option("model", options.model)->required();
  app.add_option("--sessions", options.sessions)->delimiter(',');
  app.add_option("--turns", options.turns);
  app.add_option("--new-tokens", options.new_tokens);
  app.add_option("--template", options.chat_template)->check(CLI::IsMember({"model", "chatml"}));
  CLI11_PARSE(app, argc, argv);
  Config config;
  config.model.path = options.model;
  config.data.chat_template =
      options.chat_template == "model" ? ChatTemplate::kModel : ChatTemplate::kChatml;
  const auto tokenizer = engine::Tokenizer::load(options.model + "/tokenizer.json");
  for (const int64_t sessions : options.sessions) {
    ChatText text(ChatFormat(config), tokenizer);
    measure(options, sessions, text);
  }
  return 0;
}
