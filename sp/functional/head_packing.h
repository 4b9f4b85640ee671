// The exchange behind every function of this folder that trades tokens for heads, without autograd: starting and
// finishing are apart so that callers compute in between. Several tensors with their own head counts travel as one
// message.
// Shapes: s = this rank's tokens, S = all tokens, H = all heads, h = this rank's heads, R = any further dims. Tensors
// of one exchange share dtype and R. Each pair of functions is the adjoint of the other pair.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "sp/comm/communicator.h"
#include "sp/layout/range.h"

namespace ringside::sp {

// Who holds which tokens before, and which heads after. Heads of one tensor may go to several ranks.
struct HeadExchange {
  std::vector<int64_t> rows_of;              // [P] tokens
  std::vector<std::vector<Range>> heads_of;  // [tensor][P], begins and ends ascending, the last one ends at H
};

struct StartedExchange {
  at::Tensor receive;
  std::vector<int64_t> rest;  // R
  std::unique_ptr<Transfer> transfer;
};

// Contiguous head ranges with these sizes.
std::vector<Range> ranges_of(const std::vector<int64_t>& sizes);

// xs_sHR -> one message a rank. Throws c10::Error when a tensor does not fit the exchange. Collective, never blocks.
StartedExchange start_to_heads(const std::vector<at::Tensor>& xs_sHR, const HeadExchange& exchange, Communicator& comm,
                               const char* tag);
// Blocks; returns xs_ShR, views of one buffer when there are several.
std::vector<at::Tensor> finish_to_heads(StartedExchange started, const HeadExchange& exchange,
                                        const Communicator& comm);

// xs_ShR -> one message a rank. Throws c10::Error when a tensor does not fit the exchange. Collective, never blocks.
StartedExchange start_to_sequence(const std::vector<at::Tensor>& xs_ShR, const HeadExchange& exchange,
                                  Communicator& comm, const char* tag);
// Blocks; returns xs_sHR. What several ranks sent for one head is summed in rank order, in fp32 for narrower floats.
std::vector<at::Tensor> finish_to_sequence(StartedExchange started, const HeadExchange& exchange,
                                           const Communicator& comm);

}  // namespace ringside::sp
