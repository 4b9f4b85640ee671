#include "rl/setup/memory_of_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "engine/images/processor_options.h"
#include "engine/layers/decoder_layer.h"
#include "engine/models/encode_images.h"
#include "engine/ops/token_scores.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/loading_memory.h"
#include "rl/config/adapter_names.h"
#include "rl/config/batch_arithmetic.h"
#include "rl/config/task.h"
#include "rl/config/teacher.h"
#include "rl/report/byte_text.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/pipeline_figures.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"
#include "sp/plan/held_inputs.h"

namespace ringside::rl {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

engine::StateShape state_shape(const Config& config) {
  engine::StateShape state;
  const sp::Mesh mesh(mesh_shape(config.parallel), /*rank=*/0);
  state.shard_ranks = mesh.size(shard_axes(config.parallel).shard);
  state.expert_ranks = config.parallel.expert_parallel_size;
  state.expert_shard_ranks = state.expert_ranks > 1
                                 ? mesh.size(expert_shard_axes(config.parallel).shard)
                                 : state.shard_ranks;
  state.tensor_ranks = config.parallel.tensor_parallel_size;
  state.zero_stage = config.parallel.zero_stage;
  state.moments_on_host = config.optimizer.offload != OptimizerOffload::kNone;
  state.masters_on_host = config.optimizer.offload == OptimizerOffload::kFull;
  state.parameters_on_host = config.model.offload_parameters;
  state.muon = config.optimizer.kind == OptimizerKind::kMuon;
  return state;
}

// Lengths of the documents of a full micro-batch: as long as they may be.
std::vector<int64_t> full_micro_batch(const Config& config) {
  const int64_t limit = longest_document(config);
  std::vector<int64_t> lengths;
  for (int64_t left = config.train.tokens_per_micro_batch; left > 0; left -= lengths.back()) {
    lengths.push_back(limit > 0 ? std::min(limit, left) : left);
  }
  return lengths;
}

// The largest part that a rank has in layers that pass a state.
engine::DeltaShape delta_shape(const Config& config, const sp::StateShape& state) {
  const int64_t ring = config.parallel.ringattn_parallel_size;
  const int64_t ulysses = config.parallel.ulysses_parallel_size;
  engine::DeltaShape largest;
  const sp::SequenceLayout layout(sp::SegmentForest::of_documents(full_micro_batch(config)), ring,
                                  ulysses, config.sp.placement);
  for (int64_t r = 0; r < ring; ++r) {
    const engine::DeltaShape shape =
        engine::delta_shape(sp::plan_state(layout, state, r * ulysses));
    if (shape.chunks + shape.mapped_chunks >= largest.chunks + largest.mapped_chunks) {
      largest = shape;
    }
  }
  return largest;
}

// Pixels of the largest image.
int64_t most_pixels(const Config& config) {
  return config.data.max_image_pixels > 0
             ? config.data.max_image_pixels
             : engine::read_processor_options(config.model.path).max_pixels;
}

// Images, where every token of a micro-batch is one of an image. Images are divided whole, the
// largest first to the rank with the least: so the fullest rank has at most its part and
// (ranks - 1) / ranks of an image. Rows are kept until they are more than their bound, or all steps
// are done.
void add_images(const Config& config, const engine::ModelConfig& model, engine::PassShape& shape) {
  if (!model.vision) {
    return;
  }
  const engine::VisionConfig& vision = *model.vision;
  const int64_t ranks =
      config.parallel.ringattn_parallel_size * config.parallel.ulysses_parallel_size;
  const int64_t tokens = config.train.tokens_per_micro_batch;
  const int64_t pixels_of_token = vision.patches_of_token() * vision.patch * vision.patch;
  const int64_t image = std::min(tokens, ceil_div(most_pixels(config), pixels_of_token));
  const int64_t encoded = std::min(tokens, ceil_div(tokens + (ranks - 1) * image, ranks));
  shape.vision = vision_training(config.model.vision);
  shape.patches = encoded * vision.patches_of_token();
  shape.image_rows = shape.tokens;
  const int64_t numbers = (1 + std::ssize(vision.deepstack)) * model.hidden_size;
  const auto row =
      numbers * static_cast<int64_t>(c10::elementSize(scalar_type(config.model.dtype)));
  const int64_t micro_batches =
      full_micro_batches(config) * std::max<int64_t>(1, batch_arithmetic(config).optimizer_steps);
  shape.kept_image_rows = std::min(engine::KeptRows::kMaxBytes / row, micro_batches * encoded);
}

engine::PassShape pass_shape(const Config& config, const engine::ModelConfig& model,
                             const at::TensorOptions& hidden) {
  const int64_t ulysses = config.parallel.ulysses_parallel_size;
  engine::PassShape shape;
  shape.ring_ranks = config.parallel.ringattn_parallel_size;
  shape.gathers_kv = config.sp.ring_impl == sp::RingImpl::kAllGather;
  shape.share_tokens = ceil_div(config.train.tokens_per_micro_batch, shape.ring_ranks);
  shape.tokens = shape.entries = ceil_div(shape.share_tokens, ulysses);
  // Of the tensor-parallel rank with the most, the first one.
  const engine::TensorPlace tensor{0, config.parallel.tensor_parallel_size};
  const sp::HeadShape heads = engine::head_shape(model, tensor);
  shape.tensor_ranks = tensor.ranks;
  shape.query_heads = ceil_div(heads.query_heads().size(), ulysses);
  shape.kv_heads = ceil_div(heads.kv_heads().size(), ulysses);
  if (const std::optional<sp::StateShape> state = engine::passed_state(model, tensor)) {
    shape.delta = delta_shape(config, *state);
  }
  shape.activations = activation_options(config);
  shape.logit_rows = engine::token_score_rows(hidden, ceil_div(model.vocab_size, tensor.ranks),
                                              shape.activations.logit_chunk_bytes);
  shape.logit_bytes = engine::bytes_per_logit(hidden);
  shape.accumulates = true;
  shape.state = state_shape(config);
  add_images(config, model, shape);
  return shape;
}

std::optional<engine::AdapterShape> adapter_shape(const Config& config) {
  if (config.lora.rank == 0) {
    return std::nullopt;
  }
  return engine::AdapterShape{adapter_options(config.lora), policy_storage(config).projections};
}

std::string bytes_of(int64_t bytes) { return byte_text(static_cast<double>(bytes)); }

}  // namespace

namespace {

// Of a whole model, or of one rank's stages of it.
struct StagesMemory {
  const engine::ModelConfig& model;
  std::optional<engine::RankStages> stages = {};  // empty: the whole model

  engine::MemoryEstimate estimate(const engine::ComputeContext& context,
                                  const engine::PassShape& shape) const {
    return stages ? engine::estimate_memory(model, context, shape, *stages)
                  : engine::estimate_memory(model, context, shape);
  }

  int64_t loading(const engine::ComputeContext& context, const engine::WeightStorage& storage,
                  const engine::StateShape& state) const {
    const auto of = [&](const engine::Stage& stage) {
      return engine::loading_memory(model, stage, context, storage, state);
    };
    if (!stages) {
      return of(engine::whole_stage(model)).peak;
    }
    int64_t kept = 0, peak = 0;
    for (const engine::Stage& stage : stages->stages) {
      const engine::LoadingMemory loading = of(stage);
      peak = std::max(peak, kept + loading.peak);
      kept += loading.kept;
    }
    return peak;
  }
};

// Bytes of a teacher's weights. What is wrong with its directory is reported where it is checked.
int64_t teacher_memory(const Config& config, const std::string& path,
                       const engine::ComputeContext& context) {
  try {
    const engine::ModelConfig model = load_model_config(config, path);
    engine::ComputeContext frozen = context;
    frozen.master = frozen.compute;
    engine::PassShape shape = pass_shape(config, model, context.compute_options());
    shape.trains = false;
    const engine::MemoryEstimate memory = engine::estimate_memory(model, frozen, shape);
    const bool keeps_gathered = shape.state.shard_ranks > 1 && shape.state.zero_stage < 3;
    return (memory.weights + (keeps_gathered ? memory.gathered : 0)) /
           config.parallel.pipeline_parallel_size;
  } catch (const std::exception&) {
    return 0;
  }
}

// The adapters of a run beside its first ones: their values, moments and gradients.
void add_other_adapters(const Config& config, const StagesMemory& stages,
                        const engine::ComputeContext& context, const engine::StateShape& state,
                        engine::MemoryEstimate& policy) {
  const auto others = std::ssize(adapter_names(config.lora)) - 1;
  if (config.lora.rank == 0 || others <= 0) {
    return;
  }
  int64_t elements = 0;
  for (const engine::Stage& stage :
       stages.stages ? stages.stages->stages
                     : std::vector<engine::Stage>{engine::whole_stage(stages.model)}) {
    elements += engine::elements(
        engine::Adapters::factors(stages.model, stage, adapter_options(config.lora)));
  }
  const int64_t bytes = others * elements * static_cast<int64_t>(c10::elementSize(context.master));
  policy.weights += bytes;
  policy.gradients += bytes;
  (state.moments_on_host || state.masters_on_host ? policy.host : policy.moments) += 2 * bytes;
}

RankMemory memory_of_stages(const Config& config, const StagesMemory& stages, c10::Device device) {
  const engine::ModelConfig& model = stages.model;
  const engine::ComputeContext context(scalar_type(config.model.dtype), device);
  engine::PassShape shape = pass_shape(config, model, context.compute_options());
  RankMemory memory;
  const engine::MemoryEstimate whole = stages.estimate(context, shape);
  if (has_critic(config)) {
    // Beside the policy's pass it holds its state alone. It has no adapters.
    memory.critic = whole.weights + whole.moments + whole.gradients;
    memory.host += whole.host;
  }
  shape.adapters = adapter_shape(config);
  memory.policy = shape.adapters ? stages.estimate(context, shape) : whole;
  add_other_adapters(config, stages, context, shape.state, memory.policy);
  // With adapters the reference is the policy without them, unless it has a directory of its own.
  if (has_reference(config) && (!shape.adapters || !config.model.reference_path.empty())) {
    shape.trains = false;
    shape.adapters.reset();
    engine::ComputeContext of_reference = context;
    if (reference_storage(config).frozen) {
      of_reference.master = of_reference.compute;
    }
    const engine::MemoryEstimate reference = stages.estimate(of_reference, shape);
    const bool keeps_gathered = shape.state.shard_ranks > 1 && shape.state.zero_stage < 3;
    memory.reference = reference.weights + (keeps_gathered ? reference.gathered : 0);
    memory.host += shape.state.parameters_on_host ? reference.host : 0;
  }
  if (samples_completions(config) && has_teacher(config.algorithm)) {
    for (const TeacherEntry& teacher : teachers_of(config.algorithm.distillation)) {
      if (!teacher.is_server()) {
        memory.teacher += teacher_memory(config, teacher.place, context);
        ++memory.teachers;
      }
    }
  }
  memory.host += memory.policy.host;
  // Adapters are made last, when nothing else is beside the weights.
  memory.loading =
      std::max(stages.loading(context, policy_storage(config), shape.state), memory.policy.weights);
  return memory;
}

}  // namespace

RankMemory memory_of_rank(const Config& config, const engine::ModelConfig& model,
                          c10::Device device) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.pipeline_parallel_size == 1) {
    return memory_of_stages(config, {model}, device);
  }
  const sp::PipelineShape shape = pipeline_shape(parallel);
  const std::vector<engine::Stage> all =
      engine::pipeline_stages(model, shape, typical_tokens(config));
  const sp::PipelinePlan plan = engine::pipeline_plan(
      shape, pipeline_schedule(parallel), pipeline_warm_up(config), full_micro_batches(config));
  RankMemory worst;
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    engine::RankStages own{{}, sp::held_at_backwards(plan, shape, rank)};
    for (int64_t chunk = 0; chunk < shape.stages_per_rank; ++chunk) {
      own.stages.push_back(all.at(shape.stage_of(rank, chunk)));
    }
    RankMemory memory = memory_of_stages(config, {model, std::move(own)}, device);
    memory.pipeline_rank = rank;
    if (memory.total() > worst.total()) {
      worst = memory;
    }
  }
  return worst;
}

std::string describe(const RankMemory& memory) {
  const engine::MemoryEstimate& policy = memory.policy;
  std::string text =
      (memory.pipeline_rank ? "memory of rank " + std::to_string(*memory.pipeline_rank) +
                                  " of the pipeline, which needs the most: about "
                            : "memory of a rank: about ") +
      bytes_of(memory.total()) + " at the peak of a full micro-batch: weights " +
      bytes_of(policy.weights) + ", moments " + bytes_of(policy.moments) + ", gradients " +
      bytes_of(policy.gradients) + ", gathered or cast weights " + bytes_of(policy.gathered) +
      ", activations " + bytes_of(policy.activations) +
      (policy.logits > 0 ? ", logits " + bytes_of(policy.logits)
                         : ", a layer's backward " + bytes_of(policy.working)) +
      ", communication buffers " + bytes_of(policy.communication);
  if (memory.reference > 0) {
    text += ", reference " + bytes_of(memory.reference);
  }
  if (memory.teacher > 0) {
    text += (memory.teachers > 1 ? ", " + std::to_string(memory.teachers) + " teachers "
                                 : ", teacher ") +
            bytes_of(memory.teacher);
  }
  if (memory.critic > 0) {
    text += ", critic " + bytes_of(memory.critic);
  }
  return text + "; while the policy is loaded " + bytes_of(memory.loading) + "; in host memory " +
         bytes_of(memory.host);
}

}  // namespace ringside::rl
