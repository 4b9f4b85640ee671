#include "rl/rollouts/rollout_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "rl/config/record_choices.h"
#include "rl/config/task.h"
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
            path, sampled_group_size(config),
            [&, model = model_bounds(load_model_config(config, config.model.path))](
                const bridge::Rollout& rollout) {
              return check_recorded(rollout, config, model);
            }))),
        kinds_(record_choices(config).empty() ? std::vector<int64_t>{}
                                              : recorded_kinds(path, config)),
        per_step_(config.rollout.prompts_per_step * sampled_group_size(config)) {}

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

  int64_t kind_of_group(int64_t group_id) override {
    return kinds_.empty() ? 0 : kinds_.at(static_cast<std::size_t>(group_id));
  }

  SourceCounters counters() const override {
    SourceCounters counters;
    counters.accepted = accepted_;
    return counters;
  }

 private:
  std::vector<bridge::FlatRollout> rollouts_;
  std::vector<int64_t> kinds_;  // by group; empty: records choose nothing
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

// Bytes that are sent at a time; a single message may be larger.
constexpr std::size_t kPartBytes = std::size_t{16} << 20;

// The messages in order, joined into parts. Takes the messages.
std::vector<std::vector<uint8_t>> joined_parts(std::vector<bridge::FlatRollout> messages) {
  std::vector<std::vector<uint8_t>> parts;
  std::vector<bridge::FlatRollout> part;
  std::size_t bytes = 0;
  for (bridge::FlatRollout& message : messages) {
    if (!part.empty() && bytes + message.size() > kPartBytes) {
      parts.push_back(bridge::join_messages(std::exchange(part, {})));
      bytes = 0;
    }
    bytes += message.size();
    part.push_back(std::move(message));
  }
  parts.push_back(bridge::join_messages(part));
  return parts;
}

// The messages of a part of rank 0's on every rank. `size`: of the part, which rank 0 alone has.
std::vector<bridge::FlatRollout> broadcast_part(const std::vector<uint8_t>& joined, int64_t size,
                                                sp::Communicator& world) {
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

// Appends what these messages hold.
void read(std::span<const bridge::FlatRollout> messages, int64_t step, NextRollouts& next) {
  auto batch = bridge::read_batch(messages);
  TORCH_CHECK(batch.ok(), "rollouts of step ", step, " do not decode: ", batch.error().detail);
  std::ranges::move(batch.value().rollouts, std::back_inserter(next.rollouts));
  std::ranges::move(batch.value().images, std::back_inserter(next.images));
}

// Of each rollout; zeros without a source, on the ranks that get them from rank 0.
std::vector<int64_t> kinds_of(std::span<const bridge::Rollout> rollouts, RolloutSource* source) {
  std::vector<int64_t> kinds;
  for (const bridge::Rollout& rollout : rollouts) {
    kinds.push_back(source == nullptr ? 0 : source->kind_of_group(rollout.group_id));
  }
  return kinds;
}

// What the parts of rank 0 hold, on every rank. count: of the parts, which rank 0 alone has.
NextRollouts broadcast_parts(std::vector<std::vector<uint8_t>> parts, int64_t count, int64_t step,
                             sp::Communicator& world) {
  at::Tensor sizes = at::zeros({count}, at::kLong);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    sizes[static_cast<int64_t>(i)] = static_cast<int64_t>(parts[i].size());
  }
  world.broadcast(sizes, 0, "rollouts");
  NextRollouts next;
  parts.resize(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto part = std::exchange(parts[static_cast<std::size_t>(i)], {});
    read(broadcast_part(part, sizes[i].item<int64_t>(), world), step, next);
  }
  return next;
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
    if (source != nullptr) {
      messages = poll_for(round, *source, step, stop_signal);
    }
    if (messages && world.size() == 1) {
      NextRollouts next;
      read(*messages, step, next);
      next.kinds = kinds_of(next.rollouts, source);
      return next;
    }
    std::vector<std::vector<uint8_t>> parts;
    if (messages) {
      parts = joined_parts(std::move(*messages));
    }
    at::Tensor state =
        at::tensor({static_cast<int64_t>(parts.size()), int64_t{stop_signal()}}, at::kLong);
    world.all_reduce_max(state, "rollouts");
    if (const int signal = state[1].item<int>(); signal != 0) {
      return {{}, {}, {}, signal};
    }
    if (const auto count = state[0].item<int64_t>(); count > 0) {
      NextRollouts next = broadcast_parts(std::move(parts), count, step, world);
      at::Tensor kinds = at::tensor(kinds_of(next.rollouts, source), at::kLong);
      world.broadcast(kinds, 0, "rollouts");
      const auto* first = kinds.const_data_ptr<int64_t>();
      next.kinds.assign(first, first + kinds.numel());
      return next;
    }
  }
}

}  // namespace ringside::rl
