#include "rl/config/checks.h"

#include <stdexcept>
#include <utility>

#include "engine/models/adapter_targets.h"
#include "rl/config/enums.h"

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

namespace {

// Keys of adapters when there are none.
void check_no_lora(const LoraConfig& lora, std::vector<Mistake>& mistakes) {
  const LoraConfig plain;
  const auto check = [&](const char* key, const std::string& value, const std::string& expected) {
    if (value != expected) {
      mistakes.push_back(
          {key, "is " + value + ", but lora.rank is 0: all weights are trained; expected " +
                    (expected.empty() ? "\"\"" : expected) + ", or lora.rank above 0"});
    }
  };
  check("lora.alpha", text_of(lora.alpha), text_of(plain.alpha));
  check("lora.target_modules", lora.target_modules, plain.target_modules);
  check("lora.path", lora.path, plain.path);
  check("lora.base", std::string(to_string(lora.base)), std::string(to_string(plain.base)));
  check("lora.publish", std::string(to_string(lora.publish)),
        std::string(to_string(plain.publish)));
}

// Versions that are adapters alone.
void check_adapter_publishing(const Config& c, std::vector<Mistake>& mistakes) {
  if (!c.weights.directory.empty()) {
    mistakes.push_back({"lora.publish",
                        "is adapter, but weights.directory asks for whole models on disk; expected "
                        "merged, or weights.directory \"\""});
  }
  const RolloutServer kind = c.rollout.server;
  const ServerWeights weights = c.rollout.server_options.weights;
  if (kind == RolloutServer::kEmbedded || weights == ServerWeights::kDisk ||
      weights == ServerWeights::kRestart) {
    return;  // the worker merges
  }
  const std::string server = "is adapter, but a server of kind " + std::string(to_string(kind));
  const std::string expected =
      "; expected merged, or rollout.server_options.weights disk or restart, for which the worker "
      "merges";
  if (weights != ServerWeights::kAuto ||
      (kind != RolloutServer::kPython && kind != RolloutServer::kVllm)) {
    mistakes.push_back({"lora.publish", server + " takes whole weights by weights " +
                                            std::string(to_string(weights)) + expected});
  } else if (c.lora.base != LoraBase::kModel) {
    mistakes.push_back({"lora.publish", server +
                                            " adds adapters to the weights of model.path, and the "
                                            "trainer to those of lora.base " +
                                            std::string(to_string(c.lora.base)) + expected});
  }
}

void check_lora(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.lora.rank == 0) {
    check_no_lora(c.lora, mistakes);
    return;
  }
  try {
    engine::parse_adapter_targets(c.lora.target_modules);
  } catch (const std::invalid_argument& error) {
    mistakes.push_back({"lora.target_modules", error.what()});
  }
  if (c.algorithm.reference_update_every > 0) {
    mistakes.push_back({"algorithm.reference_update_every",
                        "is " + std::to_string(c.algorithm.reference_update_every) +
                            ", but with lora.rank " + std::to_string(c.lora.rank) +
                            " the reference is the policy without its adapters, which does not "
                            "move; expected 0"});
  }
  if (c.lora.publish == LoraPublish::kAdapter) {
    check_adapter_publishing(c, mistakes);
  }
}

}  // namespace

std::vector<Mistake> check_combinations(const Config& c) {
  std::vector<Mistake> mistakes;
  check_algorithm(c, mistakes);
  check_parallel(c, mistakes);
  check_curve(c.bridge.curve, mistakes);
  check_lora(c, mistakes);
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
