// The exchange behind everything that trades tokens for heads (Jacobs et al. 2023,
// DeepSpeed-Ulysses), without autograd: starting and finishing are apart so that callers compute in
// between. Several tensors with their own head counts travel as one message; "joined" tensors hold
// the heads of all of them one after another. Shapes: s = this rank's tokens, S = all tokens, H =
// all heads, h = this rank's heads, R = any further dims. Tensors of one exchange share dtype and
// R. Each pair of functions is the adjoint of the other pair.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "sp/layout/range.h"
#include "sp/mesh/communicator.h"

namespace ringside::sp {

// Who holds which tokens before, and which heads after. Heads of one tensor may go to several
// ranks.
struct HeadExchange {
  std::vector<int64_t> rows_of;  // [P] tokens
  std::vector<std::vector<Range>>
      heads_of;  // [tensor][P], begins and ends ascending, the last one ends at H
};

struct StartedExchange {
  at::Tensor receive;
  std::vector<int64_t> rest;  // R
  std::unique_ptr<Transfer> transfer;
};

// Contiguous head ranges with these sizes.
std::vector<Range> ranges_of(const std::vector<int64_t>& sizes);

// xs_sHR -> one message a rank. Throws c10::Error when a tensor does not fit the exchange.
// Collective, never blocks.
StartedExchange start_to_heads(const std::vector<at::Tensor>& xs_sHR, const HeadExchange& exchange,
                               Communicator& comm, const char* tag);
// Blocks; returns the joined tensor, or xs_ShR, views of it.
at::Tensor finish_joined_to_heads(StartedExchange started, const HeadExchange& exchange,
                                  const Communicator& comm);
std::vector<at::Tensor> finish_to_heads(StartedExchange started, const HeadExchange& exchange,
                                        const Communicator& comm);

// xs_ShR, or the joined tensor, -> one message a rank. Throws c10::Error when a tensor does not fit
// the exchange. Collective, never blocks.
StartedExchange start_joined_to_sequence(const at::Tensor& joined_ShR, const HeadExchange& exchange,
                                         Communicator& comm, const char* tag);
StartedExchange start_to_sequence(const std::vector<at::Tensor>& xs_ShR,
                                  const HeadExchange& exchange, Communicator& comm,
                                  const char* tag);
// Blocks; returns xs_sHR. What several ranks sent for one head is summed in rank order, in fp32 for
// narrower floats.
std::vector<at::Tensor> finish_to_sequence(StartedExchange started, const HeadExchange& exchange,
                                           const Communicator& comm);

}  // namespace ringside::sp
