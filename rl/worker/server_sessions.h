// Requests of sessions on an inference server (vLLM, SGLang, llama.cpp, our Python one), several at
// a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/worker/request_pool.h"
#include "rl/worker/served_weights.h"
#include "rl/worker/session_loop.h"
#include "rl/worker/worker_link.h"

namespace ringside::rl {

// The server is verified after each loading of weights and after each error. After an error
// requests wait until that has been done, and an answer that comes before counts only if it names
// the installed version.
// Thread safety: none.
class ServerSessions : public SessionModel {
 public:
  // stops: ids that end a completion. Blocks and throws: as connected_server().
  ServerSessions(const Config& config, const WorkerSettings& settings,
                 const engine::ModelConfig& model, std::vector<int64_t> stops);

  std::string install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) override;
  void submit(std::vector<std::shared_ptr<WaitingRequest>> requests) override;
  // Blocks: after an error, until the server has been verified.
  bool work() override;
  std::size_t running() const override { return held_.size() + waiting_.size(); }
  void drop_requests() override {
    held_.clear();
    waiting_.clear();
  }

 private:
  void send_held();
  bridge::GenerateRequest request_of(const TokenRequest& request, int64_t number) const;
  void answer(ServedAnswer served, WaitingRequest& waiting);

  Config config_;
  std::string worker_id_;
  int64_t vocab_size_;
  std::vector<int64_t> stops_;
  std::shared_ptr<bridge::SelectedAdapter> adapter_ = std::make_shared<bridge::SelectedAdapter>();
  std::unique_ptr<bridge::InferenceServer> control_;
  ServedWeights weights_;
  RequestPool pool_;
  std::vector<std::shared_ptr<WaitingRequest>> held_;           // not sent yet
  std::map<int64_t, std::shared_ptr<WaitingRequest>> waiting_;  // sent, by number
  int64_t next_number_ = 0;
  bridge::Manifest installed_;
  bool in_doubt_ = false;  // an error came since the server was verified
};

}  // namespace ringside::rl
