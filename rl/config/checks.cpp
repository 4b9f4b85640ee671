#include "rl/config/checks.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/models/adapter_targets.h"
#include "rl/config/enums.h"
#include "rl/config/eval_sets.h"

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
  if (!ring && !ulysses && c.parallel.cp_fsdp_mode != CpFsdpMode::kAll) {
    mistakes.push_back(
        {"parallel.cp_fsdp_mode", "is " + std::string(to_string(c.parallel.cp_fsdp_mode)) +
                                      ", but there is one sequence-parallel rank; expected all"});
  }
}

void check_sharding(const Config& c, std::vector<Mistake>& mistakes) {
  const ParallelConfig& parallel = c.parallel;
  const ParallelConfig plain;
  const bool whole = parallel.replica_size() == 1 || (parallel.data_parallel_shard_size == 1 &&
                                                      parallel.cp_fsdp_mode == CpFsdpMode::kNone);
  if (whole && parallel.zero_stage != plain.zero_stage &&
      c.optimizer.offload != OptimizerOffload::kFull) {
    mistakes.push_back(
        {"parallel.zero_stage", "is " + std::to_string(parallel.zero_stage) +
                                    ", but every rank holds the whole model; expected " +
                                    std::to_string(plain.zero_stage) +
                                    ", or parallel.data_parallel_shard_size above 1"});
  }
  if (c.model.offload_parameters && c.optimizer.offload != OptimizerOffload::kFull) {
    mistakes.push_back({"model.offload_parameters",
                        "is true, but the master weights are on the device; expected "
                        "optimizer.offload full, or false"});
  }
}

void check_experts(const Config& c, std::vector<Mistake>& mistakes) {
  const ParallelConfig& parallel = c.parallel;
  if (parallel.replica_size() % parallel.expert_parallel_size != 0) {
    mistakes.push_back({"parallel.expert_parallel_size",
                        "is " + std::to_string(parallel.expert_parallel_size) +
                            ", but one copy of the model has " +
                            std::to_string(parallel.replica_size()) +
                            " ranks (parallel.data_parallel_shard_size " +
                            std::to_string(parallel.data_parallel_shard_size) + " x " +
                            std::to_string(parallel.sequence_parallel_size()) +
                            " sequence-parallel ranks); expected a divisor of them"});
  }
}

void check_parallel(const Config& c, std::vector<Mistake>& mistakes) {
  check_axes(c, mistakes);
  check_sharding(c, mistakes);
  check_experts(c, mistakes);
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

// Keys that act on what recomputation keeps or computes.
void check_activations(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.model.recompute != Recompute::kNone) {
    return;
  }
  const std::string why = ", but model.recompute is none; expected ";
  if (c.model.offload_activations) {
    mistakes.push_back(
        {"model.offload_activations", "is true" + why +
                                          "model.recompute full or selective, whose kept tensors "
                                          "can wait in host memory, or false"});
  }
  if (c.model.mlp_tile_tokens > 0) {
    mistakes.push_back({"model.mlp_tile_tokens",
                        "is " + std::to_string(c.model.mlp_tile_tokens) + why +
                            "model.recompute full or selective, in which the MLP can be tiled, "
                            "or 0"});
  }
}

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
  if (c.model.router_bias_update_rate > 0) {
    mistakes.push_back({"model.router_bias_update_rate",
                        "is " + text_of(c.model.router_bias_update_rate) + ", but with lora.rank " +
                            std::to_string(c.lora.rank) +
                            " the routers and their corrections are frozen; expected 0"});
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

void check_fine_tuning(const Config& c, std::vector<Mistake>& mistakes) {
  if (!c.data.eval.empty()) {
    mistakes.push_back(
        {"data.eval", "is " + c.data.eval +
                          ", but algorithm.name sft computes no rewards; expected \"\", and "
                          "held-out documents in data.sft_eval"});
  }
  if (c.eval.every > 0 && eval_sets(c).empty()) {
    mistakes.push_back({"eval.every", "is " + std::to_string(c.eval.every) +
                                          ", but data.sft_eval is empty; expected data.sft_eval or "
                                          "eval.sets to name the held-out documents, or "
                                          "eval.every 0"});
  }
  if (c.data.max_length > c.train.tokens_per_micro_batch) {
    mistakes.push_back(
        {"data.max_length", "is " + std::to_string(c.data.max_length) +
                                ", but a micro-batch holds train.tokens_per_micro_batch = " +
                                std::to_string(c.train.tokens_per_micro_batch) +
                                " tokens; expected at most that"});
  }
}

// Reinforcement learning, and keys of supervised fine-tuning, which it does not read.
void check_no_fine_tuning(const Config& c, std::vector<Mistake>& mistakes) {
  const std::string why = ", but only algorithm.name sft reads it; expected ";
  if (c.train.epochs > 0) {
    mistakes.push_back(
        {"train.epochs", "is " + std::to_string(c.train.epochs) + why + "0, and train.steps"});
  }
  if (c.data.max_length > 0) {
    mistakes.push_back({"data.max_length", "is " + std::to_string(c.data.max_length) + why +
                                               "0; rollout.max_prompt_tokens and "
                                               "rollout.max_completion_tokens bound rollouts"});
  }
  if (!c.data.sft_eval.empty()) {
    mistakes.push_back({"data.sft_eval", "is " + c.data.sft_eval + why + "\"\", and data.eval"});
  }
  if (c.eval.every > 0 && eval_sets(c).empty()) {
    mistakes.push_back({"eval.every", "is " + std::to_string(c.eval.every) +
                                          ", but data.eval is empty; expected data.eval or "
                                          "eval.sets to name the held-out prompts, or "
                                          "eval.every 0"});
  }
}

// Several completions of a prompt: greedy ones would be equal, and fine-tuning has none.
void check_evaluation(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.eval.samples > 1 && c.eval.temperature == 0.0) {
    mistakes.push_back({"eval.samples", "is " + std::to_string(c.eval.samples) +
                                            ", but eval.temperature 0 samples greedily and every "
                                            "completion of a prompt would be the same; expected "
                                            "eval.temperature above 0, or eval.samples 1"});
  }
  if (c.eval.samples > 1 && c.algorithm.name == AlgorithmName::kSft) {
    mistakes.push_back({"eval.samples", "is " + std::to_string(c.eval.samples) +
                                            ", but algorithm.name sft samples nothing: it computes "
                                            "the loss on data.sft_eval; expected eval.samples 1"});
  }
}

// Evaluation by the rollout workers.
void check_evaluation_by_workers(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.eval.by != EvalBy::kWorkers) {
    return;
  }
  if (c.algorithm.name == AlgorithmName::kSft) {
    mistakes.push_back({"eval.by",
                        "is workers, but algorithm.name sft has none: it computes the loss on "
                        "data.sft_eval; expected eval.by embedded"});
  } else if (c.rollout.reward == "worker") {
    mistakes.push_back({"eval.by",
                        "is workers, but rollout.reward is worker: only Ringside's own workers "
                        "evaluate, with the rewards of the recipe; expected rewards by name"});
  } else if (c.rollout.server == RolloutServer::kLlamaCpp && c.eval.temperature != 1.0) {
    mistakes.push_back({"eval.by",
                        "is workers, but rollout.server llama_cpp samples at temperature 1 only; "
                        "expected eval.temperature 1, or eval.by embedded"});
  }
}

// HOST:PORT, with a port from 1.
void check_openmetrics(const Config& c, std::vector<Mistake>& mistakes) {
  const std::string& address = c.log.openmetrics;
  const std::size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  const bool good = digits && colon > 0 && std::stoi(port) >= 1 && std::stoi(port) <= 65535;
  if (!address.empty() && !good) {
    mistakes.push_back({"log.openmetrics", "is \"" + address +
                                               "\", expected HOST:PORT such as 127.0.0.1:9400, "
                                               "or \"\" to serve nothing"});
  }
}

void check_template_options(const Config& c, std::vector<Mistake>& mistakes) {
  if (!c.data.template_options.empty() && c.data.chat_template != ChatTemplate::kModel) {
    mistakes.push_back(
        {"data.template_options",
         "is " + c.data.template_options + ", but data.chat_template is " +
             std::string(to_string(c.data.chat_template)) +
             ", which has no variables; expected data.chat_template model, or \"\""});
  }
}

// Keys that need messages, and so a template.
void check_chat_keys(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.data.chat_template != ChatTemplate::kNone) {
    return;
  }
  const std::string expected =
      ", but data.chat_template is none; expected data.chat_template model, chatml or llama3";
  if (c.data.text_prompts == TextPrompts::kUser) {
    mistakes.push_back({"data.text_prompts", "is user" + expected});
  }
  if (!c.data.system_prompt.empty()) {
    mistakes.push_back({"data.system_prompt", "is set" + expected});
  }
}

// Keys of prompts, which fine-tuning does not read.
void check_prompt_keys_unused(const Config& c, std::vector<Mistake>& mistakes) {
  const std::string expected =
      ", but algorithm.name sft learns documents as they are; expected the default";
  if (c.data.text_prompts != TextPrompts::kRaw) {
    mistakes.push_back({"data.text_prompts", "is user" + expected});
  }
  if (!c.data.system_prompt.empty()) {
    mistakes.push_back({"data.system_prompt", "is set" + expected});
  }
  if (!c.data.prompt_suffix.empty()) {
    mistakes.push_back({"data.prompt_suffix", "is set" + expected});
  }
}

void check_checkpoints(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.checkpoint.keep_best && c.eval.every == 0) {
    mistakes.push_back({"checkpoint.keep_best",
                        "is true, but nothing is evaluated: eval.every is 0; expected eval.every "
                        "above 0, or keep_best false"});
  }
  const std::string& best = c.checkpoint.best_metric;
  const auto metrics = evaluation_metrics(c);
  if (!best.empty() && std::find(metrics.begin(), metrics.end(), best) == metrics.end()) {
    std::string names;
    for (const std::string& name : metrics) {
      names += (names.empty() ? "" : ", ") + name;
    }
    mistakes.push_back({"checkpoint.best_metric",
                        "is " + best + ", which no evaluation of this recipe gives; expected " +
                            (names.empty() ? "data.eval or eval.sets to name held-out prompts"
                                           : "one of " + names)});
  }
}

}  // namespace

std::vector<Mistake> check_combinations(const Config& c) {
  std::vector<Mistake> mistakes;
  check_template_options(c, mistakes);
  check_checkpoints(c, mistakes);
  check_evaluation(c, mistakes);
  check_evaluation_by_workers(c, mistakes);
  check_openmetrics(c, mistakes);
  check_algorithm(c, mistakes);
  check_parallel(c, mistakes);
  check_activations(c, mistakes);
  check_curve(c.bridge.curve, mistakes);
  check_lora(c, mistakes);
  if (c.algorithm.name == AlgorithmName::kSft) {
    check_fine_tuning(c, mistakes);
    check_prompt_keys_unused(c, mistakes);
  } else {
    check_chat_keys(c, mistakes);
    check_no_fine_tuning(c, mistakes);
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
