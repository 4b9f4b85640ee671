// Guards what a user reads after a slip: the nearest key, the neighbours' words, and that every
// suggestion names a key that exists. Also the derived batch arithmetic, the field's most recorded
// confusion.
#include <algorithm>
#include <catch2/catch.hpp>

#include "rl/config/batch_arithmetic.h"
#include "rl/config/load.h"
#include "rl/config/other_systems.h"
#include "rl/config/recipe_schema.h"
#include "rl/config/renamed.h"
#include "rl/config/schema.h"
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
  CHECK(translate("beta") == "algorithm.kl_coef (that of DPO: algorithm.preference.beta)");
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
  CHECK(suggestion("lora_r") == "unknown key; \"lora_r\" of other systems is lora.rank");
  CHECK_THAT(suggestion("optimizer.bta1"), Contains("did you mean optimizer.beta1?"));
  CHECK_THAT(suggestion("zzz"), Contains("ringside check --defaults"));
}

TEST_CASE("keys whose nearest neighbour means another thing are led to the right one") {
  CHECK_THAT(suggestion("data.path"), Contains("data.train") && !Contains("model.path"));
  CHECK_THAT(suggestion("eval.steps"), Contains("eval.every") && !Contains("train.steps"));
}

TEST_CASE("every translation begins with a key of ours or an option") {
  const auto& keys = known_keys();
  for (const Translation& entry : translations()) {
    const std::string ours(entry.ours.substr(0, entry.ours.find_first_of(" :,")));
    INFO(entry.theirs << " is " << entry.ours);
    const bool option = entry.ours.starts_with("the option --");
    CHECK((option || std::find(keys.begin(), keys.end(), ours) != keys.end()));
    CHECK(translate(entry.theirs) == entry.ours);  // no other entry hides it
    // A name that is a key here would never be asked for.
    CHECK(std::find(keys.begin(), keys.end(), entry.theirs) == keys.end());
  }
  for (const Absent& feature : absent_features()) {
    INFO(feature.word);
    CHECK(absent_feature(feature.word) == feature.sentence);
  }
}

TEST_CASE("names of TRL, verl, axolotl, OpenRLHF and torchtitan lead to what they are here") {
  const std::vector<std::pair<const char*, const char*>> names = {
      {"lora_r", "lora.rank"},
      {"lora_alpha", "lora.alpha"},
      {"peft_config.r", "lora.rank"},
      {"report_to", "ringside-follow"},
      {"num_train_epochs", "train.epochs"},
      {"fsdp", "parallel.data_parallel_shard_size"},
      {"fsdp_config.param_offload", "model.offload_parameters"},
      {"tensor_model_parallel_size", "parallel.tensor_parallel_size"},
      {"parallelism.tensor_parallel_degree", "parallel.tensor_parallel_size"},
      {"tp_size", "parallel.tensor_parallel_size"},
      {"actor_rollout_ref.rollout.tensor_model_parallel_size", "to the server itself"},
      {"vllm_tensor_parallel_size", "to the server itself"},
      {"trainer.n_gpus_per_node", "--nproc, torchrun, Slurm"},
      {"trainer.total_epochs", "train.epochs"},
      {"data.filter_overlong_prompts", "data.on_overlong: drop"},
      {"sample_packing", "always packed"},
      {"min_p", "rollout.temperature"},
      {"push_to_hub", "nothing is uploaded"},
      {"resume_from_checkpoint", "the same --run-dir resumes"},
      {"remote_rm_url", "rollout.reward_options.http_url"},
      {"parallelism.data_parallel_shard_degree", "parallel.data_parallel_shard_size"},
      {"parallelism.pipeline_parallel_degree", "parallel.pipeline_parallel_size"},
      {"activation_checkpoint.mode", "model.recompute"},
      {"use_vllm", "rollout.server: vllm"},
      {"lora_dropout", "not supported"},
  };
  for (const auto& [theirs, expected] : names) {
    INFO(theirs);
    CHECK_THAT(suggestion(theirs), Contains(expected) && !Contains("did you mean"));
  }
}

TEST_CASE("names of sequence parallelism and of verl's corrections lead to what they are here") {
  const std::vector<std::pair<const char*, const char*>> names = {
      {"sp.enable", "parallel.context_parallel_size"},
      {"sp.impl", "sp.method"},
      {"sp.size", "parallel.context_parallel_size"},
      {"sp_size", "parallel.ulysses_parallel_size"},
      {"sp_backend", "sp.method"},
      {"sp_seq_length", "nothing is padded"},
      {"sp_seq_length_is_variable", "nothing is padded"},
      {"dp_shard_size", "parallel.data_parallel_shard_size"},
      {"dp_replicate_size", "parallel.data_parallel_replicate_size"},
      {"parallelism_config_dp_shard_size", "parallel.data_parallel_shard_size"},
      {"parallelism_config_sp_backend", "sp.method"},
      {"parallelism_config_sp_seq_length_is_variable", "nothing is padded"},
      {"accelerator.ulysses_size", "parallel.ulysses_parallel_size"},
      {"accelerator.enable_async", "sp.async_ulysses"},
      {"ring_attn_func", "sp.ring_impl"},
      {"pack_to_multiple", "nothing is padded"},
      {"pad_to_multiple_of", "nothing is padded"},
      {"mixed_precision", "model.dtype"},
      {"disable_in_eval", "in evaluations too"},
      {"tf32", "model.dtype: bfloat16"},
      {"compute_environment", "--nproc, torchrun, Slurm"},
      {"distributed_type", "--nproc, torchrun, Slurm"},
      {"data.train_path", "data.train"},
      {"zero_optimization.offload_optimizer.device", "optimizer.offload"},
      {"zero_optimization.offload_param.device", "model.offload_parameters"},
      {"model.model_path", "model.path"},
      {"fsdp_config.reshard_after_forward", "parallel.zero_stage"},
      {"pipeline_model_parallel_size", "parallel.pipeline_parallel_size"},
      {"parallelism.pipeline_parallel_degree", "parallel.pipeline_parallel_size"},
      {"pp_size", "parallel.pipeline_parallel_size"},
      {"parallelism.pipeline_parallel_schedule", "parallel.pipeline_schedule"},
      {"virtual_pipeline_model_parallel_size", "parallel.stages_per_rank"},
      {"policy_loss.loss_mode", "algorithm.loss"},
      {"actor.loss_scale_factor", "algorithm.loss_divisor"},
      {"algorithm.kl_penalty", "algorithm.kl_estimator"},
      {"algorithm.kl_ctrl.type", "algorithm.kl_target"},
      {"algorithm.kl_ctrl.horizon", "algorithm.kl_horizon"},
      {"algorithm.kl_ctrl.target_kl", "algorithm.kl_target"},
      {"policy_loss.tau_pos", "algorithm.sapo.tau_positive"},
      {"policy_loss.tau_neg", "algorithm.sapo.tau_negative"},
      {"rollout_correction.rollout_rs", "algorithm.correction.reject: [{by: token_k1"},
      {"rollout_correction.rollout_rs_threshold", "algorithm.correction.reject: low and high"},
      {"algorithm.pf_ppo.reweight_method", "algorithm.resampling.method"},
      {"critic.ppo_epochs", "algorithm.critic.num_iterations"},
      {"orchestrator.buffer.easy_threshold", "data.curriculum.easy_above"},
      {"rollout_correction.bypass_mode", "algorithm.old_logprobs: rollout"},
      {"algorithm.gdpo_reward_weights", "rollout.reward"},
      {"algorithm.filter_groups.metric", "algorithm.dynamic_sampling_by"},
      {"actor_rollout_ref.actor.shuffle", "train.shuffle_mini_batches"},
  };
  for (const auto& [theirs, expected] : names) {
    INFO(theirs);
    CHECK_THAT(suggestion(theirs), Contains(expected) && !Contains("did you mean"));
  }
}

TEST_CASE("an earlier name of a key leads to its new name") {
  CHECK(suggestion("algorithm.name") == "unknown key; it is now algorithm.task (rl or sft)");
  CHECK(suggestion("sp.reproducible") == "unknown key; it is now sp.virtual_ranks");
  const auto& keys = known_keys();
  for (const RenamedKey& key : renamed_keys()) {
    INFO(key.before);
    CHECK(std::count(keys.begin(), keys.end(), key.before) == 0);
    CHECK(std::count(keys.begin(), keys.end(), key.now.substr(0, key.now.find(' '))) == 1);
  }
}

TEST_CASE("a value of another system or an earlier version leads to ours") {
  const auto error = [](const std::string& word) { return load_config({}, {word}).errors.at(0); };
  CHECK_THAT(error("algorithm.task=grpo"),
             Contains("did you mean rl (and algorithm.preset: grpo)?"));
  CHECK_THAT(error("algorithm.advantage.estimator=grpo"), Contains("did you mean group_mean?"));
  CHECK_THAT(error("model.dtype=BF16"), Contains("did you mean bfloat16?"));
  CHECK_THAT(error("algorithm.loss_aggregation=token-mean"), Contains("did you mean token_mean?"));
  CHECK_THAT(error("optimizer.lr_schedule=cosin"), Contains("did you mean cosine?"));
  CHECK_THAT(error("optimizer.lr_schedule=polynomial"), !Contains("did you mean"));
  for (const RenamedValue& value : renamed_values()) {
    INFO(value.key << "=" << value.theirs);
    const std::string ours(value.ours.substr(0, value.ours.find(' ')));
    CHECK_FALSE(load_config({}, {std::string(value.key) + "=" + std::string(value.theirs)}).ok());
    const auto errors = load_config({}, {std::string(value.key) + "=" + ours}).errors;
    for (const std::string& text : errors) {
      CHECK_THAT(text, !Contains("expected one of"));
    }
  }
}

TEST_CASE("features that do not exist are said not to exist, with what there is instead") {
  for (const char* key : {"model.lora.bias", "peft_config.bias", "lora_init"}) {
    INFO(key);
    CHECK_THAT(suggestion(key), Contains("lora.rank") && Contains("lora.target_modules"));
  }
  CHECK_THAT(suggestion("model.load_in_4bit"), Contains("lora.base"));
  CHECK_THAT(suggestion("tensor_parallel_size"),
             Contains("did you mean parallel.tensor_parallel_size?"));
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

TEST_CASE("every key has a sentence, which is its description in the schema") {
  const std::string schema = recipe_schema();
  Config config;
  for (const Field& field : fields_of(config)) {
    INFO(field.key);
    CHECK_FALSE(field.sentence.empty());
    if (field.key == "model.init") {
      CHECK_THAT(schema, Contains(field.sentence));
    }
  }
  CHECK_THAT(schema, Contains(section_sentences().at("rollout.server_options")));
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
        "a step: 10 prompts x 4 completions = 40 rollouts, at most 40960 tokens");
  config.rollout.straggler_timeout_s = 90;
  CHECK_THAT(
      describe_batch(config)[0],
      Contains("40960 tokens; it goes on without completions that take longer than 90.0 s, of "
               "prompts with 2 or more"));
  // 14 rollouts of 1024 tokens are more than one micro-batch of 16384 holds, but not on 3 ranks.
  CHECK(describe_batch(config)[3] ==
        "a micro-batch: 16384 tokens, 4096 tokens a rank; a mini-batch of the longest rollouts "
        "fills 1 micro-batch on each of 3 data-parallel ranks");
  config.rollout.max_completion_tokens = 7680;
  CHECK_THAT(describe_batch(config)[3], Contains("fills 3 micro-batches on each of 3"));
  CHECK(describe_batch(config).back() == "ranks: 3 replicas x ring 2 x ulysses 2 = 12 ranks");
  config.parallel.ringattn_parallel_size = config.parallel.ulysses_parallel_size = 1;
  config.parallel.context_parallel_size = 8;
  CHECK(describe_batch(config).back() == "ranks: 3 replicas x 8 context parallel = 24 ranks");

  config.algorithm.task = Task::kSft;
  CHECK(batch_arithmetic(config).samples_per_step == 32);
  CHECK(batch_arithmetic(config).optimizer_steps_per_step == 3);
  CHECK(describe_batch(config)[0] == "a step: 32 documents");
}

}  // namespace
}  // namespace ringside::rl
