// Guards keys that nothing reads: each is refused, with what would read it. A setting that is
// accepted and has no effect trains something else than its recipe says.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "rl/config/load.h"
#include "rl/config/schema.h"
#include "rl/config/unread_keys.h"
#include "tests/rl/config_text.h"

namespace ringside::rl {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a key that nothing reads is refused, with what it says and what would read it") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  const std::string sft = "algorithm.task=sft", teacher = "algorithm.distillation.teacher=x";
  const std::string eval = "data.eval=x.jsonl";
  // The words of a command line, the key that is refused, and why.
  const std::vector<std::tuple<std::vector<std::string>, const char*, const char*>> cases = {
      {{"train.batch_size=64"},
       "train.batch_size: is 64",
       "only algorithm.task sft, dpo and reward_model read it"},
      {{"data.sft=x.jsonl"}, "data.sft: is ", "or algorithm.task sft"},
      {{"algorithm.entropy_step=0.1"}, "entropy_step: is 0.1", "entropy_target is 0"},
      {{"algorithm.sapo.tau_positive=2"}, "sapo.tau_positive: is 2.0", "or loss sapo"},
      {{"algorithm.critic.learning_rate=0.1"}, "critic.learning_rate", "has no critic"},
      {{"rollout.reward_options.http_url=http://x"}, "http_url", "or http in rollout.reward"},
      {{"rollout.reward_options.judge_model=x"}, "judge_model", "or judge in rollout.reward"},
      {{sft, "data.answer_after=x"}, "data.answer_after", "only algorithm.task rl reads it"},
      {{"rollout.server_options.url=http://x"}, "server_options.url", "rollout.server is embedded"},
      {{"algorithm.correction.high=3"}, "correction.high: is 3.0", "correction.mode is none"},
      {{"algorithm.correction.normalize=true", "algorithm.correction.mode=mask"},
       "correction.normalize: is true",
       "or mode tis or icepop"},
      {{"algorithm.correction.drop_rejected=true", "algorithm.correction.mode=tis"},
       "correction.drop_rejected: is true",
       "nothing is rejected"},
      {{"algorithm.advantage.gpg_scale=true", "algorithm.advantage.estimator=reinforce"},
       "gpg_scale: is true",
       "does not compare"},
      {{"algorithm.resampling.method=max_min", "algorithm.resampling.power=3"},
       "resampling.power: is 3.0",
       "or method pow"},
      {{"algorithm.critic.num_iterations=2"}, "critic.num_iterations: is 2", "has no critic"},
      {{"data.curriculum.easy_share=0.3"}, "easy_share: is 0.3", "there are no pools"},
      {{sft, "data.curriculum.mode=pools"},
       "curriculum.mode: is pools",
       "only algorithm.task rl reads it"},
      {{sft, "train.shuffle_mini_batches=true"},
       "shuffle_mini_batches",
       "only algorithm.task rl reads it"},
      {{"optimizer.min_lr_ratio=0.1"}, "min_lr_ratio: is 0.1", "lr_schedule constant"},
      {{"optimizer.muon.momentum=0.9"}, "muon.momentum: is 0.9", "or optimizer.kind muon"},
      {{"optimizer.kind=muon", "lora.rank=4"}, "optimizer.kind: is muon", "lora.rank 4"},
      {{"algorithm.dynamic_sampling=drop", "algorithm.dynamic_sampling_rounds=5"},
       "dynamic_sampling_rounds: is 5",
       "or dynamic_sampling refill"},
      {{"algorithm.kl_in=reward"}, "kl_in: is reward", "algorithm.kl_coef is 0"},
      {{"algorithm.clip_high=0.3", "algorithm.loss=reinforce"},
       "clip_high: is 0.3",
       "clip nothing"},
      {{"rollout.reward=length", "rollout.reward_separator=="}, "reward_separator", "exact_match"},
      {{"data.eval=x.jsonl"}, "data.eval: is ", "eval.every is not set"},
      {{"eval.before_training=false"}, "before_training: is false", "eval.every is 0"},
      {{"eval.timeout_s=5", eval, "eval.every=1"}, "eval.timeout_s: is 5.0", "or eval.by workers"},
      {{"parallel.reduce_dtype=bfloat16"}, "reduce_dtype", "every rank holds the whole model"},
      {{"parallel.reduce_dtype=bfloat16", "parallel.data_parallel_replicate_size=2"},
       "reduce_dtype",
       "every rank holds the whole model"},
      {{"parallel.zero_stage=1", "parallel.ulysses_parallel_size=2",
        "parallel.cp_fsdp_mode=ring_only"},
       "zero_stage: is 1",
       "every rank holds the whole model"},
      {{sft, "algorithm.kl_coef=0.1"},
       "algorithm.kl_coef: is 0.1",
       "only algorithm.task rl reads it"},
      {{sft, "algorithm.advantage.estimator=gae"},
       "advantage.estimator: is gae",
       "or algorithm.task rl"},
      {{sft, "data.train=x.jsonl"}, "data.train: is ", "learn from data.sft"},
      {{"model.reference_path=x"}, "model.reference_path: is ", "kl_coef is 0"},
      {{"algorithm.distillation.coef=2"}, "distillation.coef: is 2.0", "nothing is distilled"},
      {{"algorithm.distillation.over=vocabulary"}, "distillation.over: is ", "or a teacher"},
      {{teacher, "algorithm.distillation.divergence=forward_kl"},
       "distillation.divergence: is forward_kl",
       "over sampled_token"},
      {{teacher, "algorithm.distillation.over=vocabulary", "algorithm.distillation.top_k=5"},
       "distillation.top_k: is 5",
       "is not top_k"},
      {{teacher, "algorithm.distillation.over=top_k", "algorithm.distillation.mixture=0.2"},
       "distillation.mixture: is 0.2",
       "jensen_shannon"},
      {{sft, "model.reference_path=x"}, "model.reference_path: is ", "rl and dpo"},
      {{"data.preferences=x.jsonl"}, "data.preferences: is ", "dpo and reward_model"},
      {{sft, "algorithm.preference.beta=0.2"}, "preference.beta: is 0.2", "algorithm.task dpo"},
      {{"algorithm.task=reward_model", "algorithm.preference.sft_coef=0.2"},
       "preference.sft_coef: is 0.2",
       "only algorithm.task dpo"},
      {{"algorithm.task=dpo", "algorithm.preference.center_coef=0.2"},
       "preference.center_coef: is 0.2",
       "only algorithm.task reward_model"},
      {{"algorithm.task=dpo", "algorithm.preference.loss=ipo",
        "algorithm.preference.label_smoothing=0.1"},
       "label_smoothing: is 0.1",
       "smooth no labels"},
      {{"algorithm.task=reward_model", "algorithm.reference_update_every=2"},
       "reference_update_every: is 2",
       "rl and dpo have a reference"},
      {{"algorithm.task=dpo", "algorithm.kl_coef=0.1"}, "kl_coef: is 0.1", "data.preferences"},
      {{"weights.keep=3"}, "weights.keep: is 3", "weights.directory is empty"},
  };
  for (const auto& [words, key, why] : cases) {
    CHECK_THAT(error(words), Contains(key) && Contains(why) && Contains("; expected "));
  }
  // What makes the key read.
  CHECK(error({"algorithm.task=dpo", "model.reference_path=x", "algorithm.preference.beta=0.2",
               "algorithm.reference_update_every=5", "train.batch_size=64", "train.epochs=2"}) ==
        "");
  CHECK(error({"algorithm.task=reward_model", "algorithm.preference.center_coef=0.2"}) == "");
  CHECK(error({"parallel.reduce_dtype=bfloat16", "parallel.data_parallel_shard_size=2"}) == "");
  CHECK(error({"parallel.zero_stage=1", "parallel.ringattn_parallel_size=2",
               "parallel.cp_fsdp_mode=ring_only"}) == "");
  CHECK(error({eval, "eval.every=0"}) == "");
  CHECK(error({"rollout.server=vllm", "rollout.server_options.url=http://x"}) == "");
  CHECK(error({"algorithm.kl_coef=0.1", "algorithm.kl_in=reward"}) == "");
}

TEST_CASE("a key of a preset or below a later switch is not refused as unread") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  // verl's dual clip belongs to ppo_clip.
  CHECK(error({"algorithm.preset=verl", "algorithm.loss=cispo"}) == "");
  CHECK(error({"algorithm.preset=rloo", "algorithm.kl_coef=0"}) == "");
  const std::string recipe =
      "eval: {every: 5, temperature: 0.7}\ndata: {eval: x.jsonl}\n"
      "lora: {rank: 4, alpha: 8}\n";
  CHECK(joined(load_text(recipe, {"eval.every=0", "lora.rank=0"}).errors) == "");
  CHECK_THAT(joined(load_text(recipe, {"lora.rank=0", "lora.alpha=9"}).errors),
             Contains("lora.alpha: is 9.0, but lora.rank is 0"));
  CHECK_THAT(joined(load_text("lora: {alpha: 8}\n").errors), Contains("lora.alpha: is 8.0"));
  // One recipe for the warm start and for what follows.
  const std::string both = "data: {train: x.jsonl, sft: y.jsonl}\nrollout: {group_size: 4}\n";
  CHECK_THAT(joined(load_text(both).errors), Contains("data.sft"));
  CHECK(joined(load_text(both, {"algorithm.task=sft"}).errors) == "");
  // Commands that sample from a model read other keys.
  CHECK(load_config({}, {"eval.temperature=0.7"}, ConfigUse::kSampleModel).ok());
  CHECK_FALSE(load_config({}, {"eval.temperature=0.7"}).ok());
}

TEST_CASE("every rule about unread keys names keys that exist") {
  const auto& keys = known_keys();
  for (const UnreadRule& rule : unread_rules()) {
    INFO(rule.key);
    CHECK(std::any_of(keys.begin(), keys.end(),
                      [&](const std::string& key) { return key.starts_with(rule.key); }));
    CHECK(std::count(keys.begin(), keys.end(), rule.switch_key) == 1);
    CHECK(rule.reason.find("; or ") != std::string_view::npos);
  }
}

}  // namespace
}  // namespace ringside::rl
