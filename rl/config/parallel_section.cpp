#include "rl/config/enums.h"
#include "rl/config/sections.h"

namespace ringside::rl {
namespace {

void add_parallel(FieldList& fields, ParallelConfig& parallel) {
  const NumberRange size = between(1, 65536);
  fields.integer("parallel.data_parallel_replicate_size", parallel.data_parallel_replicate_size,
                 between(0, 65536),
                 "copies of the sharded model, each with its own micro-batches; 0 = as many as the "
                 "ranks of the run allow");
  fields.integer("parallel.data_parallel_shard_size", parallel.data_parallel_shard_size, size,
                 "ranks that share one copy of the model and have their own micro-batches");
  fields.integer("parallel.ringattn_parallel_size", parallel.ringattn_parallel_size, size,
                 "ranks of the ring attention axis of sequence parallelism");
  fields.integer("parallel.ulysses_parallel_size", parallel.ulysses_parallel_size, size,
                 "ranks of the Ulysses (all-to-all) axis of sequence parallelism");
  fields.integer("parallel.context_parallel_size", parallel.context_parallel_size,
                 between(0, 65536),
                 "ranks that share a sequence; sp.method splits them into the two axes above; 0 = "
                 "axes as set");
  fields.integer(
      "parallel.expert_parallel_size", parallel.expert_parallel_size, size,
      "ranks that hold a layer's experts between them, each with its own; tokens travel to them. "
      "Uses the ranks of one copy of the model, which it must divide; any number of experts");
  fields.integer("parallel.pipeline_parallel_size", parallel.pipeline_parallel_size, size,
                 "ranks that divide the layers of a model between them, as stages of a pipeline "
                 "that micro-batches go through");
  fields.choice(
      "parallel.pipeline_schedule", parallel.pipeline_schedule,
      "order of the stages' passes: 1f1b = forwards and backwards in turn, gpipe = all "
      "forwards first, interleaved = 1f1b with several stages a rank, zero_bubble = "
      "1f1b whose ranks compute the gradients of weights where they would wait, zero_bubble_v = "
      "the same with two stages a rank in a V; auto = 1f1b, "
      "or interleaved with several stages a rank, with more forwards first where layers "
      "are recomputed");
  fields.integer("parallel.stages_per_rank", parallel.stages_per_rank, between(1, 64),
                 "stages of a rank of a pipeline: more make ranks wait less and send more");
  fields.integer(
      "parallel.tensor_parallel_size", parallel.tensor_parallel_size, size,
      "ranks that divide the matrices of each layer between them: heads, the MLP's width "
      "and the vocabulary; any number. They have the same tokens and send the most of "
      "all axes, so keep them within a machine");
  fields.choice(
      "parallel.cp_fsdp_mode", parallel.cp_fsdp_mode,
      "which sequence-parallel ranks share that copy too: all, ulysses_only, ring_only, none");
  fields.integer("parallel.zero_stage", parallel.zero_stage, between(1, 3),
                 "what is sharded: 1 = master weights and moments, 2 = gradients too, 3 = the "
                 "weights that compute too");
  fields.choice_among(
      "parallel.reduce_dtype", parallel.reduce_dtype, {DType::kFloat32, DType::kBFloat16},
      "in which gradients are sent between the ranks that share one copy: float32, bfloat16");
  fields.choice(
      "parallel.group_scope", parallel.group_scope,
      "sequence-parallel groups that span nodes: local_node = an error, global = a warning");
  fields.choice(
      "parallel.transport", parallel.transport,
      "how ranks exchange tensors of the CPU: auto = through shared memory among ranks of one "
      "machine, else over Gloo; gloo; shared_memory = an error where it is not possible");
  fields.real("parallel.collective_timeout_s", parallel.collective_timeout_s, above(0),
              "a collective that takes longer is an error on every rank");
}

void add_sp(FieldList& fields, SpConfig& sp) {
  fields.choice("sp.method", sp.method,
                "how context_parallel_size is split: auto = by predicted time, ulysses, ring");
  fields.choice("sp.ring_impl", sp.ring_impl,
                "ring attention: p2p = keys and values travel from rank to rank, all_gather = they "
                "are gathered at once. ring_impl, ring_backward, placement and heads_k_stride need "
                "a ring of at least 2 ranks");
  fields.choice("sp.ring_backward", sp.ring_backward,
                "how keys and values come in the backward of ring_impl p2p: p2p, all_gather = at "
                "once; gradients then go straight to their ranks");
  fields.choice("sp.async_ulysses", sp.async_ulysses,
                "overlap each projection with the all-to-all beside it; true needs Ulysses over at "
                "least 2 ranks; not for latent attention or gated delta nets; no effect with "
                "adapters; auto = where it is predicted to be faster");
  fields.flag("sp.shared_prefix", sp.shared_prefix,
              "compute and send the common prefix of documents once, such as a group's prompt");
  fields.choice("sp.placement", sp.placement,
                "document_aware = cut long documents only; zigzag, contiguous = cut all");
  fields.integer("sp.heads_k_stride", sp.heads_k_stride, at_least(0),
                 "all_gather: KV heads gathered at a time; 0 = all");
  fields.integer("sp.virtual_ranks", sp.virtual_ranks, between(0, 1024),
                 "V = V virtual ranks, as threads of any number of processes, with the same bits; "
                 "on GPUs one a process; 0 = off");
  fields.path("sp.device_speeds", sp.device_speeds,
              "device speeds for the predictions of time: a file that `ringside doctor --measure` "
              "wrote, or CPU, A100, H100, H200, B200, L40S, RTX 4090; \"\" = the device of this "
              "machine, by its name");
}

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
  if (!ulysses && c.sp.async_ulysses == AsyncUlysses::kTrue) {
    mistakes.push_back({"sp.async_ulysses",
                        "is true, but there is no Ulysses exchange: parallel.ulysses_parallel_size "
                        "is 1; expected false or auto"});
  }
  if (!ring && !ulysses && c.parallel.cp_fsdp_mode != CpFsdpMode::kAll) {
    mistakes.push_back(
        {"parallel.cp_fsdp_mode", "is " + std::string(to_string(c.parallel.cp_fsdp_mode)) +
                                      ", but there is one sequence-parallel rank; expected all"});
  }
}

void check_sharding(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.model.offload_parameters && c.optimizer.offload != OptimizerOffload::kFull) {
    mistakes.push_back({"model.offload_parameters",
                        "is true, but the master weights are on the device; expected "
                        "optimizer.offload full, or false"});
  }
}

// " x parallel.tensor_parallel_size 2", where there is more than one.
std::string tensor_factor(const ParallelConfig& parallel) {
  return parallel.tensor_parallel_size == 1
             ? ""
             : " x parallel.tensor_parallel_size " + std::to_string(parallel.tensor_parallel_size);
}

void check_tensor(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.parallel.tensor_parallel_size == 1) {
    return;
  }
  const std::string ranks = "parallel.tensor_parallel_size is " +
                            std::to_string(c.parallel.tensor_parallel_size) + "; expected ";
  if (c.sp.async_ulysses == AsyncUlysses::kTrue) {
    mistakes.push_back({"sp.async_ulysses",
                        "is true, but each projection would have to wait for the rows of the "
                        "tensor-parallel ranks: " +
                            ranks + "false or auto"});
  }
  if (c.sp.virtual_ranks > 0) {
    mistakes.push_back(
        {"sp.virtual_ranks", "is " + std::to_string(c.sp.virtual_ranks) +
                                 ", but virtual ranks share one copy of the matrices, which "
                                 "tensor-parallel ranks divide: " +
                                 ranks + "0"});
  }
}

void check_experts(const Config& c, std::vector<Mistake>& mistakes) {
  const ParallelConfig& parallel = c.parallel;
  if (parallel.replica_size() % parallel.expert_parallel_size != 0) {
    mistakes.push_back(
        {"parallel.expert_parallel_size",
         "is " + std::to_string(parallel.expert_parallel_size) +
             ", but one copy of the model has " + std::to_string(parallel.replica_size()) +
             " ranks (parallel.data_parallel_shard_size " +
             std::to_string(parallel.data_parallel_shard_size) + " x " +
             std::to_string(parallel.sequence_parallel_size()) + " sequence-parallel ranks" +
             tensor_factor(parallel) + "); expected a divisor of them"});
  }
}

void check_pipeline(const Config& c, std::vector<Mistake>& mistakes) {
  const ParallelConfig& parallel = c.parallel;
  const PipelineChoice schedule = parallel.pipeline_schedule;
  const std::string word(to_string(schedule));
  const auto refuse_stages = [&](const std::string& expected) {
    mistakes.push_back(
        {"parallel.stages_per_rank", "is " + std::to_string(parallel.stages_per_rank) +
                                         ", but schedule " + word + " has " + expected});
  };
  if (parallel.pipeline_parallel_size == 1) {
    if (parallel.stages_per_rank > 1) {
      mistakes.push_back({"parallel.stages_per_rank",
                          "is " + std::to_string(parallel.stages_per_rank) +
                              ", but there is no pipeline: parallel.pipeline_parallel_size is 1; "
                              "expected 1"});
    }
    return;
  }
  if (!c.data.image_key.empty()) {
    mistakes.push_back({"parallel.pipeline_parallel_size",
                        "is " + std::to_string(parallel.pipeline_parallel_size) +
                            ", but data.image_key is set: a vision tower cannot be in a pipeline "
                            "yet; expected 1, or parallel.tensor_parallel_size in its place"});
  }
  const bool one_stage =
      schedule == PipelineChoice::kOneForwardOneBackward || schedule == PipelineChoice::kGpipe;
  if (one_stage && schedule != PipelineChoice::kGpipe && parallel.stages_per_rank > 1) {
    refuse_stages("one stage a rank; expected 1, or schedule interleaved");
  }
  if (schedule == PipelineChoice::kInterleaved && parallel.stages_per_rank == 1) {
    refuse_stages("several stages a rank; expected at least 2, or schedule 1f1b");
  }
  if (schedule == PipelineChoice::kZeroBubbleV && parallel.stages_per_rank != 2) {
    refuse_stages("two stages a rank; expected 2");
  }
  const bool splits =
      schedule == PipelineChoice::kZeroBubble || schedule == PipelineChoice::kZeroBubbleV;
  if (splits && c.model.recompute != Recompute::kNone) {
    mistakes.push_back({"parallel.pipeline_schedule",
                        "is " + word +
                            ", which computes the gradients of weights later than those of inputs, "
                            "but a recomputed layer (model.recompute " +
                            std::string(to_string(c.model.recompute)) +
                            ") computes both at once; expected 1f1b or interleaved, or "
                            "model.recompute none"});
  }
  if (c.model.router_aux_loss_coef > 0) {
    mistakes.push_back({"model.router_aux_loss_coef",
                        "is above 0, but that is one loss over all layers, and the ranks of a "
                        "pipeline (parallel.pipeline_parallel_size) have a part of them each; "
                        "expected 0, and model.router_bias_update_rate where routers have "
                        "corrections"});
  }
}

void check_parallel(const Config& c, std::vector<Mistake>& mistakes) {
  check_axes(c, mistakes);
  check_pipeline(c, mistakes);
  check_sharding(c, mistakes);
  check_experts(c, mistakes);
  check_tensor(c, mistakes);
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
  if (c.sp.virtual_ranks > 0 && c.sp.virtual_ranks != parallel.sequence_parallel_size()) {
    mistakes.push_back(
        {"sp.virtual_ranks", "is " + std::to_string(c.sp.virtual_ranks) +
                                 " virtual ranks, but parallel.* asks for " +
                                 std::to_string(parallel.sequence_parallel_size()) +
                                 " sequence-parallel ranks; expected the same number "
                                 "(fewer processes carry them: --nproc)"});
  }
  if (c.sp.ring_backward != sp::RingImpl::kP2p && c.sp.ring_impl != sp::RingImpl::kP2p) {
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

void add_parallel_sections(FieldList& fields, ParallelConfig& parallel, SpConfig& sp) {
  add_parallel(fields, parallel);
  add_sp(fields, sp);
  fields.may_change_on_resume("parallel.");
  fields.may_change_on_resume("sp.");
  fields.often_set("parallel",
                   {"data_parallel_shard_size", "context_parallel_size", "ulysses_parallel_size",
                    "ringattn_parallel_size", "expert_parallel_size", "tensor_parallel_size",
                    "pipeline_parallel_size"});
}

void check_parallel_sections(const Config& c, std::vector<Mistake>& mistakes) {
  check_parallel(c, mistakes);
}

}  // namespace ringside::rl
