// Guards keys that contradict each other: each is refused at the key to change.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "rl/config/load.h"
#include "tests/rl/config_text.h"

namespace ringside::rl {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("contradictions between keys are errors at the key to change") {
  CHECK_THAT(joined(load_text("algorithm:\n  loss_divisor: 512\n").errors),
             Contains("recipe.yaml:2:3: algorithm.loss_divisor: is 512.0, but"));
  CHECK_THAT(
      joined(load_config({}, {"rollout.group_size=1"}).errors),
      Contains(
          "command line: rollout.group_size: is 1, but algorithm.advantage.estimator group_mean"));
  CHECK_FALSE(load_config({}, {"rollout.group_size=1", "algorithm.task=sft"}).ok());
  CHECK_FALSE(load_config({}, {"train.num_mini_batches=65"}).ok());
  CHECK(load_config({}, {"train.num_mini_batches=64"}).ok());
  CHECK_FALSE(load_config({}, {"algorithm.task=sft", "algorithm.preset=trl"}).ok());
  CHECK_FALSE(load_config({}, {"eval.every=5"}).ok());
  CHECK(load_config({}, {"eval.every=5", "data.eval=x.jsonl"}).ok());
  CHECK_FALSE(load_config({}, {"bridge.heartbeat_s=20"}).ok());
}

TEST_CASE("steps go on without stragglers only where some could be left out") {
  const auto error = [](std::vector<std::string> words) {
    words.emplace_back("rollout.straggler_timeout_s=60");
    return joined(load_config({}, words).errors);
  };
  CHECK(error({"rollout.min_group_size=7"}).empty());
  CHECK_THAT(error({"rollout.min_group_size=8"}),
             Contains("rollout.min_group_size: is 8, but a group has rollout.group_size = 8"));
  CHECK_THAT(error({"rollout.group_size=2"}), Contains("none could be left out"));
  CHECK_THAT(error({"rollout.min_group_size=1"}), Contains("expected at least 2"));
  CHECK_THAT(error({"algorithm.advantage.estimator=remax"}),
             Contains("rollout.straggler_timeout_s: is 60.0, but") && Contains("greedy"));
  CHECK_THAT(error({"algorithm.task=sft"}), Contains("only algorithm.task rl reads it"));
  CHECK_THAT(joined(load_config({}, {"rollout.min_group_size=3"}).errors),
             Contains("straggler_timeout_s above 0"));
}

TEST_CASE("keys of one policy loss are refused under another") {
  CHECK_FALSE(load_config({}, {"algorithm.loss=cispo", "algorithm.ppo_clip.dual_clip=3"}).ok());
  CHECK_FALSE(load_config({}, {"algorithm.loss=sapo", "algorithm.ppo_clip.delta=4"}).ok());
  CHECK_FALSE(load_config({}, {"algorithm.ppo_clip.dual_clip=0.5"}).ok());
  CHECK(load_config({}, {"algorithm.ppo_clip.dual_clip=3"}).ok());
}

TEST_CASE("parts of an algorithm that do not go together are refused") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  CHECK(load_config({}, {"algorithm.advantage.estimator=gae", "rollout.group_size=1"}).ok());
  CHECK(load_config({}, {"algorithm.advantage.estimator=given", "rollout.group_size=1"}).ok());
  for (const char* word :
       {"algorithm.reward.scale=2", "algorithm.reward.clip=1",
        "algorithm.reward.overlong_buffer_tokens=8", "algorithm.dynamic_sampling=drop"}) {
    CHECK_THAT(error({"algorithm.advantage.estimator=given", word}), Contains("estimator given"));
  }
  CHECK_THAT(error({"algorithm.advantage.estimator=given", "algorithm.kl_in=reward",
                    "algorithm.kl_coef=0.1"}),
             Contains("algorithm.kl_in: is reward"));
  CHECK_THAT(error({"algorithm.advantage.estimator=gae", "algorithm.dynamic_sampling=drop"}),
             Contains("which looks at groups"));
  CHECK_THAT(error({"algorithm.advantage.estimator=pass_at_k", "algorithm.advantage.std=batch"}),
             Contains("estimator pass_at_k does not use it"));
  CHECK_THAT(error({"algorithm.critic.warmup_steps=5"}), Contains("has no critic"));
  CHECK_THAT(error({"algorithm.kl_target=0.1"}), Contains("kl_coef is 0"));
  CHECK_THAT(error({"algorithm.reference_update_every=5"}),
             Contains("there is no reference policy"));
  CHECK_THAT(error({"algorithm.entropy_target=0.5"}), Contains("could not move"));
  CHECK_THAT(error({"algorithm.correction.mode=tis", "algorithm.old_logprobs=rollout"}),
             Contains("nothing to correct"));
  CHECK_THAT(error({"algorithm.correction.low=3"}), Contains("above algorithm.correction.high"));
  CHECK_THAT(
      error({"algorithm.correction.mode=seq_mask_tis", "algorithm.correction.level=sequence"}),
      Contains("uses both"));
  CHECK_THAT(error({"algorithm.loss=gmpo", "algorithm.importance_level=sequence"}),
             Contains("its own form"));
  CHECK_THAT(error({"algorithm.reward.overlong_buffer_tokens=600"}),
             Contains("more than rollout.max_completion_tokens"));
  CHECK_THAT(error({"algorithm.advantage.estimator=gdpo", "algorithm.reward.clip=1"}),
             Contains("gdpo"));
  CHECK_THAT(error({"rollout.reward=exact_mach"}),
             Contains("rollout.reward") && Contains("exact_match"));
  CHECK(load_config({}, {"rollout.reward=exact_match, repetition * 0.5"}).ok());
}

TEST_CASE("passes and pools that other keys make pointless or impossible are refused") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  const std::string gae = "algorithm.advantage.estimator=gae";
  CHECK_THAT(error({"train.shuffle_mini_batches=true"}), Contains("num_mini_batches is 1"));
  CHECK(error({"train.shuffle_mini_batches=true", "train.num_mini_batches=2"}).empty());
  CHECK(error({"train.shuffle_mini_batches=true", gae, "algorithm.critic.num_mini_batches=2"})
            .empty());
  CHECK_THAT(error({"algorithm.resampling.method=pow", "algorithm.advantage.estimator=given"}),
             Contains("resampling.method: is pow") && Contains("estimator given"));
  for (const char* word :
       {"algorithm.resampling.method=max_min", "train.shuffle_mini_batches=true"}) {
    CHECK_THAT(error({word, "train.num_mini_batches=2", "algorithm.router_replay=recompute"}),
               Contains("algorithm.router_replay: is recompute"));
  }
  CHECK_THAT(error({gae, "algorithm.critic.num_mini_batches=65"}), Contains("has 64 samples"));
  CHECK_THAT(error({"algorithm.advantage.estimator=optimal_token_baseline",
                    "algorithm.old_logprobs=rollout"}),
             Contains("needs the old policy's distributions"));
  CHECK_THAT(error({"algorithm.correction.reject=[{by: token_k3, high: 1}]",
                    "algorithm.old_logprobs=rollout"}),
             Contains("correction.reject: is set"));
  CHECK_THAT(error({"algorithm.correction.reject=[{by: token_k9, high: 1}]"}),
             Contains("algorithm.correction.reject") && Contains("token_k9"));
  const std::string pools = "data.curriculum.mode=pools";
  CHECK(error({pools}).empty());
  CHECK_THAT(error({pools, "data.curriculum.hard_below=0.9"}), Contains("expected less than that"));
  CHECK_THAT(error({pools, "data.curriculum.hard_share=0.95"}), Contains("together above 1"));
  CHECK_THAT(error({pools, "algorithm.dynamic_sampling=refill"}),
             Contains("chooses the prompts of a step too"));
}

TEST_CASE("log-probs over kept sets need a sampler that records them") {
  const auto error = [](std::vector<std::string> words) {
    words.insert(words.begin(), "algorithm.logprobs_over=kept");
    return joined(load_config({}, words).errors);
  };
  const std::string top_p = "rollout.top_p=0.9";
  CHECK(error({top_p}).empty());
  CHECK(error({"rollout.top_k=50", "algorithm.kl_coef=0.1"}).empty());
  CHECK_THAT(error({}), Contains("nothing is left out"));
  for (const char* server : {"vllm", "sglang", "llama_cpp", "python"}) {
    CHECK_THAT(error({top_p, std::string("rollout.server=") + server}),
               Contains(std::string("rollout.server ") + server +
                        " does not say which tokens top_p and top_k left"));
  }
  CHECK_THAT(error({top_p, "rollout.harness=external", "rollout.reward=worker"}),
             Contains("samples of rollout.harness do not say"));
  for (const char* where : {"reward", "advantage"}) {
    CHECK_THAT(error({top_p, "algorithm.kl_coef=0.1", std::string("algorithm.kl_in=") + where}),
               Contains("algorithm.kl_in: is ") && Contains("expected loss, or kl_to rollout"));
  }
  CHECK(error({top_p, "algorithm.kl_coef=0.1", "algorithm.kl_in=reward", "algorithm.kl_to=rollout"})
            .empty());
  CHECK_THAT(error({top_p, "algorithm.distillation.teacher=x"}),
             Contains("algorithm.distillation.teacher: is set"));
}

TEST_CASE("a correction by the current policy has no old policy beside it") {
  const auto error = [](std::vector<std::string> words) {
    words.insert(words.begin(), "algorithm.correction.ratio_of=current");
    return joined(load_config({}, words).errors);
  };
  const std::string bypass = "algorithm.old_logprobs=rollout",
                    tis = "algorithm.correction.mode=tis";
  const std::string reject = "algorithm.correction.reject=[{by: seq_max_k3, high: 1}]";
  CHECK(error({bypass, tis, "algorithm.loss=reinforce"}).empty());
  CHECK(error({bypass, reject}).empty());
  CHECK(error({bypass, "algorithm.correction.mode=mask"}).empty());
  CHECK_THAT(error({bypass, tis}), Contains("it would count twice"));
  CHECK_THAT(error({reject}), Contains("algorithm.old_logprobs: is recompute"));
  CHECK_THAT(error({bypass, reject, "algorithm.correction.drop_rejected=true"}),
             Contains("correction.drop_rejected: is true"));
  CHECK_THAT(
      error({bypass, tis, "algorithm.loss=reinforce", "algorithm.correction.normalize=true"}),
      Contains("correction.normalize: is true"));
  CHECK_THAT(error({bypass}), Contains("nothing is corrected"));
}

TEST_CASE("groups are compared by rewards that there are, and remax compares none") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  const std::string drop = "algorithm.dynamic_sampling=drop";
  const std::string rewards = "rollout.reward=exact_match, length * 0.1";
  CHECK(error({drop, rewards, "algorithm.dynamic_sampling_by=exact_match"}).empty());
  CHECK(error({drop, rewards, "algorithm.dynamic_sampling_by=shaped"}).empty());
  CHECK(error({drop, "rollout.reward=worker", "algorithm.dynamic_sampling_by=acc"}).empty());
  CHECK_THAT(error({drop, rewards, "algorithm.dynamic_sampling_by=acc"}),
             Contains("is acc, which is no reward of rollout.reward"));
  CHECK_THAT(error({"algorithm.dynamic_sampling_by=shaped"}),
             Contains("algorithm.dynamic_sampling is none"));
  const std::string remax = "algorithm.advantage.estimator=remax";
  CHECK(error({remax, "rollout.group_size=1", "algorithm.advantage.std=none"}).empty());
  CHECK_THAT(error({remax, drop}), Contains("algorithm.advantage.estimator remax has none"));
}

TEST_CASE("router replay is refused where no routes could come from") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  const std::string rollout = "algorithm.router_replay=rollout";
  const std::string recompute = "algorithm.router_replay=recompute";
  CHECK(load_config({}, {rollout}).ok());
  CHECK(load_config({}, {rollout, "algorithm.old_logprobs=rollout"}).ok());
  CHECK(load_config({}, {recompute, "train.num_mini_batches=2"}).ok());
  CHECK(load_config({}, {recompute, "algorithm.num_iterations=2"}).ok());
  CHECK_THAT(error({recompute}), Contains("algorithm.router_replay: is recompute") &&
                                     Contains("a step has one optimizer step"));
  CHECK_THAT(error({recompute, "algorithm.num_iterations=2", "algorithm.old_logprobs=rollout"}),
             Contains("has no pass of the old policy"));
  CHECK_THAT(error({rollout, "algorithm.task=sft"}),
             Contains("neither rollouts nor an old policy"));
  for (const char* server : {"llama_cpp", "python"}) {
    CHECK_THAT(error({rollout, std::string("rollout.server=") + server}),
               Contains("does not say which experts a token used"));
  }
  CHECK_THAT(error({"algorithm.router_replay=r3"}),
             Contains("none, rollout, recompute") || Contains("algorithm.router_replay"));
}

TEST_CASE("an update of routers is refused where adapters freeze them") {
  const std::vector<std::string> moving{"model.router_bias_update_rate=0.001"};
  CHECK(load_config({}, moving).ok());
  CHECK_THAT(joined(load_config({}, {moving[0], "lora.rank=4"}).errors),
             Contains("model.router_bias_update_rate") && Contains("with lora.rank 4") &&
                 Contains("expected 0"));
  CHECK(load_config({}, {"model.router_aux_loss_coef=0.001", "lora.rank=4"}).ok());
  CHECK_FALSE(load_config({}, {"model.router_aux_loss_coef=-1"}).ok());
}

TEST_CASE("a layer that predicts a further token is refused where it is not trained") {
  const std::string coef = "model.mtp_loss_coef=0.1";
  const auto error = [&](const std::string& word) {
    return joined(load_config({}, {coef, word}).errors);
  };
  CHECK(load_config({}, {coef}).ok());
  CHECK(load_config({}, {coef, "model.mtp_detach=false"}).ok());
  CHECK_THAT(error("lora.rank=4"), Contains("model.mtp_loss_coef: is 0.10, but with lora.rank 4"));
  CHECK_THAT(error("algorithm.task=dpo"), Contains("algorithm.task is dpo"));
  CHECK_THAT(error("data.image_key=picture"), Contains("data.image_key is set"));
  for (const char* key : {"pipeline", "tensor"}) {
    CHECK_THAT(error("parallel." + std::string(key) + "_parallel_size=2"),
               Contains("the embedding, the last hidden states and the head on one rank"));
  }
  CHECK_FALSE(load_config({}, {"model.mtp_loss_coef=-1"}).ok());
  CHECK_THAT(joined(load_config({}, {"model.mtp_detach=false"}).errors),
             Contains("model.mtp_detach: is false, but model.mtp_loss_coef is 0"));
}

TEST_CASE("a vision tower is not trained with adapters, and is not in a pipeline") {
  const auto error = [](std::vector<std::string> words) {
    words.push_back("data.image_key=picture");
    return joined(load_config({}, words).errors);
  };
  for (const char* vision :
       {"model.vision=frozen", "model.vision=mergers", "model.vision=trained"}) {
    CHECK(error({vision}) == "");
  }
  CHECK(error({"lora.rank=4"}) == "");
  CHECK_THAT(
      error({"lora.rank=4", "model.vision=mergers"}),
      Contains("model.vision: is mergers, but with lora.rank 4") && Contains("expected frozen"));
  CHECK_THAT(error({"parallel.pipeline_parallel_size=2"}),
             Contains("parallel.pipeline_parallel_size: is 2, but data.image_key is set"));
  CHECK_THAT(joined(load_config({}, {"model.vision=mergers"}).errors),
             Contains("model.vision: is mergers, but data.image_key is not set"));
}

TEST_CASE("servers that take no images, or weights that they cannot fetch, are refused") {
  const auto error = [](std::vector<std::string> words) {
    words.push_back("data.image_key=picture");
    words.push_back("rollout.server_options.url=http://h:1");
    return joined(load_config({}, words).errors);
  };
  for (const char* server : {"sglang", "llama_cpp", "python"}) {
    CHECK_THAT(
        error({std::string("rollout.server=") + server}),
        Contains(std::string("rollout.server: is ") + server + ", but data.image_key is set") &&
            Contains("expected embedded or vllm"));
  }
  const std::string vllm = "rollout.server=vllm";
  for (const char* weights : {"auto", "disk"}) {
    CHECK(error({vllm, std::string("rollout.server_options.weights=") + weights}) == "");
  }
  for (const char* weights : {"pull", "engine"}) {
    const std::string key = std::string("rollout.server_options.weights=") + weights;
    CHECK_THAT(error({vllm, key}),
               Contains(std::string("rollout.server_options.weights: is ") + weights) &&
                   Contains("with model.vision frozen"));
    CHECK_THAT(error({vllm, key, "model.vision=mergers"}), Contains("model.vision mergers"));
    CHECK(error({vllm, key, "model.vision=trained"}) == "");
  }
  const std::string recipe =
      "data: {image_key: picture}\nrollout: {server: sglang, server_options: {url: http://h:1}}\n";
  CHECK(joined(load_text(recipe, {"algorithm.task=sft"}).errors) == "");
}

TEST_CASE("half a set of the bridge's keys is refused") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  CHECK_THAT(error({"bridge.curve.trainer_secret=t.key"}), Contains("expected both or neither"));
  CHECK_THAT(error({"bridge.curve.trainer_public=t.pub"}), Contains("expected both or neither"));
  CHECK(
      load_config({}, {"bridge.curve.trainer_secret=t.key", "bridge.curve.allowed_workers=allowed"})
          .ok());
  CHECK(load_config({}, {"bridge.curve.worker_secret=w.key", "bridge.curve.trainer_public=t.pub"})
            .ok());
  CHECK_FALSE(load_config({}, {"weights.full_every=0"}).ok());
}

TEST_CASE("a preset's settings of its own loss do not refuse another loss") {
  const auto of_verl = load_config({}, {"algorithm.preset=verl", "algorithm.loss=sapo"});
  CHECK(joined(of_verl.errors) == "");
  CHECK(
      load_config({}, {"algorithm.preset=verl", "algorithm.kl_in=reward", "algorithm.kl_coef=0.1"})
          .ok());
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  CHECK_THAT(
      error({"algorithm.preset=verl", "algorithm.loss=sapo", "algorithm.ppo_clip.dual_clip=4"}),
      Contains("algorithm.ppo_clip.dual_clip: is 4.0"));
  CHECK_THAT(error({"algorithm.dppo.ratio_bound=3"}), Contains("expected 0.0, or loss dppo_tv"));
  CHECK_THAT(error({"algorithm.correction.token_high=2"}),
             Contains("expected 0, or mode seq_mask_tis"));
  CHECK_THAT(error({"algorithm.kl_average=samples"}), Contains("kl_in loss sums the KL"));
}

TEST_CASE("sequence parallelism's keys are refused where they contradict each other") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  CHECK_THAT(error({"parallel.context_parallel_size=4", "parallel.ulysses_parallel_size=2"}),
             Contains("is 4, but parallel.ringattn_parallel_size or"));
  CHECK_THAT(error({"sp.method=ring"}), Contains("is ring, which factors"));
  CHECK(load_config({}, {"sp.method=ring", "parallel.context_parallel_size=4"}).ok());
  CHECK_THAT(error({"parallel.expert_parallel_size=4", "parallel.ulysses_parallel_size=6"}),
             Contains("parallel.expert_parallel_size") && Contains("has 6 ranks") &&
                 Contains("expected a divisor"));
  const std::string pipeline = "parallel.pipeline_parallel_size=2";
  CHECK(load_config({}, {pipeline}).ok());
  CHECK(load_config({}, {pipeline, "parallel.tensor_parallel_size=2"}).ok());
  CHECK(load_config({}, {pipeline, "parallel.stages_per_rank=2"}).ok());
  CHECK_THAT(error({"parallel.stages_per_rank=2"}), Contains("there is no pipeline"));
  CHECK_THAT(error({pipeline, "parallel.stages_per_rank=2", "parallel.pipeline_schedule=1f1b"}),
             Contains("schedule 1f1b has one stage a rank"));
  CHECK_THAT(error({pipeline, "parallel.pipeline_schedule=interleaved"}),
             Contains("expected at least 2"));
  CHECK(load_config({}, {pipeline, "parallel.pipeline_schedule=zero_bubble"}).ok());
  CHECK_THAT(error({pipeline, "parallel.pipeline_schedule=zero_bubble", "model.recompute=full"}),
             Contains("a recomputed layer (model.recompute full) computes both at once"));
  CHECK_THAT(error({pipeline, "parallel.pipeline_schedule=zero_bubble_v"}),
             Contains("schedule zero_bubble_v has two stages a rank; expected 2"));
  CHECK(load_config({}, {pipeline, "parallel.pipeline_schedule=zero_bubble_v",
                         "parallel.stages_per_rank=2"})
            .ok());
  CHECK_THAT(error({pipeline, "model.router_aux_loss_coef=0.1"}),
             Contains("one loss over all layers"));
  CHECK_THAT(error({"parallel.pipeline_schedule=gpipe"}), Contains("there is one stage"));
  CHECK(load_config({}, {"parallel.expert_parallel_size=4", "parallel.ulysses_parallel_size=6",
                         "parallel.tensor_parallel_size=2"})
            .ok());
  CHECK_THAT(error({"parallel.expert_parallel_size=4", "parallel.tensor_parallel_size=3"}),
             Contains("has 3 ranks") && Contains("x parallel.tensor_parallel_size 3"));
  CHECK_THAT(error({"parallel.tensor_parallel_size=2", "parallel.ulysses_parallel_size=2",
                    "sp.async_ulysses=true"}),
             Contains("sp.async_ulysses") && Contains("rows of the tensor-parallel ranks") &&
                 Contains("expected false or auto"));
  CHECK_THAT(error({"parallel.tensor_parallel_size=2", "parallel.ulysses_parallel_size=2",
                    "sp.virtual_ranks=2"}),
             Contains("sp.virtual_ranks") && Contains("expected 0"));
  CHECK_THAT(error({"sp.virtual_ranks=8", "parallel.ulysses_parallel_size=4"}),
             Contains("asks for 4"));
  CHECK(load_config({}, {"sp.virtual_ranks=8", "parallel.ringattn_parallel_size=8"}).ok());
  const std::string ring = "parallel.ringattn_parallel_size=2";
  CHECK_THAT(error({"sp.heads_k_stride=2", ring}), Contains("p2p does not gather"));
  CHECK(load_config({}, {"sp.heads_k_stride=2", "sp.ring_impl=all_gather", ring}).ok());
  CHECK_THAT(error({"sp.device_speeds=H100"}), Contains("no sequence is shared"));
  CHECK(load_config({}, {"sp.device_speeds=H100", ring}).ok());
  const std::string gathered = "sp.ring_backward=all_gather";
  CHECK_THAT(error({gathered, "sp.ring_impl=all_gather", ring}),
             Contains("gathers in both passes"));
  CHECK(load_config({}, {gathered, ring}).ok());
}

TEST_CASE("offloaded activations and MLP tiles need recomputation") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  for (const char* word : {"model.offload_activations=true", "model.mlp_tile_tokens=64"}) {
    CHECK_THAT(error({word}), Contains("but model.recompute is none; expected"));
    for (const char* recompute : {"model.recompute=full", "model.recompute=selective"}) {
      CHECK(load_config({}, {word, recompute}).ok());
    }
  }
}

TEST_CASE("keys of an axis with one rank, and of sharding that does not exist, are refused") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  for (const char* word : {"sp.ring_impl=all_gather", "sp.placement=zigzag", "sp.heads_k_stride=2",
                           "sp.ring_backward=all_gather"}) {
    INFO(word);
    CHECK_THAT(error({word, "parallel.ulysses_parallel_size=2"}),
               Contains("there is no ring attention"));
    CHECK_THAT(error({word, "parallel.context_parallel_size=2", "sp.method=ulysses"}),
               Contains("there is no ring attention"));
  }
  CHECK(load_config({}, {"sp.placement=zigzag", "parallel.ringattn_parallel_size=2"}).ok());
  CHECK(load_config({}, {"sp.placement=zigzag", "parallel.context_parallel_size=2"}).ok());
  CHECK_THAT(error({"sp.async_ulysses=true", "parallel.ringattn_parallel_size=2"}),
             Contains("there is no Ulysses exchange"));
  CHECK(load_config({}, {"sp.async_ulysses=true", "parallel.ulysses_parallel_size=2"}).ok());
  CHECK(load_config({}, {"sp.async_ulysses=auto"}).ok());
  for (const char* mode : {"ulysses_only", "ring_only", "none"}) {
    CHECK_THAT(error({std::string("parallel.cp_fsdp_mode=") + mode}),
               Contains("there is one sequence-parallel rank"));
  }
}

TEST_CASE("keys of adapters are refused without adapters, and where they do not go together") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  for (const char* word : {"lora.alpha=8", "lora.target_modules=q_proj", "lora.path=/adapter",
                           "lora.base=nf4", "lora.publish=adapter"}) {
    INFO(word);
    CHECK_THAT(error({word}), Contains("but lora.rank is 0"));
  }
  const std::string rank = "lora.rank=8";
  CHECK(load_config({}, {rank, "lora.base=nf4", "lora.publish=adapter"}).ok());
  CHECK_THAT(error({rank, "lora.target_modules=q_proj, query"}),
             Contains("lora.target_modules") && Contains("'query'") && Contains("gate_proj"));
  CHECK_THAT(error({rank, "algorithm.reference_update_every=2", "algorithm.kl_coef=0.1"}),
             Contains("the policy without its adapters"));
  const std::string adapter = "lora.publish=adapter";
  CHECK_THAT(error({rank, adapter, "weights.directory=/versions"}),
             Contains("whole models on disk"));
  const std::string url = "rollout.server_options.url=http://127.0.0.1:1";
  for (const char* server : {"python", "vllm"}) {
    INFO(server);
    const std::string kind = std::string("rollout.server=") + server;
    CHECK(load_config({}, {rank, adapter, kind, url}).ok());
    CHECK_THAT(error({rank, adapter, kind, url, "lora.target_modules=q_proj, experts.down_proj"}),
               Contains("gets no adapters of experts") && Contains("expected merged"));
    CHECK_THAT(error({rank, adapter, kind, url, "lora.base=nf4"}),
               Contains("those of lora.base nf4"));
    CHECK_THAT(error({rank, adapter, kind, url, "rollout.server_options.weights=pull"}),
               Contains("takes whole weights"));
    CHECK(load_config({}, {rank, adapter, kind, url, "lora.base=nf4",
                           "rollout.server_options.weights=disk"})
              .ok());
  }
  CHECK_THAT(error({rank, adapter, "rollout.server=sglang", url}), Contains("the worker merges"));
}

TEST_CASE(
    "several adapters are refused where one policy, one model or one prompt file is asked for") {
  const auto error = [](std::vector<std::string> more) {
    std::vector<std::string> words{"lora.rank=8", "lora.publish=adapter",
                                   "lora.adapters=math, code", "data.train=/prompts.jsonl"};
    words.insert(words.end(), more.begin(), more.end());
    return joined(load_config({}, words).errors);
  };
  CHECK(error({}) == "");
  CHECK(error({"lora.adapters=math"}) == "");
  CHECK_THAT(error({"lora.adapters=math,,code"}), Contains("lora.adapters: has the name \"\""));
  CHECK_THAT(error({"lora.adapters=a/b"}), Contains("has the name \"a/b\""));
  CHECK_THAT(error({"lora.adapters=.hidden"}), Contains("has the name \".hidden\""));
  CHECK_THAT(error({"lora.adapters=math, code, math"}), Contains("names math twice"));
  CHECK_THAT(error({"lora.publish=merged"}), Contains("lora.publish: is merged"));
  CHECK_THAT(error({"data.train="}), Contains("data.train: is \"\", but with lora.adapters"));
  CHECK_THAT(error({"algorithm.advantage.estimator=gae"}),
             Contains("estimator: is gae") && Contains("one critic"));
  CHECK_THAT(error({"algorithm.distillation.teacher=/teacher"}), Contains("a copy of the teacher"));
  CHECK_THAT(error({"algorithm.kl_coef=0.1", "model.reference_path=/reference"}),
             Contains("a copy of the reference"));
  CHECK(error({"algorithm.kl_coef=0.1"}) == "");
  CHECK_THAT(error({"rollout.group_size=4", "train.num_mini_batches=5"}),
             Contains("one group of 4 samples"));
  CHECK_THAT(error({"eval.every=1", "data.eval=/held_out.jsonl"}),
             Contains("eval.by: is embedded"));
  CHECK(error({"eval.every=1", "data.eval=/held_out.jsonl", "eval.by=workers"}) == "");
  const std::string url = "rollout.server_options.url=http://127.0.0.1:1";
  CHECK(error({"rollout.server=vllm", url}) == "");
  CHECK_THAT(error({"rollout.server=python", url}), Contains("rollout.server: is python"));
  CHECK_THAT(error({"rollout.server=vllm", url, "rollout.server_options.weights=disk"}),
             Contains("rollout.server_options.weights: is disk"));
  CHECK_THAT(error({"rollout.harness=python(a.py:f)", "rollout.reward=worker"}),
             Contains("rollout.harness: is set, but with lora.adapters"));
  const auto alone = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  CHECK_THAT(alone({"lora.adapters=math, code"}), Contains("lora.adapters: is math, code, but "));
  CHECK_THAT(alone({"data.adapter_key=tenant"}), Contains("no record names an adapter"));
}

TEST_CASE("keys of fine-tuning and of evaluations are refused where nothing reads them") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  CHECK_THAT(error({"algorithm.task=sft", "eval.every=5"}),
             Contains("eval.every: is 5, but data.sft_eval is empty"));
  CHECK(load_config({}, {"algorithm.task=sft", "eval.every=5", "data.sft_eval=x.jsonl"}).ok());
  CHECK_THAT(error({"algorithm.task=sft", "data.eval=x.jsonl"}),
             Contains("data.eval: is") && Contains("data.sft_eval"));
  CHECK_THAT(error({"algorithm.task=sft", "data.max_length=20000"}),
             Contains("data.max_length: is 20000") && Contains("16384"));
  CHECK_THAT(error({"data.max_length=20"}),
             Contains("data.max_length: is 20") && Contains("algorithm.task sft"));
  CHECK_THAT(error({"train.epochs=2"}),
             Contains("train.epochs: is 2") && Contains("algorithm.task sft"));
  CHECK_THAT(error({"data.sft_eval=x.jsonl"}),
             Contains("data.sft_eval: is") && Contains("algorithm.task sft"));
  CHECK_THAT(error({"checkpoint.keep_best=true"}),
             Contains("checkpoint.keep_best: is true") && Contains("eval.every is 0"));
  CHECK_THAT(error({"eval.samples=4"}),
             Contains("eval.samples: is 4, but eval.temperature 0 samples greedily"));
  CHECK(load_config({},
                    {"eval.samples=4", "eval.temperature=0.7", "eval.every=5", "data.eval=x.jsonl"})
            .ok());
  CHECK_THAT(error({"algorithm.task=sft", "eval.samples=4", "eval.temperature=0.7"}),
             Contains("eval.samples: is 4, but algorithm.task sft samples nothing"));
  CHECK_THAT(error({"algorithm.task=dpo", "eval.every=5"}),
             Contains("eval.every: is 5, but data.preferences_eval is empty"));
  CHECK_THAT(error({"algorithm.task=reward_model", "lora.rank=4"}),
             Contains("lora.rank: is 4, but a reward model is saved with its value head"));
  CHECK_THAT(error({"algorithm.task=dpo", "data.image_key=picture"}),
             Contains("data.image_key: is picture") && Contains("pairs of text alone"));
  CHECK_THAT(error({"algorithm.task=dpo", "algorithm.preset=trl"}),
             Contains("algorithm.preset: is trl, but algorithm.task is dpo"));
  CHECK_THAT(
      error({"algorithm.distillation.teacher=x", "algorithm.distillation.over=vocabulary",
             "train.num_mini_batches=2", "train.shuffle_mini_batches=true"}),
      Contains("algorithm.distillation.over: is vocabulary, but train.shuffle_mini_batches"));
  for (const char* bad : {"9400", ":9400", "localhost", "localhost:", "localhost:0",
                          "localhost:65536", "localhost:94x0", "localhost:999999"}) {
    CHECK_THAT(error({std::string("log.openmetrics=") + bad}),
               Contains("log.openmetrics: is") && Contains("expected HOST:PORT"));
  }
  for (const char* good : {"", "127.0.0.1:9400", "[::1]:1", "localhost:65535"}) {
    CHECK(load_config({}, {std::string("log.openmetrics=") + good}).ok());
  }
}

TEST_CASE("a teacher's divergence takes every layout, and is refused where it counts for nothing") {
  const auto error = [](std::vector<std::string> words) {
    return joined(load_config({}, words).errors);
  };
  const std::string teacher = "algorithm.distillation.teacher=x";
  for (const std::string over : {"vocabulary", "top_k"}) {
    const std::string word = "algorithm.distillation.over=" + over;
    CHECK(error({teacher, word, "parallel.tensor_parallel_size=2"}) == "");
    CHECK(error({teacher, word, "parallel.data_parallel_shard_size=2"}) == "");
  }
  CHECK(error({teacher, "parallel.tensor_parallel_size=2"}) == "");
  const std::string server = "algorithm.distillation.teacher=http://h:1";
  const std::string several = "algorithm.distillation.teachers=a=/x, b=https://h:1";
  CHECK(error({server, "algorithm.distillation.over=top_k"}) == "");
  for (const std::string& served : {server, several}) {
    CHECK_THAT(error({served, "algorithm.distillation.over=vocabulary"}),
               Contains("distillation.over: is vocabulary") && Contains("on a server"));
    CHECK_THAT(error({served, "rollout.temperature=0.7"}),
               Contains("rollout.temperature: is 0.7") && Contains("expected 1"));
    CHECK_THAT(error({served, "data.image_key=images"}), Contains("data.image_key"));
  }
  CHECK_THAT(error({teacher, several}), Contains("expected one of them"));
  CHECK(error({several, "data.source_key=source", "algorithm.distillation.server_model=m"}) == "");
  CHECK_THAT(error({teacher, "data.source_key=source"}), Contains("or several teachers"));
  CHECK_THAT(error({teacher, "algorithm.distillation.server_model=m"}),
             Contains("no teacher is on a server"));
  CHECK_THAT(error({"algorithm.preset=opd", teacher, "algorithm.dynamic_sampling=drop"}),
             Contains("dynamic_sampling: is drop") && Contains("rewards do not count here"));
  CHECK_THAT(error({"rollout.reward=none, math_answer"}), Contains("expected none alone"));
  CHECK_THAT(error({teacher, "algorithm.distillation.coef=0"}), Contains("above 0"));
  CHECK_THAT(error({teacher, "algorithm.distillation.mixture=1"}), Contains("below 1"));
}

TEST_CASE("values that nobody means are outside of their range") {
  const auto fails = [](const std::string& word) { return !load_config({}, {word}).ok(); };
  CHECK(fails("rollout.group_size=1000000"));
  CHECK_FALSE(fails("rollout.group_size=65536"));
  CHECK(fails("rollout.prompts_per_step=1000001"));
  CHECK(fails("rollout.temperature=100"));
  CHECK_FALSE(fails("rollout.temperature=10"));
  CHECK(fails("optimizer.learning_rate=1000"));
  CHECK_FALSE(fails("optimizer.learning_rate=1"));
  CHECK_THAT(joined(load_config({}, {"rollout.reward=math_answer*0"}).errors),
             Contains("rollout.reward: is math_answer*0") && Contains("every weight is 0"));
  CHECK_FALSE(fails("rollout.reward=math_answer * 0, length"));
}

}  // namespace
}  // namespace ringside::rl
