#include "sp/mesh/lengths.h"

#include <ATen/ATen.h>

#include <numeric>
#include <stdexcept>

#include "sp/layout/range.h"

namespace ringside::sp {
namespace {

void check_one_per_rank(const std::vector<int64_t>& lengths, const Communicator& comm,
                        const char* what) {
  TORCH_CHECK(static_cast<int64_t>(lengths.size()) == comm.size(), what, ": lengths of ",
              lengths.size(), " ranks for a group of ", comm.size());
}

}  // namespace

std::vector<int64_t> gather_lengths(int64_t mine, at::Device device, Communicator& comm) {
  const at::Tensor all =
      comm.all_gather(at::full({1}, mine, at::TensorOptions(device).dtype(at::kLong)), "lengths")
          .view({-1})
          .cpu();
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

std::vector<int64_t> even_lengths(int64_t total, int64_t ranks) {
  if (total < 0 || ranks < 1) {
    throw std::invalid_argument("even_lengths: " + std::to_string(total) + " rows over " +
                                std::to_string(ranks) + " ranks");
  }
  std::vector<int64_t> lengths;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    lengths.push_back(even_part(total, ranks, rank).size());
  }
  return lengths;
}

std::vector<int64_t> known_lengths(const std::vector<int64_t>& lengths, int64_t mine,
                                   at::Device device, Communicator& comm, const char* what) {
  if (lengths.empty()) {
    return gather_lengths(mine, device, comm);
  }
  check_one_per_rank(lengths, comm, what);
  TORCH_CHECK(lengths[comm.rank()] == mine, what, ": rank ", comm.rank(), " holds ", mine,
              ", the lengths ", lengths, " say ", lengths[comm.rank()]);
  return lengths;
}

std::vector<int64_t> cut_lengths(const std::vector<int64_t>& lengths, int64_t total,
                                 const Communicator& comm, const char* what) {
  if (lengths.empty()) {
    return even_lengths(total, comm.size());
  }
  check_one_per_rank(lengths, comm, what);
  TORCH_CHECK(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == total, what,
              ": lengths ", lengths, " for ", total, " rows");
  return lengths;
}

}  // namespace ringside::sp
