#include "rl/worker/server_worker.h"

#include <memory>
#include <optional>
#include <utility>

#include "rl/report/log.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/shared_settings.h"
#include "rl/worker/make_server.h"
#include "rl/worker/request_images.h"
#include "rl/worker/request_pool.h"
#include "rl/worker/run_loop.h"
#include "rl/worker/served_weights.h"
#include "rl/worker/server_answers.h"
#include "rl/worker/server_connection.h"
#include "rl/worker/server_loop.h"

namespace ringside::rl {
namespace {

void warn(const bridge::Status& status) {
  if (!status) {
    log::warn(status.error().detail);
  }
}

// The server, a pool of requests to it, and our own decoder beside it.
class PooledPolicy final : public ServedPolicy {
 public:
  PooledPolicy(const Config& config, const WorkerSettings& settings)
      : config_(config),
        worker_id_(settings.worker_id),
        model_(load_model_config(config, config.model.path)),
        control_(connected_server(config, settings, model_.vocab_size, adapter_)),
        weights_(config, *control_),
        scorer_(config, model_),
        jobs_(config),
        images_(image_source()),
        answers_(config, settings.worker_id, model_, weights_, scorer_, jobs_),
        pool_([this] { return make_server(config_, model_.vocab_size, adapter_); },
              static_cast<std::size_t>(config.rollout.server_options.concurrency)) {}

  void submit(const bridge::GrantedSample& sample, const bridge::Manifest& weights) override {
    pool_.submit({sample, request_for(jobs_.of(sample), weights)});
  }
  std::vector<ServedAnswer> take_answers() override { return pool_.take_all(); }
  std::vector<bridge::GrantedSample> withdraw() override {
    std::vector<bridge::GrantedSample> samples;
    for (const PoolRequest& request : pool_.withdraw()) {
      samples.push_back(request.sample);
    }
    return samples;
  }
  std::size_t running() const override { return pool_.running(); }
  bridge::Status install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) override {
    return weights_.install(snapshot);
  }
  bridge::Status verify() override { return weights_.verify(); }
  bridge::Status interrupt() override { return weights_.interrupt(); }
  std::string root_hash() const override { return weights_.root_hash(); }
  std::vector<bridge::Rollout> rollouts(std::vector<ServedAnswer> answers,
                                        int64_t version) override {
    return answers_.rollouts(std::move(answers), version);
  }
  bridge::Rollout failed(const ServedAnswer& answer, int64_t version) override {
    return answers_.failed(answer, version);
  }

  // Settings that the trainer compares with its own.
  bridge::Settings shared_settings() const {
    return rl::shared_settings(config_, model_, jobs_.prompts(), jobs_.held_out(), scorer_.stops());
  }

  // Ends running requests: otherwise the pool's threads would wait for completions that are no
  // longer needed.
  void abandon() {
    pool_.withdraw();
    if (pool_.running() > 0 && control_->capabilities().pause_abort) {
      warn(weights_.interrupt());
      warn(control_->resume());
    }
  }

 private:
  // The images of all prompts that may be granted; none where prompts have none.
  std::optional<RequestImages> image_source() const {
    if (!scorer_.image_rules()) {
      return std::nullopt;
    }
    RequestImages images(config_.data, *scorer_.image_rules());
    images.take(config_.data.train, jobs_.prompts().prompts);
    for (const HeldOutSet& set : jobs_.held_out().sets()) {
      images.take(set.set.files, set.prompts);
    }
    return images;
  }

  bridge::GenerateRequest request_for(const SampleJob& job, const bridge::Manifest& weights) {
    bridge::GenerateRequest request;
    request.prompt_ids = scorer_.encode(job.prompt);
    if (images_) {
      request.images = images_->of(job.prompt, request.prompt_ids);
    }
    request.adapter = job.prompt.adapter;
    request.max_tokens = config_.rollout.max_completion_tokens;
    request.sampling = sampling_settings(job.sampling);
    request.reads_logprobs = !job.is_only_scored();
    request.stop_ids = scorer_.stops();
    if (config_.algorithm.router_replay == RouterReplay::kRollout && !job.is_only_scored()) {
      request.experts_per_token = model_.experts.per_token;
    }
    request.seed = static_cast<int64_t>(job.seed >> 1);  // servers read it as a signed number
    const std::string version =
        std::to_string(weights.trainer_term) + "." + std::to_string(weights.version);
    request.request_id = std::to_string(job.sample.group_id) + "-" +
                         std::to_string(job.sample.sample_index) + "-" + version + "-" + worker_id_;
    request.cache_salt = weights.run_id + "." + version;
    return request;
  }

  Config config_;
  std::string worker_id_;
  engine::ModelConfig model_;
  std::shared_ptr<bridge::SelectedAdapter> adapter_ = std::make_shared<bridge::SelectedAdapter>();
  std::unique_ptr<bridge::InferenceServer> control_;
  ServedWeights weights_;
  PromptScorer scorer_;
  SampleJobs jobs_;
  std::optional<RequestImages> images_;
  ServerAnswers answers_;
  RequestPool pool_;
};

}  // namespace

void run_server_worker(const Config& config, const WorkerSettings& settings) {
  PooledPolicy policy(config, settings);
  bridge::WorkerEndpoint endpoint(worker_options(config, settings, policy.shared_settings()));
  ServerLoop loop(endpoint, policy, settings, config.rollout.server_options, settings.now);
  run_loop(loop, endpoint, settings);
  policy.abandon();
  leave(endpoint, loop.ended());
}

}  // namespace ringside::rl
