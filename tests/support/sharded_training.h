// Training of a tiny model by one rank of a layout, for tests that compare layouts and devices.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/acting_values.h"
#include "engine/models/pipeline.h"
#include "engine/models/random_weights.h"
#include "engine/models/weight_export.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/model_runner.h"
#include "rl/data/training_batch.h"
#include "rl/setup/model_setup.h"
#include "rl/setup/sequence_parallel.h"
#include "rl/setup/sharding.h"
#include "rl/step/column_tensors.h"
#include "sp/batch/next_ids.h"
#include "sp/mesh/process_groups.h"
#include "tests/support/image_documents.h"

namespace ringside::test {

// A mesh and how models are sharded over it.
struct ShardLayout {
  int64_t replicate = 1, shard = 1, ring = 1, ulysses = 1;
  rl::CpFsdpMode mode = rl::CpFsdpMode::kAll;
  int64_t stage = 3;
  engine::ActivationOptions activations = {};
  rl::OptimizerOffload offload = rl::OptimizerOffload::kNone;
  bool offload_parameters = false;
  int64_t documents = 9;
  int64_t expert = 1;
  sp::RingImpl ring_impl = sp::RingImpl::kP2p;
  bool shared_prefix = true;
  sp::Placement placement = sp::Placement::kDocumentAware;
  int64_t micro_batch_tokens = 24;
  engine::BalanceOptions balance = {};
  int64_t tensor = 1;
  int64_t lora_rank = 0;                             // 0: all parameters are trained
  std::optional<engine::QuantisedFormat> base = {};  // of the adapters
  std::vector<std::string> lora_targets = engine::adapter_targets();
  int64_t pipeline = 1, stages_per_rank = 1;
  sp::PipelineSchedule schedule = sp::PipelineSchedule::kOneForwardOneBackward;
  int64_t warm_up = 0;
  bool images = false;  // documents of image_documents(), for a model of tower_config()
  engine::VisionTraining vision = engine::VisionTraining::kAll;
  bool async_ulysses = false;
  std::optional<engine::MuonOptions> muon = {};  // empty: AdamW updates everything
  // Of a model that predicts a further token.
  std::optional<engine::FurtherTokensOptions> further = {};

  // The keys parallel.* of this layout.
  rl::ParallelConfig config() const {
    rl::ParallelConfig parallel;
    parallel.data_parallel_replicate_size = replicate;
    parallel.data_parallel_shard_size = shard;
    parallel.ringattn_parallel_size = ring;
    parallel.ulysses_parallel_size = ulysses;
    parallel.expert_parallel_size = expert;
    parallel.pipeline_parallel_size = pipeline;
    parallel.stages_per_rank = stages_per_rank;
    parallel.tensor_parallel_size = tensor;
    parallel.cp_fsdp_mode = mode;
    parallel.zero_stage = stage;
    return parallel;
  }
  // What differs between layouts, for a test's output.
  std::string name() const {
    return "replicate " + std::to_string(replicate) + " shard " + std::to_string(shard) + " ring " +
           std::to_string(ring) + " ulysses " + std::to_string(ulysses) + " mode " +
           std::string(rl::to_string(mode)) + " stage " + std::to_string(stage) + " recompute " +
           std::to_string(static_cast<int>(activations.recompute)) + " offload " +
           std::string(rl::to_string(offload)) + (offload_parameters ? " and parameters" : "") +
           (pipeline > 1 ? " pipeline " + std::to_string(pipeline) + " x " +
                               std::to_string(stages_per_rank) + " schedule " +
                               std::to_string(static_cast<int>(schedule)) + " warm-up " +
                               std::to_string(warm_up)
                         : "") +
           (expert > 1 ? " expert " + std::to_string(expert) : "") +
           (tensor > 1 ? " tensor " + std::to_string(tensor) : "") +
           (lora_rank > 0 ? " lora " + std::to_string(lora_rank) : "") +
           (!base                                    ? ""
            : *base == engine::QuantisedFormat::kNf4 ? " nf4"
                                                     : " int8") +
           (ring_impl == sp::RingImpl::kAllGather ? " all-gather" : "") +
           (images ? " images, tower " + std::to_string(static_cast<int>(vision)) : "") +
           (async_ulysses ? " async" : "") + (muon ? " muon" : "") +
           (shared_prefix ? "" : " unshared");
  }
};

struct ShardOutcome {
  std::vector<at::Tensor> weights;  // of every unit of an export, whole, as they act
  std::vector<double> losses, norms;
  std::vector<double> balance_losses;  // with layout.balance
  std::vector<double> further_losses;  // with layout.further
  // Bytes of attention and between tensor ranks in the last step, sent and predicted, of rank 0.
  double sent_bytes = 0.0, predicted_bytes = 0.0;
  int64_t micro_batches = 0;        // a step
  int64_t empty_micro_batches = 0;  // of all ranks together
  // Bytes that rank 0 sent in the group of the shard, and of its experts' shard, by tag.
  std::map<std::string, int64_t> sent;
  int64_t stage_bytes = 0;  // that rank 0 sent to other stages in training passes
};

// Documents of unequal lengths, of which a budget of 24 tokens makes several micro-batches.
inline std::vector<sp::Document> uneven_documents(int64_t count = 9) {
  std::vector<sp::Document> all;
  for (int64_t d = 0; d < count; ++d) {
    std::vector<int64_t> ids{1, 2};
    for (int64_t i = 0; i < 4 + 3 * (d % 5); ++i) {
      ids.push_back((7 * i + 3 * d) % 19);
    }
    all.push_back(rl::make_scored_document(std::move(ids), 2));
  }
  return all;
}

// The loss that is trained: a scalar, differentiable.
inline at::Tensor entropy_loss(const engine::HeadOutput& output, const engine::Columns&) {
  // Entropies take part, so that both outputs of the head have a gradient.
  return -(output.logprobs_n + 0.1 * output.entropy_n).sum() / 60.0;
}

// Fixed corrections of a router's scores, fp64 [experts]. Wide enough to change the choice of
// experts.
inline at::Tensor router_correction(int64_t experts) {
  return at::arange(experts, at::kDouble).mul(1.7).sin().mul(0.3);
}

// Writes router_correction() into every layer of the decoder that has one.
inline void draw_corrections(engine::Decoder& decoder) {
  const at::NoGradGuard no_grad;
  for (engine::ParamUnit* unit : decoder.units()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      if (unit->specs()[i].name.ends_with("e_score_correction_bias")) {
        assign(unit->storage(), i, router_correction(unit->specs()[i].numel()));
      }
    }
  }
}

// This rank's stages of a model of random weights: one without a pipeline.
inline std::vector<std::unique_ptr<engine::Decoder>> random_stages(
    const ShardLayout& layout, const engine::ModelConfig& model,
    const engine::ComputeContext& context) {
  std::vector<std::unique_ptr<engine::Decoder>> stages;
  for (const engine::Stage& stage : engine::own_stages(model, context.pipeline.get())) {
    engine::RandomWeights draw(model, 3, 0.3);
    auto decoder = std::make_unique<engine::Decoder>(
        model, stage, context,
        engine::WeightStorage{
            .frozen = layout.lora_rank > 0, .projections = layout.base, .vision = layout.vision},
        std::ref(draw));
    draw_corrections(*decoder);
    if (layout.lora_rank > 0) {
      decoder->add_adapters({layout.lora_rank, 16.0, layout.lora_targets}).init_random(5);
    }
    decoder->set_activation_options(layout.activations);
    stages.push_back(std::move(decoder));
  }
  return stages;
}

// `steps` optimizer steps of the model on this rank. wire: dtype in which gradients are sent.
// Groups need those of rl::sharding_axes().
// Collective over: the world.
inline ShardOutcome train_sharded(const ShardLayout& layout, const engine::ModelConfig& model,
                                  at::ScalarType dtype, at::ScalarType wire, int64_t steps,
                                  const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
  rl::Config config;
  config.parallel = layout.config();
  config.model.dtype = dtype == at::kDouble     ? rl::DType::kFloat64
                       : dtype == at::kBFloat16 ? rl::DType::kBFloat16
                                                : rl::DType::kFloat32;
  config.model.offload_parameters = layout.offload_parameters;
  config.optimizer.offload = layout.offload;
  engine::ComputeContext context = rl::compute_context(config, groups);
  context.reduce = wire;
  if (context.pipeline != nullptr) {
    auto pipeline = std::make_shared<engine::Pipeline>(*context.pipeline);
    pipeline->schedule = layout.schedule;
    pipeline->shape.order = layout.schedule == sp::PipelineSchedule::kZeroBubbleV
                                ? sp::StageOrder::kVee
                                : sp::StageOrder::kLoop;
    pipeline->warm_up = layout.warm_up;
    context.pipeline = std::move(pipeline);
  }
  engine::ModelRunner runner(
      std::make_unique<engine::LanguageModel>(random_stages(layout, model, context)), groups,
      engine::AdamWOptions{.weight_decay = 0.1, .muon = layout.muon});
  runner.balance_experts(layout.balance);
  sp::SequenceOptions sequence;
  sequence.plan.ring_impl = layout.ring_impl;
  sequence.shared_prefix = layout.shared_prefix;
  sequence.placement = layout.placement;
  sequence.async_ulysses = layout.async_ulysses;
  if (layout.images) {
    runner.take_images(drawn_images(*model.vision));
  }
  std::vector<sp::Document> documents =
      layout.images ? image_documents(layout.documents) : uneven_documents(layout.documents);
  if (layout.further) {
    runner.predict_further_tokens(*layout.further);
    std::ranges::for_each(documents, sp::add_next_ids);
  }
  const rl::LocalBatch local{
      sp::collate(documents, mesh,
                  engine::collator_options(model, layout.micro_batch_tokens, sequence,
                                           engine::tensor_place(context))),
      0};
  const auto inputs = rl::model_inputs(local, {}, rl::column_dtype(dtype));
  ShardOutcome outcome;
  outcome.micro_batches = static_cast<int64_t>(inputs.size());
  at::Tensor empty = at::zeros({1}, at::kLong);
  for (const engine::ModelInput& input : inputs) {
    empty += input.batch->ids_s.numel() == 0 ? 1 : 0;
  }
  groups.control(sp::axes::kLoss)->all_reduce_sum(empty, "test");
  outcome.empty_micro_batches = empty.item<int64_t>();
  for (int64_t step = 0; step < steps; ++step) {
    at::Tensor loss =
        at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(groups.device()));
    const engine::SequenceWork work =
        runner.train(inputs, [&](const engine::HeadOutput& output, auto columns_n) {
          at::Tensor sum = entropy_loss(output, columns_n);
          loss += sum.detach().to(at::kDouble);
          return sum;
        });
    outcome.sent_bytes = work.sent_bytes;
    outcome.predicted_bytes = work.predicted_bytes;
    at::Tensor total = loss.cpu();
    groups.control(sp::axes::kEntries)->all_reduce_sum(total, "test");
    outcome.losses.push_back(total.item<double>());
    if (context.pipeline != nullptr) {
      // Before the step, which sends numbers of units too.
      outcome.stage_bytes += context.pipeline->line->sent_bytes().at(engine::kPipelineTag);
      context.pipeline->line->reset_counters();
    }
    const engine::StepResult result = runner.step(1e-2, 0.5);
    outcome.norms.push_back(result.grad_norm);
    if (result.balance_loss) {
      outcome.balance_losses.push_back(*result.balance_loss);
    }
    if (result.further_loss) {
      outcome.further_losses.push_back(*result.further_loss);
    }
  }
  outcome.sent = context.sharding->shard->sent_bytes();
  if (context.experts) {
    for (const auto& [tag, bytes] : context.experts->sharding->shard->sent_bytes()) {
      outcome.sent[tag] += bytes;
    }
  }
  if (context.pipeline == nullptr) {
    for (std::size_t unit = 0; unit < runner.decoder().parameters().export_plans().size(); ++unit) {
      outcome.weights.push_back(effective_values(runner.decoder(), unit).cpu().clone());
    }
    return outcome;
  }
  const auto stages = std::as_const(runner).model().stages();
  const engine::WeightSink take = [&](engine::UnitExport& units) {
    while (const auto unit = units.next()) {
      outcome.weights.push_back(unit->values().cpu().clone());
    }
  };
  engine::export_weights(engine::WeightView(stages), mesh.rank() == 0 ? take : engine::WeightSink(),
                         *groups.control(sp::axes::kWorld));
  return outcome;
}

}  // namespace ringside::test
