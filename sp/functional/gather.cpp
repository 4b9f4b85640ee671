#include "sp/functional/gather.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <utility>

#include "sp/layout/range.h"
#include "sp/mesh/saved_context.h"

namespace ringside::sp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct GatherCall {
  std::vector<int64_t> lengths;
  std::shared_ptr<Communicator> comm;
};

// Gather along dim 0.
class Gather : public torch::autograd::Function<Gather> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& x, const GatherCall& call) {
    hold(ctx, call);
    return call.comm->all_gather_rows(x, call.lengths, "gather_outputs");
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const GatherCall call = held<GatherCall>(ctx);
    return {call.comm->reduce_scatter_rows(grads[0], call.lengths, "gather_outputs_grad"),
            Variable()};
  }
};

}  // namespace

at::Tensor gather_outputs(const at::Tensor& x, int64_t gather_dim,
                          const std::shared_ptr<Communicator>& comm,
                          const std::vector<int64_t>& lengths) {
  const int64_t dim = at::maybe_wrap_dim(gather_dim, x.dim());
  GatherCall call{known_lengths(lengths, x.size(dim), x.device(), *comm, "gather_outputs"), comm};
  return comm->size() == 1 ? x : Gather::apply(x.movedim(dim, 0), call).movedim(0, dim);
}

at::Tensor gather_outputs_unpadded(const at::Tensor& x, int64_t gather_dim, int64_t unpadded_size,
                                   const std::shared_ptr<Communicator>& comm) {
  const int64_t dim = at::maybe_wrap_dim(gather_dim, x.dim());
  const int64_t padded = x.size(dim);
  TORCH_CHECK(unpadded_size >= 0 && unpadded_size <= padded * comm->size(),
              "gather_outputs: unpadded size ", unpadded_size, " of ", comm->size(),
              " shards with ", padded, " rows each");
  std::vector<int64_t> lengths;
  for (int64_t p = 0; p < comm->size(); ++p) {
    lengths.push_back(std::clamp<int64_t>(unpadded_size - p * padded, 0, padded));
  }
  return gather_outputs(x.narrow(dim, 0, lengths[comm->rank()]), dim, comm, lengths);
}

at::Tensor slice_input_tensor(const at::Tensor& x, int64_t dim, const Communicator& comm) {
  const Range mine = even_part(x.size(dim), comm.size(), comm.rank());
  return x.narrow(dim, mine.begin, mine.size());
}

}  // namespace ringside::sp
