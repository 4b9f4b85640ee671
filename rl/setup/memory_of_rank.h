// Memory that a rank needs for training, predicted from the configuration.
#pragma once

#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/layers/model_config.h"
#include "engine/runner/memory_estimate.h"
#include "rl/config/config.h"

namespace ringside::rl {

struct RankMemory {
  engine::MemoryEstimate policy;  // with its optimizer, at the peak of a full micro-batch
  int64_t reference = 0;          // bytes of the reference's weights; 0 without one
  // Of all teachers' weights, as far as their directories can be read; in a pipeline an equal part.
  int64_t teacher = 0;
  int64_t teachers = 0;  // how many that are
  int64_t critic = 0;    // weights, moments and gradients of the critic; 0 without one
  // The most while the policy and its adapters are loaded, before the others are. On the CPU a
  // process's resident memory also shows the mapped pages of the weight files until they are
  // closed: page cache, which the system takes back.
  int64_t loading = 0;
  int64_t host = 0;                           // pinned host memory of all models
  std::optional<int64_t> pipeline_rank = {};  // whose memory this is; none without a pipeline

  // Of the device.
  int64_t total() const { return std::max(policy.peak() + reference + teacher + critic, loading); }
};

// The prediction for the rank with the most tokens, in a pipeline for the rank that needs the most,
// when every token of a micro-batch is a loss token and several micro-batches make an optimizer
// step. In a model with a vision tower every token is an image's, too, and the largest image has
// data.max_image_pixels, or else the max_pixels of the processor at model.path. In bytes. `config`
// has its context-parallel size factored. device: a kind of device, which need not be here. Throws:
// as engine::read_processor_options() where that is needed.
RankMemory memory_of_rank(const Config& config, const engine::ModelConfig& model,
                          c10::Device device = c10::Device(c10::kCPU));

// The memory in one line, in GiB.
std::string describe(const RankMemory& memory);

}  // namespace ringside::rl
