#include "engine/runner/device_batches.h"

#include <array>
#include <iterator>
#include <utility>

#include "sp/batch/next_ids.h"

namespace ringside::engine {
namespace {

// An input, and what this tensor rank has of it.
struct HostInput {
  const ModelInput& input;
  const RowParts& rows;
  const TensorEntries& entries;

  // Of rows of the residual stream. x_s: undefined, or of all rows.
  at::Tensor own(const at::Tensor& x_s) const { return x_s.defined() ? own_rows(x_s, rows) : x_s; }
};

// A tensor that every input brings to the device: where it is taken from, and where it goes.
struct Row {
  at::Tensor (*of)(const HostInput& host);
  at::Tensor DeviceBatch::*to;
};

template <at::Tensor sp::MicroBatch::*kMember>
at::Tensor of_batch(const HostInput& host) {
  return host.input.batch->*kMember;
}

at::Tensor source_of(const HostInput& host) {
  return host.rows.is_cut() ? host.entries.source_m : host.input.batch->source_n;
}

constexpr std::array kRows = {
    Row{of_batch<&sp::MicroBatch::ids_s>, &DeviceBatch::ids_s},
    Row{[](const HostInput& host) {
          const sp::MicroBatch& batch = *host.input.batch;
          return batch.positions_3s.defined() ? batch.positions_3s : batch.positions_s;
        },
        &DeviceBatch::positions_s},
    Row{[](const HostInput& host) { return host.own(host.input.batch->copies_s); },
        &DeviceBatch::copies_s},
    Row{[](const HostInput& host) {
          const sp::MicroBatch& batch = *host.input.batch;
          return batch.share_positions_3S.defined() ? batch.share_positions_3S
                                                    : batch.share_positions_S;
        },
        &DeviceBatch::share_positions_S},
    Row{source_of, &DeviceBatch::source_n},
    Row{of_batch<&sp::MicroBatch::target_n>, &DeviceBatch::target_n},
    Row{[](const HostInput& host) { return host.input.temperature_n; },
        &DeviceBatch::temperature_n},
    Row{[](const HostInput& host) { return host.own(host.input.routes_sLK); },
        &DeviceBatch::routes_sLK},
    Row{[](const HostInput& host) {
          const auto& fields = host.input.batch->fields;
          const auto found = fields.find(sp::kNextIdField);
          return found != fields.end() ? found->second.view({-1}) : at::Tensor();
        },
        &DeviceBatch::next_s},
    Row{of_batch<&sp::MicroBatch::further_source_m>, &DeviceBatch::further_source_m},
    Row{of_batch<&sp::MicroBatch::further_target_m>, &DeviceBatch::further_target_m},
};

}  // namespace

DeviceBatches::DeviceBatches(std::span<const ModelInput> inputs, c10::Device device,
                             const std::optional<c10::Stream>& stream,
                             std::shared_ptr<sp::Communicator> tensor)
    : inputs_(inputs), device_(device), stream_(stream), tensor_(std::move(tensor)) {
  start();
}

void DeviceBatches::start() {
  upload_.reset();
  if (started_ == inputs_.size()) {
    return;
  }
  const ModelInput& input = inputs_[started_++];
  divided_.rows = even_rows(tensor_, input.batch->ids_s.size(0));
  if (divided_.rows.is_cut()) {
    divided_.entries = divide_entries(input.batch->source_n, divided_.rows);
  }
  divided_.kept = input.kept.any() && divided_.rows.is_cut()
                      ? arranged(input.kept, divided_.entries.entry_n)
                      : input.kept;
  std::vector<at::Tensor> host;
  for (const Row& row : kRows) {
    host.push_back(row.of({input, divided_.rows, divided_.entries}));
  }
  host.push_back(divided_.entries.entry_n);
  host.push_back(divided_.entries.place_n);
  host.push_back(divided_.kept.entry_m);
  host.push_back(divided_.kept.word_m);
  for (const auto& [name, values_n] : input.columns.all()) {
    host.push_back(values_n);
  }
  upload_.emplace(host, device_, stream_);
}

DeviceBatch DeviceBatches::next() {
  TORCH_CHECK(upload_, "device batches: all ", inputs_.size(), " inputs were taken");
  std::vector<at::Tensor> tensors = upload_->take();
  const ModelInput& input = inputs_[started_ - 1];
  DeviceBatch batch;
  batch.rows = divided_.rows;
  batch.entries.ranks = {tensor_, divided_.entries.entries_of};
  batch.kept.begin = divided_.kept.begin;
  start();
  batch.records_routes = input.records_routes;
  batch.scores_whole = input.scores_whole;
  auto next = std::make_move_iterator(tensors.begin());
  for (const Row& row : kRows) {
    batch.*row.to = *next++;
  }
  batch.entries.entry_n = *next++;
  batch.entries.place_n = *next++;
  batch.kept.entry_m = *next++;
  batch.kept.word_m = *next++;
  for (const auto& [name, values_n] : input.columns.all()) {
    batch.columns.set(name, *next++);
  }
  return batch;
}

}  // namespace ringside::engine
