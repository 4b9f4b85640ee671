#include "rl/config/checks.h"

#include <utility>

namespace ringside::rl {
namespace {

// Keys of an axis with one rank, where they would have no effect.
void check_axes(const Config& c, std::vector<Mistake>& mistakes) {
  // Factored by the model's shape once that is read.
  const bool factored = c.parallel.context_parallel_size > 1;
  const bool ring =
      c.parallel.ringattn_parallel_size > 1 || (factored && c.sp.method != SpMethod::kUlysses);
  const bool ulysses =
      c.parallel.ulysses_parallel_size > 1 || (factored && c.sp.method != SpMethod::kRing);
  const SpConfig plain;
  const std::string no_ring =
      ", but there is no ring attention: parallel.ringattn_parallel_size is 1; expected ";
  if (!ring && c.sp.ring_impl != plain.ring_impl) {
    mistakes.push_back(
        {"sp.ring_impl", "is " + std::string(to_string(c.sp.ring_impl)) + no_ring + "p2p"});
  }
  if (!ring && c.sp.placement != plain.placement) {
    mistakes.push_back({"sp.placement", "is " + std::string(to_string(c.sp.placement)) + no_ring +
                                            "document_aware"});
  }
  if (!ring && c.sp.ring_backward != plain.ring_backward) {
    mistakes.push_back(
        {"sp.ring_backward", "is " + std::string(to_string(c.sp.ring_backward)) + no_ring + "p2p"});
  }
  if (!ring && c.sp.heads_k_stride > 0) {
    mistakes.push_back(
        {"sp.heads_k_stride", "is " + std::to_string(c.sp.heads_k_stride) + no_ring + "0"});
  }
  if (!ulysses && c.sp.async_ulysses) {
    mistakes.push_back({"sp.async_ulysses",
                        "is true, but there is no Ulysses exchange: parallel.ulysses_parallel_size "
                        "is 1; expected false"});
  }
  if (c.parallel.cp_fsdp_mode != CpFsdpMode::kAll) {
    mistakes.push_back(
        {"parallel.cp_fsdp_mode",
         "is " + std::string(to_string(c.parallel.cp_fsdp_mode)) +
             ", but parameters are not sharded yet: every rank holds the whole model, its "
             "gradient and the optimizer's state; expected all"});
  }
}

void check_parallel(const Config& c, std::vector<Mistake>& mistakes) {
  check_axes(c, mistakes);
  const auto& parallel = c.parallel;
  const std::string cp = std::to_string(parallel.context_parallel_size);
  if (parallel.context_parallel_size > 0 &&
      parallel.ringattn_parallel_size * parallel.ulysses_parallel_size > 1) {
    mistakes.push_back(
        {"parallel.context_parallel_size",
         "is " + cp +
             ", but parallel.ringattn_parallel_size or parallel.ulysses_parallel_size is above 1 "
             "too; expected context_parallel_size alone, or 0 with the two others"});
  }
  if (!c.sp.device_speeds.empty() && parallel.sequence_parallel_size() == 1) {
    mistakes.push_back({"sp.device_speeds",
                        "is " + c.sp.device_speeds +
                            ", but no sequence is shared: parallel.context_parallel_size and the "
                            "axes of sequence parallelism are 1; expected \"\""});
  }
  if (parallel.context_parallel_size == 0 && c.sp.method != SpMethod::kAuto) {
    mistakes.push_back(
        {"sp.method", "is " + std::string(to_string(c.sp.method)) +
                          ", which factors parallel.context_parallel_size, but that is 0; expected "
                          "context_parallel_size above 0, or method auto"});
  }
  if (c.sp.reproducible > 0 && c.sp.reproducible != parallel.sequence_parallel_size()) {
    mistakes.push_back({"sp.reproducible", "is " + std::to_string(c.sp.reproducible) +
                                               " virtual ranks, but parallel.* asks for " +
                                               std::to_string(parallel.sequence_parallel_size()) +
                                               " sequence-parallel ranks; expected the same number "
                                               "(fewer processes carry them: --nproc)"});
  }
  if (c.sp.ring_backward != RingBackward::kP2p && c.sp.ring_impl != sp::RingImpl::kP2p) {
    mistakes.push_back({"sp.ring_backward",
                        "is " + std::string(to_string(c.sp.ring_backward)) +
                            ", but sp.ring_impl all_gather gathers in both passes; expected p2p, "
                            "or ring_impl p2p"});
  }
  if (c.sp.heads_k_stride > 0 && c.sp.ring_impl != sp::RingImpl::kAllGather) {
    mistakes.push_back({"sp.heads_k_stride",
                        "is " + std::to_string(c.sp.heads_k_stride) +
                            ", but sp.ring_impl p2p does not gather; expected 0, or ring_impl "
                            "all_gather"});
  }
}

}  // namespace

namespace {

void check_curve(const CurveConfig& curve, std::vector<Mistake>& mistakes) {
  if (curve.trainer_secret.empty() != curve.allowed_workers.empty()) {
    mistakes.push_back({"bridge.curve.allowed_workers",
                        "and bridge.curve.trainer_secret go together: a trainer with keys needs "
                        "to know whose it takes; expected both or neither"});
  }
  if (curve.worker_secret.empty() != curve.trainer_public.empty()) {
    mistakes.push_back({"bridge.curve.trainer_public",
                        "and bridge.curve.worker_secret go together: a worker with keys needs to "
                        "know its trainer's; expected both or neither"});
  }
}

}  // namespace

std::vector<Mistake> check_combinations(const Config& c) {
  std::vector<Mistake> mistakes;
  check_algorithm(c, mistakes);
  check_parallel(c, mistakes);
  check_curve(c.bridge.curve, mistakes);
  if (c.algorithm.name == AlgorithmName::kSft) {
    const std::string why =
        ", but algorithm.name sft does not evaluate: there are no rewards; expected ";
    if (c.eval.every > 0) {
      mistakes.push_back({"eval.every", "is " + std::to_string(c.eval.every) + why + "0"});
    }
    if (!c.data.eval.empty()) {
      mistakes.push_back({"data.eval", "is " + c.data.eval + why + "\"\""});
    }
  } else if (c.eval.every > 0 && c.data.eval.empty()) {
    mistakes.push_back({"eval.every", "is " + std::to_string(c.eval.every) +
                                          ", but data.eval is empty; expected data.eval to name "
                                          "the held-out prompts, or eval.every 0"});
  }
  if (c.bridge.worker_timeout_s <= c.bridge.heartbeat_s) {
    mistakes.push_back({"bridge.worker_timeout_s",
                        "is " + text_of(c.bridge.worker_timeout_s) +
                            ", but heartbeats come every bridge.heartbeat_s = " +
                            text_of(c.bridge.heartbeat_s) + " s; expected more than that"});
  }
  if (c.bridge.pause_timeout_s <= c.bridge.heartbeat_s) {
    mistakes.push_back({"bridge.pause_timeout_s",
                        "is " + text_of(c.bridge.pause_timeout_s) +
                            ", but a worker reports the end of its pause only in a heartbeat, "
                            "every bridge.heartbeat_s = " +
                            text_of(c.bridge.heartbeat_s) + " s; expected more than that"});
  }
  if (c.bridge.rollout_address == c.bridge.weights_address &&
      !c.bridge.rollout_address.ends_with(":0")) {
    mistakes.push_back({"bridge.weights_address", "equals bridge.rollout_address " +
                                                      c.bridge.rollout_address +
                                                      "; expected an address of its own"});
  }
  return mistakes;
}

}  // namespace ringside::rl
