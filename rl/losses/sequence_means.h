// Sums and means over whole sequences whose tokens lie on several ranks: segment sums and one
// small all-reduce, without a gather of per-token values.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sp/mesh/communicator.h"

namespace ringside::rl {

// Value of `mean_n`, gradient of `token_n`: a sequence's mean in token form.
// Shapes: both [n].
at::Tensor in_token_form(const at::Tensor& mean_n, const at::Tensor& token_n);

class SequenceMeans {
 public:
  // sample_n: int64, each entry's sequence in [0, num_sequences). comm: the ranks that share the
  // sequences; nullptr = this rank alone. Not collective.
  SequenceMeans(at::Tensor sample_n, int64_t num_sequences, sp::Communicator* comm);

  // For each column [n], the mean over the entry's sequence, [n], without gradient. Every rank
  // passes the same number of columns. n may be 0.
  // Collective over: comm, once for all columns.
  std::vector<at::Tensor> of(const std::vector<at::Tensor>& columns) const;
  // The same for sums.
  std::vector<at::Tensor> sums_of(const std::vector<at::Tensor>& columns) const;
  // The maximum of a column over the entry's sequence, [n], without gradient.
  // Collective over: comm.
  at::Tensor max_of(const at::Tensor& column_n) const;

 private:
  // Rows: the sums of each column by sequence, then the counts. fp64, so that the result does not
  // depend on the order of ranks.
  at::Tensor totals(const std::vector<at::Tensor>& columns) const;

  at::Tensor sample_n_;
  int64_t num_sequences_;
  sp::Communicator* comm_;
};

}  // namespace ringside::rl
