// Sessions of granted samples: their records, seeds and limits, and the rollouts that they become.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/data/record_set.h"
#include "rl/worker/harness_process.h"
#include "rl/worker/session_loop.h"
#include "rl/worker/worker_link.h"

namespace ringside::rl {

// Thread safety: of the worker's loop; the tokenizer may be used by any thread.
class SessionJobs : public SessionMaker {
 public:
  // Blocks: until the data is read and tokenized.
  // Throws: what Tokenizer::load, stop_ids, SampleJobs and RecordSet throw.
  SessionJobs(const Config& config, std::string worker_id, const engine::ModelConfig& model);

  // The harness that this worker has started; without one, check_harness() checks nothing.
  void watch(std::unique_ptr<HarnessProcess> harness) { harness_ = std::move(harness); }

  std::shared_ptr<Session> session_of(const bridge::GrantedSample& sample) override;
  bridge::Rollout rollout_of(const Session& session, int64_t version) override;
  // Throws: as HarnessProcess::check().
  void check_harness() override;

  const engine::Tokenizer& tokenizer() const { return tokenizer_; }
  const std::vector<int64_t>& stops() const { return stops_; }
  // Settings that the trainer compares with its own.
  bridge::Settings shared_settings() const;

 private:
  Config config_;
  std::string worker_id_;
  engine::ModelConfig model_;
  engine::Tokenizer tokenizer_;
  std::vector<int64_t> stops_;
  SampleJobs jobs_;
  RecordSet records_;                        // of data.train
  std::vector<RecordSet> held_out_records_;  // by set, where workers evaluate
  std::unique_ptr<HarnessProcess> harness_;
};

}  // namespace ringside::rl
