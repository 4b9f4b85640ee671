#include "engine/runner/pipeline_units.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

namespace ringside::engine {
namespace {

constexpr const char* kTag = "units of stages";

// The unit of this name among the trained ones of a stage; null: none.
ParamUnit* unit_named(Decoder& stage, const char* name) {
  for (ParamUnit* unit : stage.trained_units()) {
    if (unit->name() == name) {
      return unit;
    }
  }
  return nullptr;
}

int64_t trained_units(Decoder& stage) { return std::ssize(stage.trained_units()); }

}  // namespace

PipelineUnits::PipelineUnits(HeadedModel& model, std::shared_ptr<sp::Communicator> control)
    : model_(model),
      pipeline_(model.trunk().context().pipeline.get()),
      control_(std::move(control)) {
  const ModelConfig& config = model.trunk().config();
  const bool is_shared =
      config.tie_word_embeddings && model.has_vocabulary() && model.trunk().adapters() == nullptr;
  if (pipeline_ == nullptr || !is_shared) {
    return;
  }
  for (Decoder* stage : model.stages()) {
    if (copies_embedding(config, stage->stage())) {
      copy_ = unit_named(*stage, "head");
    }
    if (stage->stage().embeds) {
      embedding_ = unit_named(*stage, "embedding");
    }
  }
  const int64_t first = pipeline_->shape.rank_of(0);
  const int64_t last = pipeline_->shape.rank_of(pipeline_->shape.stages() - 1);
  if (first != last && (copy_ != nullptr || embedding_ != nullptr)) {
    peer_ = embedding_ != nullptr ? last : first;
  }
}

PipelineUnits::Places PipelineUnits::exchange_places() const {
  const std::vector<Decoder*> stages = model_.stages();
  std::vector<int64_t> counts;
  for (Decoder* stage : stages) {
    counts.push_back(trained_units(*stage));
  }
  const int64_t of_stages = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  counts.back() += std::ssize(model_.units()) - of_stages;  // the head's own
  const at::Tensor all = control_->all_gather(at::tensor(counts, at::kLong), kTag);
  const sp::PipelineShape& shape = pipeline_->shape;
  std::vector<int64_t> begin_of(shape.stages() + 1, 0);
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    for (int64_t chunk = 0; chunk < shape.stages_per_rank; ++chunk) {
      begin_of[shape.stage_of(rank, chunk) + 1] = all[rank][chunk].item<int64_t>();
    }
  }
  for (std::size_t stage = 1; stage < begin_of.size(); ++stage) {
    begin_of[stage] += begin_of[stage - 1];
  }
  Places places{{}, counts, begin_of.back()};
  for (int64_t chunk = 0; chunk < shape.stages_per_rank; ++chunk) {
    places.begins.push_back(begin_of[shape.stage_of(pipeline_->line->rank(), chunk)]);
  }
  return places;
}

at::Tensor PipelineUnits::of_model(const at::Tensor& of_rank) {
  if (pipeline_ == nullptr) {
    return of_rank;
  }
  if (places_.all == 0) {
    places_ = exchange_places();
  }
  at::Tensor all = at::zeros({places_.all}, of_rank.options());
  int64_t next = 0;
  for (std::size_t chunk = 0; chunk < places_.counts.size(); ++chunk) {
    const int64_t count = places_.counts[chunk];
    all.narrow(0, places_.begins[chunk], count).copy_(of_rank.narrow(0, next, count));
    const std::vector<ParamUnit*> units = model_.units();
    for (int64_t u = 0; u < count; ++u) {
      if (is_copy(units[next + u])) {
        all[places_.begins[chunk] + u].zero_();
      }
    }
    next += count;
  }
  pipeline_->line->all_reduce_sum(all, kTag);
  return all;
}

at::Tensor PipelineUnits::sum_of_model(const at::Tensor& of_rank) const {
  at::Tensor sum = of_rank.sum().view({1});
  if (pipeline_ != nullptr) {
    pipeline_->line->all_reduce_sum(sum, kTag);
  }
  return sum;
}

void PipelineUnits::add_copies() const {
  if (embedding_ == nullptr && copy_ == nullptr) {
    return;
  }
  const at::NoGradGuard no_grad;
  const auto gradient = [this](const ParamUnit* unit) {
    return unit->grad().to(model_.trunk().context().device);
  };
  if (peer_ < 0) {
    const at::Tensor sum = gradient(embedding_) + gradient(copy_);
    embedding_->grad().copy_(sum);
    copy_->grad().copy_(sum);
    return;
  }
  const ParamUnit* here = embedding_ != nullptr ? embedding_ : copy_;
  const at::Tensor mine = gradient(here).contiguous();
  const at::Tensor other = at::empty_like(mine);
  const sp::PointToPoint ends[] = {{sp::PointToPoint::Kind::kSend, mine, peer_},
                                   {sp::PointToPoint::Kind::kReceive, other, peer_}};
  for (const auto& transfer : pipeline_->line->start_transfers(ends, kTag)) {
    transfer->wait();
  }
  here->grad().copy_(embedding_ != nullptr ? mine + other : other + mine);
}

}  // namespace ringside::engine
