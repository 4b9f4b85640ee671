// What a pipeline of stages costs, predicted before a run: idle time and messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/models/stage.h"
#include "rl/config/config.h"

namespace ringside::rl {

// Micro-batches of an optimizer step on a rank, when documents are as long as they may be.
int64_t full_micro_batches(const Config& config);

// Of one training pass with full micro-batches.
struct PipelineFigures {
  std::vector<engine::Stage> stages;
  double idle = 0.0;     // part of the pass in which the idlest rank runs nothing
  int64_t live = 1;      // stage inputs that the rank with the most holds at once
  int64_t messages = 0;  // bytes that the rank that sends the most sends to other stages
};

// `config` has its context-parallel size factored, and parallel.pipeline_parallel_size above 1.
// Throws: std::invalid_argument when the model has too few layers for the stages.
// Thread safety: pure.
PipelineFigures pipeline_figures(const Config& config, const engine::ModelConfig& model);

// In one line.
std::string describe(const PipelineFigures& figures, const ParallelConfig& parallel);

}  // namespace ringside::rl
