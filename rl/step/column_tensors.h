// Conversion between step columns and tensors of a micro-batch. Every loss entry lies on exactly
// one rank, so each rank reads and writes only the numbers of its own entries.
// Shapes: n = loss entries of this rank, N = loss tokens of the step.
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

// This rank's part of a mini-batch: its micro-batches, and the index of the mini-batch's first loss
// token in the step's columns.
struct LocalBatch {
  std::vector<sp::MicroBatch> micro_batches;
  int64_t first_token = 0;
};

// fp64 for a model that computes in fp64, else fp32.
at::ScalarType column_dtype(at::ScalarType compute_dtype);

// The column's values at the micro-batch's entries, [n] in dtype. If the column is empty, every
// value is `otherwise`.
at::Tensor read_column(const std::vector<double>& column, const sp::MicroBatch& batch,
                       int64_t first_token, at::ScalarType dtype, double otherwise = 0.0);

// Writes values_n into the column at the micro-batch's entries. The column has N numbers.
void write_column(std::vector<double>& column, const sp::MicroBatch& batch, int64_t first_token,
                  const at::Tensor& values_n);

// The columns that the policy losses read. If the column `old` is empty, the old policy is the
// current one and old_logprob_n is undefined.
EntryColumns read_entries(const StepColumns& columns, const sp::MicroBatch& batch,
                          int64_t first_token, at::ScalarType dtype);

// The mini-batch as inputs of a model runner. `local` must outlive the result.
std::vector<engine::ModelInput> model_inputs(const LocalBatch& local, const StepColumns& columns,
                                             at::ScalarType dtype);

// Merges columns that hold each rank's own tokens and 0 elsewhere, with one all-reduce (SUM) for
// all columns. The result is bitwise exact. Does nothing without columns.
// Collective over: the world.
void merge_columns(std::span<std::vector<double>* const> columns, sp::Communicator& world);

}  // namespace ringside::rl
