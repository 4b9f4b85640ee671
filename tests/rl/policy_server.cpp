#include "tests/rl/policy_server.h"

#include <functional>

#include "engine/io/hf_directory.h"
#include "rl/publish/weight_snapshot.h"

namespace ringside::test {

using nlohmann::json;

namespace {

std::shared_ptr<const bridge::WeightSnapshot> weights_in(const std::string& directory) {
  return rl::snapshot_weights(engine::load_decoder(directory, at::kFloat), at::kFloat, "server", 0,
                              0);
}

// [logprob, id, text]
json entry(float logprob, int64_t id) { return json::array({logprob, id, nullptr}); }

}  // namespace

PolicyServer::PolicyServer(const rl::Config& config) : policy_(config) {
  policy_.install(weights_in(config.model.path));
  server_.Get("/health", [](const auto&, auto&) {});
  server_.Post("/flush_cache", [](const auto&, auto&) {});
  server_.Post("/pause_generation",
               [this](const auto& request, auto& response) { pause(request, response); });
  server_.Post("/continue_generation", [this](const auto&, auto&) {
    const std::lock_guard lock(mutex_);
    log_.push_back("resume");
  });
  server_.Post("/update_weights_from_disk",
               [this](const auto& request, auto& response) { load(request, response); });
  server_.Post("/generate",
               [this](const auto& request, auto& response) { generate(request, response); });
  port_ = server_.bind_to_any_port("127.0.0.1");
  thread_ = std::thread([this] { server_.listen_after_bind(); });
  while (!server_.is_running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

PolicyServer::~PolicyServer() {
  let_go();
  server_.stop();
  thread_.join();
}

void PolicyServer::hold() {
  const std::lock_guard lock(mutex_);
  holding_ = true;
}

void PolicyServer::let_go() {
  const std::lock_guard lock(mutex_);
  holding_ = false;
  changed_.notify_all();
}

void PolicyServer::fail_samples(int count) {
  const std::lock_guard lock(mutex_);
  failures_ = count;
}

void PolicyServer::abort_samples(int count) {
  const std::lock_guard lock(mutex_);
  own_aborts_ = count;
}

void PolicyServer::ignore_loads(int count) {
  const std::lock_guard lock(mutex_);
  ignored_loads_ = count;
}

void PolicyServer::replace(const bridge::WeightSnapshot& weights, const std::string& label) {
  const std::lock_guard lock(mutex_);
  policy_.install(std::make_shared<const bridge::WeightSnapshot>(weights));
  label_ = label;
}

std::size_t PolicyServer::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

std::vector<std::string> PolicyServer::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

void PolicyServer::pause(const httplib::Request& request, httplib::Response&) {
  const std::lock_guard lock(mutex_);
  const std::string mode = json::parse(request.body).at("mode");
  log_.push_back("pause " + mode);
  if (mode == "abort") {
    ++aborts_;
    changed_.notify_all();
  }
}

void PolicyServer::load(const httplib::Request& request, httplib::Response& response) {
  const json body = json::parse(request.body);
  const auto weights = weights_in(body.at("model_path"));
  const std::lock_guard lock(mutex_);
  label_ = body.at("weight_version");
  log_.push_back("load " + label_);
  if (ignored_loads_ > 0) {
    --ignored_loads_;
  } else {
    policy_.install(weights);
  }
  response.set_content(json{{"success", true}}.dump(), "application/json");
}

void PolicyServer::generate(const httplib::Request& request, httplib::Response& response) {
  const json body = json::parse(request.body);
  std::unique_lock lock(mutex_);
  json found;
  if (body.at("top_logprobs_num") == 1) {
    // What the client finds out of: the log-prob of the top token follows the temperature.
    const double temperature = body.at("sampling_params").at("temperature");
    found = answer({0}, {-1.0F}, "length");
    found["meta_info"]["output_top_logprobs"] =
        json::array({json::array({entry(static_cast<float>(-temperature), 0)})});
  } else if (body.at("logprob_start_len") == 0) {
    found = score(body);
  } else {
    const int aborts = aborts_;
    ++held_;
    changed_.wait(lock, [&] { return !holding_ || aborts_ != aborts; });
    --held_;
    if (aborts_ != aborts) {
      found = answer({}, {}, "abort");
    } else if (own_aborts_ > 0) {
      --own_aborts_;
      log_.push_back("abort");
      found = answer({}, {}, "abort");
    } else if (failures_ > 0) {
      --failures_;
      log_.push_back("fail");
      response.status = 500;
    } else {
      found = sample(body);
    }
  }
  response.set_content(found.dump(), "application/json");
}

json PolicyServer::answer(const std::vector<int64_t>& ids, const std::vector<float>& logprobs,
                          const char* finish) const {
  json tokens = json::array();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    tokens.push_back(entry(logprobs[i], ids[i]));
  }
  const json meta{{"finish_reason", {{"type", finish}}},
                  {"completion_tokens", ids.size()},
                  {"weight_version", label_},
                  {"output_token_logprobs", tokens}};
  return {{"output_ids", ids}, {"meta_info", meta}};
}

// Some completion of full length with the policy's log-probs; which one does not matter.
json PolicyServer::sample(const json& body) {
  const json& sampling = body.at("sampling_params");
  std::vector<int64_t> ids = body.at("input_ids");
  const std::size_t prompt = ids.size(), count = sampling.at("max_new_tokens");
  std::size_t state = std::hash<std::string>{}(body.at("rid"));
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int64_t>(
        state % static_cast<std::size_t>(policy_.decoder().config().vocab_size)));
    state /= 7;
  }
  const auto scores = policy_.score(ids, sampling.at("temperature"));
  const bool greedy = sampling.at("top_k") == 1 && sampling.at("temperature") == 1.0;
  log_.push_back((greedy ? "greedy " : "sample ") + label_);
  return answer({ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()},
                {scores.end() - static_cast<std::ptrdiff_t>(count), scores.end()}, "length");
}

json PolicyServer::score(const json& body) {
  const std::vector<int64_t> ids = body.at("input_ids");
  const auto scores = policy_.score(ids, 1.0);
  log_.push_back("score");
  json list = json::array({json::array({nullptr, ids[0], nullptr})});
  for (std::size_t i = 1; i < ids.size(); ++i) {
    list.push_back(entry(scores[i - 1], ids[i]));
  }
  json found = answer({0}, {-1.0F}, "length");
  found["meta_info"]["input_token_logprobs"] = list;
  return found;
}

}  // namespace ringside::test
