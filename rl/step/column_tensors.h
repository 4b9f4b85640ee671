// Conversion between step columns and tensors of a micro-batch. Every loss entry lies on exactly
// one rank, so each rank reads and writes only the numbers of its own entries.
// Shapes: n = loss entries of this rank, N = loss tokens of the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/algorithm/step_columns.h"
#include "sp/batch/collator.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// This rank's part of a mini-batch: its micro-batches, and the index of the mini-batch's first loss
// token in the step's columns.
struct LocalBatch {
  std::vector<sp::MicroBatch> micro_batches;
  int64_t first_token = 0;
  // Experts that the policy's tokens use, of each micro-batch, on the host; empty: its routers
  // choose. [s, layers with experts, experts a token]
  std::vector<at::Tensor> routes = {};
  // Further columns of each micro-batch's loss, on the host: what a teacher said. Shapes: [n, any];
  // empty: none.
  std::vector<engine::Columns> said = {};
};

// The micro-batch's field kRoutesField as routes of a model with these experts; undefined, on every
// rank, if no document has routes.
// Shapes: [s, layers with experts, experts a token], uint8 or int16.
// Throws: c10::Error when the field has another width or dtype.
at::Tensor routes_of(const sp::MicroBatch& batch, const engine::ModelConfig& model);

// Tensors that a model gave for later passes: routes, what a teacher said. They stay on the device
// until one copy for each dtype brings all of them to the host.
class HostCopies {
 public:
  using Put = std::function<void(at::Tensor on_host)>;

  // put: called by store() with the copy. Shapes: any.
  void add(const at::Tensor& on_device, Put put);

  // Hands over everything that was added.
  // Blocks: until the device has computed it; one host sync for each dtype.
  void store();

 private:
  struct Copy {
    at::Tensor on_device;
    Put put;
  };
  std::vector<Copy> copies_;
};

// fp64 for a model that computes in fp64, else fp32.
at::ScalarType column_dtype(at::ScalarType compute_dtype);

// The column's values at the micro-batch's entries, [n] in dtype, on the host. If the column is
// empty, every value is `otherwise`.
// Throws: std::out_of_range for an entry beyond the column.
at::Tensor read_column(const std::vector<double>& column, const sp::MicroBatch& batch,
                       int64_t first_token, at::ScalarType dtype, double otherwise = 0.0);

// The sets of the micro-batch's entries; none without sets.
// Throws: std::out_of_range for an entry beyond them.
engine::KeptSets read_sets(const TokenSets& sets, const sp::MicroBatch& batch, int64_t first_token);

// Outputs of a model that become columns. They stay on the device until one copy brings all of them
// to the host.
class ColumnOutputs {
 public:
  // values_n belong to the micro-batch's entries in the column, which has N numbers. Column and
  // micro-batch must live until store(). Undefined values are those of a rank that does not score:
  // nothing is added.
  // Shapes: values_n [n], of any floating-point dtype.
  // Throws: c10::Error for another number of values than entries.
  void add(std::vector<double>& column, const sp::MicroBatch& batch, int64_t first_token,
           const at::Tensor& values_n);

  // Writes everything that was added into the columns.
  // Blocks: until the device has computed it; one host sync.
  void store();

 private:
  struct Output {
    std::vector<double>* column;
    const sp::MicroBatch* batch;
    int64_t first_token;
    at::Tensor values_n;
  };
  std::vector<Output> outputs_;
};

// The columns that the policy losses read, by name (update_loss.h). If the column `old` is empty,
// the old policy is the current one and old_logprob is not there. If `chosen` is empty, it is not
// there either.
// Shapes: each [n] in dtype, but sample, which is int64.
engine::Columns loss_columns(const StepColumns& columns, const sp::MicroBatch& batch,
                             int64_t first_token, at::ScalarType dtype);

// The mini-batch as inputs of a model runner that only evaluates. `local` must outlive the result.
std::vector<engine::ModelInput> model_inputs(const LocalBatch& local, const StepColumns& columns,
                                             at::ScalarType dtype);
// The same for the policy, which replays local.routes and is scored over columns.kept_sets.
std::vector<engine::ModelInput> policy_inputs(const LocalBatch& local, const StepColumns& columns,
                                              at::ScalarType dtype);

// policy_inputs() for training, with loss_columns() and local.said; where a teacher said something,
// also with the column temperature. Where there is a reference beside kept sets, the policy is
// scored over the whole vocabulary as well.
std::vector<engine::ModelInput> training_inputs(const LocalBatch& local, const StepColumns& columns,
                                                at::ScalarType dtype);

// Merges columns that hold each rank's own tokens and 0 elsewhere, with one all-reduce (SUM) for
// all columns. The result is bitwise exact. Does nothing without columns.
// Collective over: ranks, those of axes::kEntries.
// Shapes: all columns have one length, the same on every rank.
void merge_columns(std::span<std::vector<double>* const> columns, sp::Communicator& ranks);

}  // namespace ringside::rl
