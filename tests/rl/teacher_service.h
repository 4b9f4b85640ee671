// A server that judges token ids as vLLM's /v1/completions does, by a model in this process or by
// what a test says.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <httplib.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "engine/generate/paged_cache.h"
#include "engine/models/decoder.h"
#include "rl/setup/model_setup.h"

namespace ringside::test {

// Thread safety: none.
class TeacherService {
 public:
  using Reply = std::function<void(const nlohmann::json& body, httplib::Response& response)>;

  explicit TeacherService(Reply reply) {
    server_.Post("/v1/completions",
                 [this, reply](const httplib::Request& request, httplib::Response& response) {
                   ++calls;
                   const int now = ++running;
                   for (int most = most_running; now > most;) {
                     most_running.compare_exchange_weak(most, now);
                   }
                   {
                     const std::lock_guard lock(mutex_);
                     key_ = request.get_header_value("Authorization");
                   }
                   reply(nlohmann::json::parse(request.body), response);
                   --running;
                 });
    server_.Get("/health", [](const httplib::Request&, httplib::Response&) {});
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // The model in a directory, in fp64.
  explicit TeacherService(const std::string& directory) : TeacherService(model_reply(directory)) {}
  ~TeacherService() {
    server_.stop();
    thread_.join();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::string key() {
    const std::lock_guard lock(mutex_);
    return key_;
  }

  // An answer of these log-probs by id, one object for each token behind the first.
  static nlohmann::json answer(const std::vector<nlohmann::json>& tokens) {
    nlohmann::json all = nlohmann::json::array({nullptr});
    for (const nlohmann::json& token : tokens) {
      all.push_back(token);
    }
    return {{"choices", {{{"index", 0}, {"text", ""}, {"prompt_logprobs", all}}}}};
  }

  std::atomic<int> calls{0}, running{0}, most_running{0};

 private:
  static Reply model_reply(const std::string& directory) {
    rl::Config config;
    config.model.dtype = rl::DType::kFloat64;
    const std::shared_ptr<const engine::Decoder> model = rl::load_starting_model(
        config, directory, rl::compute_context(config, c10::Device(c10::kCPU)));
    return [model](const nlohmann::json& body, httplib::Response& response) {
      const at::NoGradGuard no_grad;
      const auto ids = body.at("prompt").get<std::vector<int64_t>>();
      const auto k = body.at("prompt_logprobs").get<int64_t>();
      const auto count = static_cast<int64_t>(ids.size());
      engine::PagedCache attention(model->config(), model->context());
      attention.begin_prompts({count});
      const at::Tensor hidden =
          model->forward(at::tensor(ids, at::kLong), at::arange(count, at::kLong), attention);
      const at::Tensor logprobs =
          at::log_softmax(hidden.mm(model->materialize().head_VE.value.t()), -1);
      std::vector<nlohmann::json> tokens;
      for (int64_t t = 1; t < count; ++t) {
        const at::Tensor row = logprobs[t - 1];
        nlohmann::json token;
        const auto add = [&](int64_t id) {
          token[std::to_string(id)] = {{"logprob", row[id].item<float>()}, {"rank", 1}};
        };
        add(ids[t]);
        const at::Tensor top = k > 0 ? std::get<1>(row.topk(k)) : at::empty({0}, at::kLong);
        for (int64_t i = 0; i < k; ++i) {
          add(top[i].item<int64_t>());
        }
        tokens.push_back(std::move(token));
      }
      response.set_content(answer(tokens).dump(), "application/json");
    };
  }

  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
  std::mutex mutex_;
  std::string key_;
};

}  // namespace ringside::test
