#include "rl/losses/sequence_means.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>
#include <utility>

namespace ringside::rl {

at::Tensor in_token_form(const at::Tensor& mean_n, const at::Tensor& token_n) {
  return mean_n + token_n - token_n.detach();
}

SequenceMeans::SequenceMeans(at::Tensor sample_n, int64_t num_sequences, sp::Communicator* comm)
    : sample_n_(std::move(sample_n)), num_sequences_(num_sequences), comm_(comm) {}

at::Tensor SequenceMeans::totals(const std::vector<at::Tensor>& columns) const {
  const at::NoGradGuard no_grad;
  at::Tensor sums = at::zeros({static_cast<int64_t>(columns.size()) + 1, num_sequences_},
                              sample_n_.options().dtype(at::kDouble));
  for (std::size_t c = 0; c < columns.size(); ++c) {
    sums[static_cast<int64_t>(c)].index_add_(0, sample_n_, columns[c].detach().to(at::kDouble));
  }
  sums[-1].index_add_(0, sample_n_, at::ones({sample_n_.size(0)}, sums.options()));
  if (comm_ != nullptr && comm_->size() > 1) {
    comm_->all_reduce_sum(sums, "sequence_means");
  }
  return sums;
}

std::vector<at::Tensor> SequenceMeans::of(const std::vector<at::Tensor>& columns) const {
  const at::NoGradGuard no_grad;
  const at::Tensor sums = totals(columns);
  std::vector<at::Tensor> means;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const at::Tensor of_sequence = sums[static_cast<int64_t>(c)] / sums[-1].clamp_min(1.0);
    means.push_back(of_sequence.index_select(0, sample_n_).to(columns[c].scalar_type()));
  }
  return means;
}

std::vector<at::Tensor> SequenceMeans::sums_of(const std::vector<at::Tensor>& columns) const {
  const at::Tensor sums = totals(columns);
  std::vector<at::Tensor> result;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    result.push_back(
        sums[static_cast<int64_t>(c)].index_select(0, sample_n_).to(columns[c].scalar_type()));
  }
  return result;
}

at::Tensor SequenceMeans::max_of(const at::Tensor& column_n) const {
  const at::NoGradGuard no_grad;
  at::Tensor largest = at::full({num_sequences_}, -std::numeric_limits<double>::infinity(),
                                sample_n_.options().dtype(at::kDouble));
  largest.scatter_reduce_(0, sample_n_, column_n.detach().to(at::kDouble), "amax");
  if (comm_ != nullptr && comm_->size() > 1) {
    comm_->all_reduce_max(largest, "sequence_means");
  }
  return largest.index_select(0, sample_n_).to(column_n.scalar_type());
}

}  // namespace ringside::rl
