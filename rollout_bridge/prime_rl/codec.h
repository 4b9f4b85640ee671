// prime-rl's rollouts, as its orchestrator sends them to its trainer, to bridge::Rollout.
//
// Source: PrimeIntellect-ai/prime-rl, src/prime_rl/transports/batch/{types,zmq,base}.py at commits
// 0f59b241 (types) and 43da2dcb (sockets). A message is the MessagePack of list[MicroBatch], the
// packed micro-batches of one training step for one data rank; MicroBatch is
// msgspec.Struct(array_like=True, omit_defaults=True), so an array whose places are, in order:
//    0 input_ids [int]            5 sequence_lengths [int]    10 routed_experts            15
//    ref_kl_weights [float] 1 loss_mask [bool]           6 temperatures [float]      11 mm_refs 16
//    sampling_mask 2 advantages [float]         7 env_names [str]           12 mm_token_type_ids
//    [int]   17 trace_ids [str] 3 inference_logprobs [float] 8 seq_lens [int]            13
//    rl_weights [float]        18 branch_indices [int] 4 position_ids [int]         9 ref_logprobs
//    [float]      14 ce_weights [float]        19 payload
// 0 to 8 are always there, the others may be nil or, by an earlier version, left out from some
// place on. 0 to 4, 6, 7, 9 and 12 to 15 hold one value a token, 17 and 18 one a sequence.
// Sequences lie one behind the other; padding (token 1, no loss, env name "") is counted into the
// last one's length. Values of a token are about that token: its own log-prob, whether it is
// trained on. The wire carries no reward, no group, no step number and no weight version.
//
// What becomes of it: each sequence with a token to train on is one rollout, a group of its own.
// Its prompt are the leading tokens that are not trained on, its completion the rest without
// padding; advantages are those of the completion's tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rollout_bridge/base/limits.h"
#include "rollout_bridge/base/result.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge::prime_rl {

// What the wire does not say and a rollout needs.
struct StepLabel {
  int64_t step = 0;         // part of the rollouts' ids
  int64_t first_group = 0;  // rollouts are groups first_group, first_group + 1, ...
  int64_t trainer_term = 0;
  int64_t version = 0;  // written as the weights that everything was sampled under
};

struct StepRollouts {
  std::vector<Rollout> rollouts;  // in the message's order
  int64_t without_loss =
      0;  // sequences without a token to train on (prime-rl fills ranks up with such), left out
  int64_t padding_tokens = 0;
};

inline constexpr std::size_t kMaxMicroBatches = 65536;

// Decodes one message. Nothing is trusted: lengths are held against the bytes that are there and
// against `limits` (max_tokens: of all micro-batches together) before anything is allocated, and
// every rollout passes bridge::validate. What this trainer cannot honour is refused with its name:
// images, routed experts, sampling masks (log-probs of a cut distribution), payload handles, loss
// components other than rl and weights of it other than 1, several temperatures in a sequence, a
// trained token without a token before it, fields of a later version. Pure, thread-safe.
Result<StepRollouts> decode_step(std::span<const std::byte> message, const StepLabel& label,
                                 const Limits& limits = {});

}  // namespace ringside::bridge::prime_rl
