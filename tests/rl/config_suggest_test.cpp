// Guards what a user reads after a slip: the nearest key, the neighbours' words, and that every
// suggestion names a key that exists. Also the derived batch arithmetic, the field's most recorded
// confusion.
#include <catch2/catch.hpp>

#include "rl/config/batch_arithmetic.h"
#include "rl/config/suggest.h"
#include "rl/rewards/edit_distance.h"

namespace ringside::rl {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("edit distance") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("seed", "seed") == 0);
}

TEST_CASE("the nearest key is found in its own section, in another, and not at any price") {
  CHECK(nearest_key("rollout.grup_size") == "rollout.group_size");
  CHECK(nearest_key("train.learning_rate") == "optimizer.learning_rate");
  CHECK(nearest_key("learning_rate") == "optimizer.learning_rate");
  CHECK(nearest_key("sed") == "seed");
  CHECK(nearest_key("trian.steps") == "train.steps");
  CHECK(nearest_key("tensor_parallel.enabled") == "");
}

TEST_CASE("words of neighbouring systems are translated") {
  CHECK(translate("num_generations") == "rollout.group_size");
  CHECK(translate("trl.num_generations") == "rollout.group_size");
  CHECK(translate("actor_rollout_ref.rollout.n") == "rollout.group_size");
  CHECK(translate("beta") == "algorithm.kl_coef");
  CHECK(translate("algorithm.epsilon") == "algorithm.clip_low and algorithm.clip_high");
  CHECK(translate("epsilon_high") == "algorithm.clip_high");
  CHECK(translate("actor.optim.lr") == "optimizer.learning_rate");
  CHECK(translate("enable_gradient_checkpointing") == "model.recompute");
  // Only whole words: "lr" must not match inside another one.
  CHECK(translate("xlr") == "");
  CHECK(translate("my_beta") == "");
}

TEST_CASE("a suggestion is one sentence a user can act on") {
  CHECK_THAT(suggestion("optimizer.lr"),
             Contains("\"lr\" of other systems is optimizer.learning_rate"));
  CHECK_THAT(suggestion("gradient_accumulation_steps"),
             Contains("derived here from train.tokens_per_micro_batch"));
  CHECK_THAT(suggestion("optimizer.bta1"), Contains("did you mean optimizer.beta1?"));
  CHECK_THAT(suggestion("zzz"), Contains("ringside check --defaults"));
}

TEST_CASE("keys whose nearest neighbour means another thing are led to the right one") {
  CHECK_THAT(suggestion("data.path"), Contains("data.train") && !Contains("model.path"));
  CHECK_THAT(suggestion("eval.steps"), Contains("eval.every") && !Contains("train.steps"));
}

TEST_CASE("features that do not exist are said not to exist, with what there is instead") {
  for (const char* key : {"lora_r", "model.lora_r", "model.lora.rank", "peft_config.r"}) {
    INFO(key);
    CHECK_THAT(suggestion(key), Contains("lora.rank") && Contains("lora.target_modules"));
  }
  CHECK_THAT(suggestion("model.load_in_4bit"), Contains("lora.base"));
  CHECK_THAT(suggestion("parallel.tensor_parallel_size"),
             Contains("tensor parallelism does not exist") && !Contains("did you mean"));
  CHECK_THAT(suggestion("parallel.fsdp"), Contains("parallel.data_parallel_shard_size"));
  CHECK_THAT(suggestion("log.wandb"), Contains("metrics.jsonl"));
  CHECK_THAT(suggestion("wandb.project"), Contains("metrics.jsonl"));
  CHECK_THAT(suggestion("vllm_gpu_memory_utilization"), Contains("to the server itself"));
  CHECK_THAT(suggestion("rollout.gpu_memory_utilization"), Contains("to the server itself"));
  CHECK_THAT(suggestion("model.attn_implementation"), Contains("one attention implementation"));
  CHECK_THAT(suggestion("trainer.total_epochs"),
             Contains("train.epochs") && Contains("train.steps"));
  CHECK_THAT(suggestion("sp.allgather_logits"), Contains("never gathered"));
  // Only whole words: an exploration bonus is no LoRA.
  CHECK(absent_feature("algorithm.exploration") == "");
}

TEST_CASE("batch arithmetic counts prompts, samples and optimizer steps over all ranks") {
  Config config;
  config.rollout.prompts_per_step = 10;
  config.rollout.group_size = 4;
  config.train.num_mini_batches = 3;
  config.algorithm.num_iterations = 2;
  config.train.steps = 7;
  config.parallel.ringattn_parallel_size = 2;
  config.parallel.ulysses_parallel_size = 2;
  config.parallel.data_parallel_replicate_size = 3;
  const BatchArithmetic batch = batch_arithmetic(config);
  CHECK(batch.samples_per_step == 40);
  CHECK(batch.samples_per_mini_batch == 14);
  CHECK(batch.optimizer_steps_per_step == 6);
  CHECK(batch.optimizer_steps == 42);
  CHECK(batch.samples == 280);
  CHECK(batch.max_tokens_per_sample == 1024);
  CHECK(batch.max_tokens_per_step == 40960);
  CHECK(batch.sequence_parallel_size == 4);
  CHECK(batch.world_size == 12);
  CHECK(describe_batch(config)[0] ==
        "a step: 10 prompts x 4 completions = 40 samples, at most 40960 tokens");
  CHECK(describe_batch(config).back() == "ranks: 3 replicas x ring 2 x ulysses 2 = 12 ranks");
  config.parallel.ringattn_parallel_size = config.parallel.ulysses_parallel_size = 1;
  config.parallel.context_parallel_size = 8;
  CHECK(describe_batch(config).back() == "ranks: 3 replicas x 8 context parallel = 24 ranks");

  config.algorithm.name = AlgorithmName::kSft;
  CHECK(batch_arithmetic(config).samples_per_step == 32);
  CHECK(batch_arithmetic(config).optimizer_steps_per_step == 3);
  CHECK(describe_batch(config)[0] == "a step: 32 documents");
}

}  // namespace
}  // namespace ringside::rl
