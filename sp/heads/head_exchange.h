// Exchange of tokens for heads without autograd, in one call or as start and finish, so that the
// caller can compute in between. Several tensors with their own head counts travel as one message.
// A "joined" tensor holds the heads of all of them one after another. Each pair of functions is the
// adjoint of the other pair.
//
// Shapes: s = this rank's tokens, S = all tokens, H = all heads, h = this rank's heads, R = any
// further dims. Tensors of one exchange share dtype and R.
// Source: Jacobs et al. 2023, DeepSpeed-Ulysses.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "sp/heads/head_split.h"
#include "sp/layout/range.h"
#include "sp/mesh/communicator.h"

namespace ringside::sp {

// The tokens of each rank before the exchange and its heads after. A head may go to several ranks.
struct HeadExchange {
  std::vector<int64_t> rows_of;  // [P] tokens
  // [tensor][P], begins and ends ascending, the last end is H.
  std::vector<std::vector<Range>> heads_of;
};

// An exchange in progress, and where its results arrive. Destroying it waits.
struct StartedExchange {
  std::vector<at::Tensor> results;  // the joined tensor, or xs_sHR
  // [tensor][P]: contributions of each rank to a tensor whose heads several ranks have; they are
  // summed into its result, which is undefined until then.
  std::vector<std::vector<at::Tensor>> contributions;
  std::unique_ptr<Transfer> transfer;
};

// Contiguous head ranges with these sizes.
std::vector<Range> ranges_of(const std::vector<int64_t>& sizes);

// Sends xs_sHR, which must stay untouched until the finish. tag: of the communicator's counters.
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

// Sends xs_ShR, or the joined tensor, which must stay untouched until the finish.
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

// Start and finish in one call. In a group of one the tensor itself is returned, unchecked.
// Collective over: comm.
// Blocks: until the exchange is done; on CUDA only the current stream waits.
// Throws: as start_to_heads and start_to_sequence.
at::Tensor to_heads(const at::Tensor& x_sHR, const HeadExchange& exchange, Communicator& comm,
                    const char* tag);
at::Tensor to_sequence(const at::Tensor& x_ShR, const HeadExchange& exchange, Communicator& comm,
                       const char* tag);

// The two exchanges of an attention layer: query heads, and KV heads twice, for k and v.
struct AttentionExchange {
  HeadExchange query;
  HeadExchange kv;
};
// The exchanges of heads split so, for ranks that hold rows_of[p] tokens each. Pure.
AttentionExchange attention_exchange(const HeadSplit& split, const std::vector<int64_t>& rows_of);

// q_sHD, k_sKD, v_sKD -> this rank's heads of all tokens: q_ShD and kv_S2kD, k heads before v
// heads. k and v share one exchange; both exchanges run at the same time. In a group of one q is
// not copied.
// Collective over, blocks, throws: as to_heads().
std::pair<at::Tensor, at::Tensor> qkv_to_heads(const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                                               const at::Tensor& v_sKD,
                                               const AttentionExchange& exchange,
                                               Communicator& comm);
// Its adjoint: dq_sHD, dk_sKD, dv_sKD. The results keep the dtypes of dq_ShD and dkv_S2kD, which
// may differ.
std::array<at::Tensor, 3> qkv_gradients_to_sequence(const at::Tensor& dq_ShD,
                                                    const at::Tensor& dkv_S2kD,
                                                    const AttentionExchange& exchange,
                                                    Communicator& comm);

}  // namespace ringside::sp
