// Exchange of tokens for heads without autograd. Start and finish are separate calls, so the caller
// can compute in between. Several tensors with their own head counts travel as one message. A
// "joined" tensor holds the heads of all of them one after another. Each pair of functions is the
// adjoint of the other pair.
//
// Shapes: s = this rank's tokens, S = all tokens, H = all heads, h = this rank's heads, R = any
// further dims. Tensors of one exchange share dtype and R.
// Source: Jacobs et al. 2023, DeepSpeed-Ulysses.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "sp/layout/range.h"
#include "sp/mesh/communicator.h"

namespace ringside::sp {

// The tokens of each rank before the exchange and its heads after. A head may go to several ranks.
struct HeadExchange {
  std::vector<int64_t> rows_of;  // [P] tokens
  // [tensor][P], begins and ends ascending, the last end is H.
  std::vector<std::vector<Range>> heads_of;
};

// An exchange in progress. Destroying it waits.
struct StartedExchange {
  at::Tensor receive;         // 1-D, in rank order
  std::vector<int64_t> rest;  // R
  std::unique_ptr<Transfer> transfer;
};

// Contiguous head ranges with these sizes.
std::vector<Range> ranges_of(const std::vector<int64_t>& sizes);

// Packs and sends xs_sHR. tag: of the communicator's counters.
// Collective over: comm.
// Blocks: never.
// Throws: c10::Error, before anything is sent, when a tensor does not match the exchange.
StartedExchange start_to_heads(const std::vector<at::Tensor>& xs_sHR, const HeadExchange& exchange,
                               Communicator& comm, const char* tag);
// Waits, then returns the joined tensor, or xs_ShR as views of it.
// Blocks: until the exchange is done.
at::Tensor finish_joined_to_heads(StartedExchange started, const HeadExchange& exchange,
                                  const Communicator& comm);
std::vector<at::Tensor> finish_to_heads(StartedExchange started, const HeadExchange& exchange,
                                        const Communicator& comm);

// Packs and sends xs_ShR, or the joined tensor.
// Collective over: comm.
// Blocks: never.
// Throws: c10::Error, before anything is sent, when a tensor does not match the exchange.
StartedExchange start_joined_to_sequence(const at::Tensor& joined_ShR, const HeadExchange& exchange,
                                         Communicator& comm, const char* tag);
StartedExchange start_to_sequence(const std::vector<at::Tensor>& xs_ShR,
                                  const HeadExchange& exchange, Communicator& comm,
                                  const char* tag);
// Waits, then returns xs_sHR. Contributions of several ranks to one head are summed in rank order,
// in fp32 for narrower floats.
// Blocks: until the exchange is done.
std::vector<at::Tensor> finish_to_sequence(StartedExchange started, const HeadExchange& exchange,
                                           const Communicator& comm);

}  // namespace ringside::sp
