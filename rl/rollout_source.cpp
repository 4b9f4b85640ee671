#include "rl/rollout_source.h"

#include <ATen/ATen.h>

#include <cstring>

#include "rl/data/rollout_file.h"
#include "rl/rollout_admission.h"
#include "rl/training_run.h"
#include "rollout_bridge/codec.h"

namespace ringside::rl {
namespace {

class FileSource final : public RolloutSource {
 public:
  FileSource(const std::filesystem::path& path, const Config& config)
      : rollouts_(read_rollout_file(
            path, config.rollout.group_size,
            [&, model = model_bounds(load_model_config(config, config.model.path))](
                const bridge::Rollout& rollout) {
              return check_recorded(rollout, config, model);
            })),
        per_step_(config.rollout.prompts_per_step * config.rollout.group_size) {}

  void publish(const engine::Decoder&, int64_t, int64_t) override {}

  std::optional<std::vector<bridge::Rollout>> poll(int64_t step, std::chrono::milliseconds) override {
    std::vector<bridge::Rollout> chosen;
    const int64_t first = (step - 1) * per_step_;
    for (int64_t i = first; i < first + per_step_; ++i) {
      chosen.push_back(rollouts_[i % static_cast<int64_t>(rollouts_.size())]);
    }
    accepted_ += per_step_;
    return chosen;
  }

  SourceCounters counters() const override {
    SourceCounters counters;
    counters.accepted = accepted_;
    return counters;
  }

 private:
  std::vector<bridge::Rollout> rollouts_;
  int64_t per_step_;
  int64_t accepted_ = 0;
};

constexpr std::chrono::seconds kPollRound{5};

}  // namespace

std::unique_ptr<RolloutSource> make_file_source(const std::filesystem::path& path,
                                                const Config& config) {
  return std::make_unique<FileSource>(path, config);
}

std::vector<bridge::Rollout> broadcast_rollouts(RolloutSource* source, int64_t step,
                                                sp::Communicator& world,
                                                const std::function<void()>& on_wait) {
  TORCH_CHECK((source != nullptr) == (world.rank() == 0), "rank 0, and only it, has a rollout source");
  for (;;) {
    std::vector<uint8_t> encoded;
    if (source != nullptr) {
      if (const auto rollouts = source->poll(step, kPollRound)) {
        if (world.size() == 1) {
          return *rollouts;
        }
        encoded = bridge::encode_rollouts(*rollouts);
      }
      on_wait();
    }
    at::Tensor size = at::full({1}, static_cast<int64_t>(encoded.size()), at::kLong);
    world.broadcast(size, 0, "rollouts");
    if (size.item<int64_t>() == 0) {
      continue;  // not yet: the round keeps the other ranks inside their timeout
    }
    at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
    if (source != nullptr) {
      std::memcpy(bytes.data_ptr(), encoded.data(), encoded.size());
    }
    world.broadcast(bytes, 0, "rollouts");
    const auto* data = bytes.data_ptr<uint8_t>();
    auto decoded = bridge::decode_rollouts({data, data + bytes.numel()});
    TORCH_CHECK(decoded.ok(), "rollouts of step ", step, " do not decode: ", decoded.error().detail);
    return std::move(decoded).value();
  }
}

}  // namespace ringside::rl
