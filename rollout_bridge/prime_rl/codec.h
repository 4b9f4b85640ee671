// Decoder of prime-rl's rollouts, as its orchestrator sends them to its trainer, into
// bridge::Rollout.
//
// A message is the MessagePack of list[MicroBatch]: the packed micro-batches of one training step
// for one data rank. MicroBatch is msgspec.Struct(array_like=True, omit_defaults=True), so it is an
// array of these fields:
//    0 input_ids [int], 1 loss_mask [bool], 2 advantages [float], 3 inference_logprobs [float],
//    4 position_ids [int], 5 sequence_lengths [int], 6 temperatures [float], 7 env_names [str],
//    8 seq_lens [int], 9 ref_logprobs [float], 10 routed_experts, 11 mm_refs,
//    12 mm_token_type_ids [int], 13 rl_weights [float], 14 ce_weights [float],
//    15 ref_kl_weights [float], 16 sampling_mask, 17 trace_ids [str], 18 branch_indices [int],
//    19 payload
// Fields 0 to 8 are always present. The others may be nil; an earlier version may omit trailing
// ones. Fields 0 to 4, 6, 7, 9 and 12 to 15 hold one value a token, 17 and 18 one a sequence.
// Sequences are concatenated. Padding (token 1, no loss, env name "") is counted in the last
// sequence's length. A token's values describe the token itself: its own log-prob, whether it is
// trained on. The message has no reward, group, step number or weight version.
//
// Result: each sequence with a trained token is one rollout and one group. Its prompt is the
// leading untrained tokens. Its completion is the rest without padding, with the advantages of
// these tokens.
//
// Source: PrimeIntellect-ai/prime-rl, src/prime_rl/transports/batch/{types,zmq,base}.py at commits
// 0f59b241 (types) and 43da2dcb (sockets).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rollout_bridge/base/limits.h"
#include "rollout_bridge/base/result.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge::prime_rl {

// Fields of a rollout that the message does not have.
struct StepLabel {
  int64_t step = 0;         // part of the rollouts' ids
  int64_t first_group = 0;  // rollouts are groups first_group, first_group + 1, ...
  int64_t trainer_term = 0;
  int64_t version = 0;  // recorded as the version of every token
};

struct StepRollouts {
  std::vector<Rollout> rollouts;  // in the message's order
  // Sequences without a trained token, which are left out; prime-rl fills ranks up with them.
  int64_t without_loss = 0;
  int64_t padding_tokens = 0;
};

inline constexpr std::size_t kMaxMicroBatches = 65536;

// Decodes one message. The message is untrusted: lengths are checked against the remaining bytes
// and `limits` (max_tokens: of all micro-batches together) before anything is allocated. Every
// rollout passes bridge::validate.
// Refuses by name what this trainer cannot train on: images, routed experts, sampling masks
// (log-probs of a truncated distribution), payload handles, loss components other than rl, rl
// weights other than 1, several temperatures in a sequence, a trained token without a token before
// it, fields of a later version.
// Thread safety: pure.
Result<StepRollouts> decode_step(std::span<const std::byte> message, const StepLabel& label,
                                 const Limits& limits = {});

}  // namespace ringside::bridge::prime_rl
