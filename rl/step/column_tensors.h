// Columns of the step as tensors of a micro-batch, and back. Every loss entry lies on exactly one
// rank, so each number is taken and put where its token is. Shapes: n = loss entries of this rank,
// N = loss tokens of the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/algorithm/entry_columns.h"
#include "rl/algorithm/step_columns.h"
#include "sp/batch/collator.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// A mini-batch on this rank: its micro-batches, and where its loss tokens begin in the step's
// columns.
struct LocalBatch {
  std::vector<sp::MicroBatch> micro_batches;
  int64_t first_token = 0;
};

// fp64 for a model that computes in fp64, else fp32.
at::ScalarType column_dtype(at::ScalarType compute_dtype);

// The column's numbers of the micro-batch's entries, [n] in dtype; `otherwise` for each where the
// column is empty.
at::Tensor take(const std::vector<double>& column, const sp::MicroBatch& batch, int64_t first_token,
                at::ScalarType dtype, double otherwise = 0.0);

// Writes values_n into the column, which has N numbers.
void put(std::vector<double>& column, const sp::MicroBatch& batch, int64_t first_token,
         const at::Tensor& values_n);

// What the policy's losses read. An empty old column stands for the current policy: old_logprob_n
// is then undefined.
EntryColumns take_entries(const StepColumns& columns, const sp::MicroBatch& batch,
                          int64_t first_token, at::ScalarType dtype);

// The mini-batch as a model runner takes it. `local` must outlive the result.
std::vector<engine::ModelInput> model_inputs(const LocalBatch& local, const StepColumns& columns,
                                             at::ScalarType dtype);

// Completes columns that hold each rank's own tokens and 0 elsewhere: one sum over the world for
// all of them, exact to the bit. Collective over the world; does nothing without a column.
void merge_columns(std::span<std::vector<double>* const> columns, sp::Communicator& world);

}  // namespace ringside::rl
