// Pipeline of a model's stages over ranks: how many stages, on which ranks, by which schedule. Each
// rank of a line has stages of the same model and computes them for the same tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/models/stage.h"
#include "sp/mesh/communicator.h"
#include "sp/plan/pipeline_plan.h"
#include "sp/plan/stage_balance.h"

namespace ringside::engine {

// What the work of a model's parts is reckoned from.
struct TypicalTokens {
  int64_t document = 4096;  // tokens of a document, for attention
  double entries = 1.0;     // loss entries a token, for the head
};

// Of a line of ranks; the same on every rank but for the communicator.
struct Pipeline {
  sp::PipelineShape shape;
  // The ranks with the other stages of this rank's tokens, by their place in the line.
  std::shared_ptr<sp::Communicator> line;
  // Of training; passes without gradient take kForwardOnly.
  sp::PipelineSchedule schedule = sp::PipelineSchedule::kOneForwardOneBackward;
  int64_t warm_up = 0;  // as sp::PipelineOptions
  TypicalTokens typical = {};
};

// Work and bytes of a model's parts, in units for sp::balance_stages(): FLOPs of a forward, and
// bytes of weights, gradients and moments in fp32.
sp::ModelParts model_parts(const ModelConfig& config, const TypicalTokens& typical);

// The stages of a model on a pipeline, in order, balanced by work: [S].
// Throws: std::invalid_argument when the model has too few layers for so many stages.
std::vector<Stage> pipeline_stages(const ModelConfig& config, const sp::PipelineShape& shape,
                                   const TypicalTokens& typical);
// The same; the whole model without a pipeline.
std::vector<Stage> pipeline_stages(const ModelConfig& config, const Pipeline* pipeline);

// Those of this rank, in order.
std::vector<Stage> own_stages(const ModelConfig& config, const Pipeline* pipeline);

// The plan of a pass over `inputs` micro-batches. trains: with backwards.
sp::PipelinePlan pipeline_plan(const sp::PipelineShape& shape, sp::PipelineSchedule schedule,
                               int64_t warm_up, int64_t inputs);

}  // namespace ringside::engine
