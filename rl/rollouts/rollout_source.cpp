#include "rl/rollouts/rollout_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "rl/data/rollout_file.h"
#include "rl/rollouts/rollout_admission.h"
#include "rl/setup/model_setup.h"
#include "rollout_bridge/protocol/codec.h"

namespace ringside::rl {
namespace {

class FileSource final : public RolloutSource {
 public:
  FileSource(const std::filesystem::path& path, const Config& config)
      : rollouts_(flatten_rollouts(read_rollout_file(
            path, config.rollout.group_size,
            [&, model = model_bounds(load_model_config(config, config.model.path))](
                const bridge::Rollout& rollout) {
              return check_recorded(rollout, config, model);
            }))),
        per_step_(config.rollout.prompts_per_step * config.rollout.group_size) {}

  engine::WeightSink weight_sink(int64_t, int64_t) override { return {}; }

  std::optional<std::vector<bridge::FlatRollout>> poll(int64_t step,
                                                       std::chrono::milliseconds) override {
    std::vector<bridge::FlatRollout> chosen;
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
  std::vector<bridge::FlatRollout> rollouts_;
  int64_t per_step_;
  int64_t accepted_ = 0;
};

constexpr std::chrono::milliseconds kPollSlice{200};  // interval between checks of the stop signal

std::optional<std::vector<bridge::FlatRollout>> poll_for(std::chrono::milliseconds round,
                                                         RolloutSource& source, int64_t step,
                                                         const std::function<int()>& stop_signal) {
  const auto deadline = std::chrono::steady_clock::now() + round;
  do {
    if (auto rollouts = source.poll(step, std::min(round, kPollSlice))) {
      return rollouts;
    }
  } while (stop_signal() == 0 && std::chrono::steady_clock::now() < deadline);
  return std::nullopt;
}

// The messages of rank 0 on every rank. `size`: of the joined bytes, which rank 0 alone has.
std::vector<bridge::FlatRollout> broadcast_messages(const std::vector<uint8_t>& joined,
                                                    int64_t size, sp::Communicator& world) {
  at::Tensor bytes = at::empty({size}, at::kByte);
  if (world.rank() == 0) {
    std::memcpy(bytes.data_ptr(), joined.data(), joined.size());
  }
  world.broadcast(bytes, 0, "rollouts");
  const auto* data = bytes.data_ptr<uint8_t>();
  auto messages = bridge::split_messages({data, data + bytes.numel()});
  TORCH_CHECK(messages.ok(), "rollouts from rank 0: ", messages.error().detail);
  return std::move(messages).value();
}

NextRollouts read(const std::vector<bridge::FlatRollout>& messages, int64_t step) {
  auto batch = bridge::read_batch(messages);
  TORCH_CHECK(batch.ok(), "rollouts of step ", step, " do not decode: ", batch.error().detail);
  return {std::move(batch.value().rollouts), std::move(batch.value().images), 0};
}

}  // namespace

HeldOutAnswers RolloutSource::evaluate(const HeldOutWork&) {
  throw std::logic_error("this source of rollouts has no workers that evaluate");
}

std::vector<bridge::FlatRollout> flatten_rollouts(std::span<const bridge::Rollout> rollouts) {
  std::vector<bridge::FlatRollout> messages;
  messages.reserve(rollouts.size());
  for (const bridge::Rollout& rollout : rollouts) {
    messages.push_back(bridge::flatten_rollout(rollout));
  }
  return messages;
}

std::unique_ptr<RolloutSource> make_file_source(const std::filesystem::path& path,
                                                const Config& config) {
  return std::make_unique<FileSource>(path, config);
}

NextRollouts broadcast_rollouts(RolloutSource* source, int64_t step, sp::Communicator& world,
                                std::chrono::milliseconds round,
                                const std::function<int()>& stop_signal) {
  TORCH_CHECK((source != nullptr) == (world.rank() == 0),
              "rank 0, and only it, has a rollout source");
  for (;;) {
    std::optional<std::vector<bridge::FlatRollout>> messages;
    std::vector<uint8_t> joined;
    if (source != nullptr) {
      messages = poll_for(round, *source, step, stop_signal);
    }
    if (messages && world.size() == 1) {
      return read(*messages, step);
    }
    if (messages) {
      joined = bridge::join_messages(*messages);
    }
    at::Tensor state =
        at::tensor({static_cast<int64_t>(joined.size()), int64_t{stop_signal()}}, at::kLong);
    world.all_reduce_max(state, "rollouts");
    if (const int signal = state[1].item<int>(); signal != 0) {
      return {{}, {}, signal};
    }
    if (const auto size = state[0].item<int64_t>(); size > 0) {
      return read(broadcast_messages(joined, size, world), step);
    }
  }
}

}  // namespace ringside::rl
