#include "engine/runner/device_batches.h"

#include <iterator>
#include <utility>

namespace ringside::engine {

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
  const sp::MicroBatch& batch = *input.batch;
  std::vector<at::Tensor> host{
      batch.ids_s,    batch.positions_s, batch.copies_s,      batch.share_positions_S,
      batch.source_n, batch.target_n,    input.temperature_n, input.routes_sLK};
  host.insert(host.end(), input.columns_n.begin(), input.columns_n.end());
  upload_.emplace(host, device_, stream_);
}

DeviceBatch DeviceBatches::next() {
  TORCH_CHECK(upload_, "device batches: all ", inputs_.size(), " inputs were taken");
  std::vector<at::Tensor> tensors = upload_->take();
  const bool records_routes = inputs_[started_ - 1].records_routes;
  start();
  DeviceBatch batch{tensors[0], tensors[1], tensors[2], tensors[3],     tensors[4],
                    tensors[5], tensors[6], tensors[7], records_routes, {}};
  batch.columns_n.assign(std::make_move_iterator(tensors.begin() + 8),
                         std::make_move_iterator(tensors.end()));
  return batch;
}

}  // namespace ringside::engine
