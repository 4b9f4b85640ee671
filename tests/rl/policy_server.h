// An inference server in the process: SGLang's API with a real policy behind it, which goes wrong
// on request.
#pragma once

#include <httplib.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "rl/worker/shadow_model.h"

namespace ringside::test {

// Every method is thread-safe and returns at once.
class PolicyServer {
 public:
  // Serves the weights of the directory config.model.path, labelled "default".
  explicit PolicyServer(const rl::Config& config);
  ~PolicyServer();

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // Requests to sample wait from now on, those that score do not; until let_go() or an abort, which
  // answers them empty.
  void hold();
  void let_go();
  // The next requests to sample are answered with status 500.
  void fail_samples(int count);
  // The next requests to sample are answered as aborted, without anybody's asking.
  void abort_samples(int count);
  // The next loads are answered with success and change nothing but the label.
  void ignore_loads(int count);
  // Other weights without anybody's asking: the same server started anew, or somebody else's
  // update.
  void replace(const bridge::WeightSnapshot& weights, const std::string& label);

  std::size_t held() const;
  // What was asked, in order: "pause MODE", "load LABEL", "resume", "score", "sample LABEL",
  // "abort" (of its own) and "fail" when a request to sample is answered.
  std::vector<std::string> log() const;

 private:
  void pause(const httplib::Request& request, httplib::Response& response);
  void load(const httplib::Request& request, httplib::Response& response);
  void generate(const httplib::Request& request, httplib::Response& response);
  nlohmann::json sample(const nlohmann::json& body);
  nlohmann::json score(const nlohmann::json& body);
  nlohmann::json answer(const std::vector<int64_t>& ids, const std::vector<float>& logprobs,
                        const char* finish) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  rl::ShadowModel policy_;
  std::string label_ = "default";
  bool holding_ = false;
  int aborts_ = 0, own_aborts_ = 0, failures_ = 0, ignored_loads_ = 0;
  std::size_t held_ = 0;
  std::vector<std::string> log_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace ringside::test
