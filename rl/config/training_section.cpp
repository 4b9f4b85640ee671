#include <stdexcept>

#include "engine/models/adapter_targets.h"
#include "rl/config/adapter_checks.h"
#include "rl/config/enums.h"
#include "rl/config/eval_sets.h"
#include "rl/config/sections.h"
#include "rl/config/task.h"

namespace ringside::rl {
namespace {

void add_optimizer(FieldList& fields, OptimizerConfig& optimizer) {
  const NumberRange decay{.low = 0, .high = 1, .below = true};
  fields.choice(
      "optimizer.kind", optimizer.kind,
      "adamw, muon = Muon for the matrices of layers, AdamW for all else: embedding, head, "
      "norms, biases");
  fields.real("optimizer.learning_rate", optimizer.learning_rate, between(0, 1),
              "the optimizer's peak learning rate");
  fields.choice("optimizer.lr_schedule", optimizer.lr_schedule,
                "constant, linear, cosine; over all optimizer steps after the warm-up");
  fields.integer("optimizer.warmup_steps", optimizer.warmup_steps, at_least(0),
                 "optimizer steps of linear warm-up from zero");
  fields.real("optimizer.min_lr_ratio", optimizer.min_lr_ratio, between(0, 1),
              "the schedule ends at learning_rate x this");
  fields.real("optimizer.beta1", optimizer.beta1, decay, "decay of the first moment");
  fields.real("optimizer.beta2", optimizer.beta2, decay, "decay of the second moment");
  fields.real("optimizer.eps", optimizer.eps, above(0), "added to the root of the second moment");
  fields.real("optimizer.weight_decay", optimizer.weight_decay, at_least(0),
              "decoupled weight decay");
  fields.choice("optimizer.weight_decay_of", optimizer.weight_decay_of,
                "what decays: matrices = all but norms and biases (as transformers' Trainer), all "
                "(verl)");
  fields.real("optimizer.max_grad_norm", optimizer.max_grad_norm, at_least(0),
              "clip the global gradient norm to this; 0 = no clipping");
  fields.choice("optimizer.offload", optimizer.offload,
                "state that is kept in host memory: none, moments = AdamW's moments, full = master "
                "weights and moments, with the optimizer on the host");
  MuonConfig& muon = optimizer.muon;
  fields.real("optimizer.muon.momentum", muon.momentum, decay, "decay of Muon's momentum");
  fields.flag("optimizer.muon.nesterov", muon.nesterov,
              "the direction looks one step of the momentum ahead");
  fields.integer("optimizer.muon.newton_schulz_steps", muon.newton_schulz_steps, between(1, 99),
                 "iterations that make a direction orthogonal");
  fields.choice("optimizer.muon.scale", muon.scale,
                "factor of a matrix's direction: spectral = sqrt(max(1, rows / columns)), "
                "match_adamw = 0.2 sqrt(max(rows, columns)), which suits AdamW's learning rates");
}

void add_lora(FieldList& fields, LoraConfig& lora) {
  fields.integer("lora.rank", lora.rank, between(0, 65536),
                 "rank of the low-rank adapters that are trained; 0 = all weights are trained");
  fields.real("lora.alpha", lora.alpha, above(0),
              "the adapters' product is scaled by alpha / rank");
  fields.text(
      "lora.target_modules", lora.target_modules,
      "which projections get adapters: all-linear, or names: \"q_proj, experts.down_proj\"");
  fields.text("lora.adapters", lora.adapters,
              "names of several adapters over one base, each trained on its own prompts: \"math, "
              "code\". Records of data.train name theirs (data.adapter_key); \"\" = one adapter");
  fields.path("lora.path", lora.path,
              "PEFT directory of adapters to start from, with lora.adapters a folder of one for "
              "each name; \"\" = new adapters");
  fields.choice("lora.base", lora.base,
                "how the frozen weights are held: model = in model.dtype, nf4, int8");
  fields.choice(
      "lora.publish", lora.publish,
      "what workers receive: merged = whole weights, adapter = the adapters alone (embedded, vLLM, "
      "Python server; for other servers the worker merges: weights disk or restart)");
}

void add_train(FieldList& fields, TrainConfig& train) {
  fields.integer(
      "train.steps", train.steps, at_least(1),
      "training steps, of prompts_per_step x group_size samples each (sft: batch_size documents)");
  fields.integer("train.epochs", train.epochs, at_least(0),
                 "sft, dpo, reward_model: passes over the data, instead of steps; 0 = train.steps");
  fields.integer("train.tokens_per_micro_batch", train.tokens_per_micro_batch, at_least(1),
                 "tokens in one micro-batch, over all sequence-parallel ranks together");
  fields.integer("train.num_mini_batches", train.num_mini_batches, at_least(1),
                 "optimizer steps per pass over a step's samples");
  fields.flag(
      "train.shuffle_mini_batches", train.shuffle_mini_batches,
      "true = a step's samples are put into a new order in each pass before they are divided "
      "into mini-batches; it depends on seed, step and pass alone");
  fields.integer("train.batch_size", train.batch_size, at_least(1),
                 "documents per step for algorithm.task: sft; pairs for dpo and reward_model");
  fields.integer("train.threads", train.threads, between(0, 1024),
                 "CPU threads of each rank; 0 = cores / local ranks");
}

// Whether the keys name projections of experts. Wrong names have an error of their own.
bool names_experts(const std::string& target_modules) {
  return target_modules.find("experts.") != std::string::npos;
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
  } else if (names_experts(c.lora.target_modules)) {
    mistakes.push_back({"lora.publish", server +
                                            " gets no adapters of experts, which "
                                            "lora.target_modules names" +
                                            expected});
  }
}

void check_lora(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.lora.rank == 0) {
    return;
  }
  if (c.optimizer.kind == OptimizerKind::kMuon) {
    mistakes.push_back(
        {"optimizer.kind", "is muon, which updates whole matrices of layers, but with lora.rank " +
                               std::to_string(c.lora.rank) +
                               " these are frozen and only adapters are trained; expected adamw"});
  }
  if (c.model.router_bias_update_rate > 0) {
    mistakes.push_back({"model.router_bias_update_rate",
                        "is " + text_of(c.model.router_bias_update_rate) + ", but with lora.rank " +
                            std::to_string(c.lora.rank) +
                            " the routers and their corrections are frozen; expected 0"});
  }
  if (c.model.vision != VisionPart::kFrozen && !c.data.image_key.empty()) {
    mistakes.push_back({"model.vision", "is " + std::string(to_string(c.model.vision)) +
                                            ", but with lora.rank " + std::to_string(c.lora.rank) +
                                            " only adapters are trained, and a vision tower has "
                                            "none; expected frozen"});
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
  check_named_adapters(c, mistakes);
}

// Tasks that learn from documents.
void check_documents(const Config& c, std::vector<Mistake>& mistakes) {
  const std::string held_out = held_out_files(c).key;
  if (!c.data.eval.empty()) {
    mistakes.push_back(
        {"data.eval",
         "is " + c.data.eval + ", but algorithm.task " + std::string(to_string(c.algorithm.task)) +
             " samples no completions; expected \"\", and held-out documents in " + held_out});
  }
  if (c.eval.every > 0 && eval_sets(c).empty()) {
    mistakes.push_back({"eval.every", "is " + std::to_string(c.eval.every) + ", but " + held_out +
                                          " is empty; expected " + held_out +
                                          " or eval.sets to name the held-out documents, or "
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

// A reward model's values come from a trunk whose weights are all trained.
void check_reward_model(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.algorithm.task == Task::kRewardModel && c.lora.rank > 0) {
    mistakes.push_back({"lora.rank", "is " + std::to_string(c.lora.rank) +
                                         ", but a reward model is saved with its value head, which "
                                         "adapters do not have; expected 0"});
  }
}

void check_reinforcement_learning(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.eval.every > 0 && eval_sets(c).empty()) {
    mistakes.push_back({"eval.every", "is " + std::to_string(c.eval.every) +
                                          ", but data.eval is empty; expected data.eval or "
                                          "eval.sets to name the held-out prompts, or "
                                          "eval.every 0"});
  }
}

}  // namespace

void add_training_sections(FieldList& fields, OptimizerConfig& optimizer, LoraConfig& lora,
                           TrainConfig& train) {
  add_optimizer(fields, optimizer);
  add_lora(fields, lora);
  add_train(fields, train);
  for (const char* key : {"optimizer.offload", "train.steps", "train.epochs", "train.threads",
                          "train.tokens_per_micro_batch"}) {
    fields.may_change_on_resume(key);
  }
  fields.often_set("optimizer",
                   {"learning_rate", "lr_schedule", "warmup_steps", "beta2", "max_grad_norm"});
  fields.often_set("lora", {"rank", "alpha", "base", "publish"});
  fields.often_set("train", {"steps", "epochs", "tokens_per_micro_batch", "batch_size", "threads"});
}

void check_training_sections(const Config& c, std::vector<Mistake>& mistakes) {
  check_lora(c, mistakes);
  check_reward_model(c, mistakes);
  if (samples_completions(c)) {
    check_reinforcement_learning(c, mistakes);
  } else {
    check_documents(c, mistakes);
  }
}

}  // namespace ringside::rl
