#include "engine/runner/device_batches.h"

#include <array>
#include <iterator>
#include <utility>

namespace ringside::engine {
namespace {

// A tensor that every input brings to the device: where it is taken from, and where it goes.
struct Row {
  at::Tensor (*of)(const ModelInput& input);
  at::Tensor DeviceBatch::*to;
};

template <at::Tensor sp::MicroBatch::*kMember>
at::Tensor of_batch(const ModelInput& input) {
  return input.batch->*kMember;
}

constexpr std::array kRows = {
    Row{of_batch<&sp::MicroBatch::ids_s>, &DeviceBatch::ids_s},
    Row{of_batch<&sp::MicroBatch::positions_s>, &DeviceBatch::positions_s},
    Row{of_batch<&sp::MicroBatch::copies_s>, &DeviceBatch::copies_s},
    Row{of_batch<&sp::MicroBatch::share_positions_S>, &DeviceBatch::share_positions_S},
    Row{of_batch<&sp::MicroBatch::source_n>, &DeviceBatch::source_n},
    Row{of_batch<&sp::MicroBatch::target_n>, &DeviceBatch::target_n},
    Row{[](const ModelInput& input) { return input.temperature_n; }, &DeviceBatch::temperature_n},
    Row{[](const ModelInput& input) { return input.routes_sLK; }, &DeviceBatch::routes_sLK},
};

}  // namespace

DeviceBatches::DeviceBatches(std::span<const ModelInput> inputs, c10::Device device,
                             const std::optional<c10::Stream>& stream)
    : inputs_(inputs), device_(device), stream_(stream) {
  start();
}

void DeviceBatches::start() {
  upload_.reset();
  if (started_ == inputs_.size()) {
    return;
  }
  const ModelInput& input = inputs_[started_++];
  std::vector<at::Tensor> host;
  for (const Row& row : kRows) {
    host.push_back(row.of(input));
  }
  for (const auto& [name, values_n] : input.columns.all()) {
    host.push_back(values_n);
  }
  upload_.emplace(host, device_, stream_);
}

DeviceBatch DeviceBatches::next() {
  TORCH_CHECK(upload_, "device batches: all ", inputs_.size(), " inputs were taken");
  std::vector<at::Tensor> tensors = upload_->take();
  const ModelInput& input = inputs_[started_ - 1];
  start();
  DeviceBatch batch;
  batch.records_routes = input.records_routes;
  auto next = std::make_move_iterator(tensors.begin());
  for (const Row& row : kRows) {
    batch.*row.to = *next++;
  }
  for (const auto& [name, values_n] : input.columns.all()) {
    batch.columns.set(name, *next++);
  }
  return batch;
}

}  // namespace ringside::engine
