#include "engine/runner/sequence_parallel_delta.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "engine/device/table_upload.h"
#include "engine/nn/gated_delta.h"
#include "sp/heads/head_functions.h"

namespace ringside::engine {

PreparedState::PreparedState(std::shared_ptr<const sp::StatePlan> plan, c10::Device device)
    : plan_(std::move(plan)) {
  std::vector<sp::Range> rows;
  std::vector<RecurrentRun> runs;
  for (const sp::StatePlan::Run& run : plan_->runs) {
    rows.push_back(run.rows);
    runs.push_back({run.rows.begin, run.rows.end, run.after});
  }
  conv_ = std::make_shared<const ConvTables>(rows, plan_->halo, plan_->shape.conv_taps,
                                             plan_->share_rows, device);
  chunks_ = std::make_shared<const ChunkTables>(runs, plan_->share_rows, device);
  TableUpload tables;
  if (plan_->rows_travel) {
    tables.add(sp::sent_rows(*plan_), sent_rows_);
  }
  if (plan_->maps_travel) {
    prepare_maps(rows, tables, device);
  }
  tables.upload(device);
}

void PreparedState::prepare_maps(const std::vector<sp::Range>& rows, TableUpload& tables,
                                 c10::Device device) {
  std::vector<RecurrentRun> mapped;
  std::vector<int64_t> mapped_rows;
  for (const int64_t run : plan_->mapped_runs) {
    const auto begin = static_cast<int64_t>(mapped_rows.size());
    for (int64_t row = rows[run].begin; row < rows[run].end; ++row) {
      mapped_rows.push_back(row);
    }
    mapped.push_back({begin, static_cast<int64_t>(mapped_rows.size()), -1});
  }
  const auto count = static_cast<int64_t>(mapped_rows.size());
  mapped_ = std::make_shared<const ChunkTables>(mapped, count, device);
  if (count < plan_->share_rows) {
    tables.add(mapped_rows, mapped_rows_);
  }
}

SequenceParallelDelta::SequenceParallelDelta(std::shared_ptr<const PreparedState> prepared,
                                             std::shared_ptr<sp::Communicator> ulysses,
                                             std::shared_ptr<sp::Communicator> ring)
    : prepared_(std::move(prepared)),
      context_{prepared_->plan(), prepared_->sent_rows(), std::move(ulysses), std::move(ring)} {}

at::Tensor SequenceParallelDelta::starts_of(const DeltaRows& rows) const {
  if (prepared_->mapped() == nullptr) {
    return {};
  }
  const auto mapped = [&](const at::Tensor& x) {
    return prepared_->mapped_rows().defined() ? x.index_select(0, prepared_->mapped_rows()) : x;
  };
  const DeltaMaps maps = delta_maps(
      {{}, mapped(rows.k_SkK), mapped(rows.v_ShV), mapped(rows.g_Sh), mapped(rows.beta_Sh)},
      prepared_->mapped());
  return sp::start_states(maps.added_rhKV, maps.transition_rhKK, context_);
}

at::Tensor SequenceParallelDelta::mix(int64_t /*layer*/, const GatedDelta& net) {
  const sp::StatePlan& plan = *prepared_->plan();
  TORCH_CHECK(net.shape == plan.shape, "delta net: the plan is for other heads");
  const sp::Range own = plan.own_groups();
  const auto of_groups = [&](const at::Tensor& x) { return x.narrow(0, own.begin, own.size()); };
  const at::Tensor channels =
      sp::gather_seq_scatter_heads(net.channels_sGC, 0, 1, context_.ulysses, plan.ulysses_rows);
  const at::Tensor conv_in = conv_channels(net.shape, channels);
  const at::Tensor convolved =
      causal_conv_silu(conv_in, sp::rows_of_other_ranks(conv_in, context_),
                       of_groups(net.conv_GcT).flatten(0, 1), prepared_->conv());
  const DeltaRows rows = delta_rows(net.shape, channels, convolved, of_groups(net.log_decay_Gv),
                                    of_groups(net.decay_bias_Gv));
  const at::Tensor out = delta_rule(rows, prepared_->chunks(), starts_of(rows)).out_ShV;
  std::vector<int64_t> groups;
  for (const sp::Range& range : plan.groups_of) {
    groups.push_back(range.size());
  }
  return sp::gather_heads_scatter_seq(
      out.reshape({plan.share_rows, own.size(), net.shape.out_channels()}), 1, 0, context_.ulysses,
      plan.ulysses_rows, groups);
}

}  // namespace ringside::engine
