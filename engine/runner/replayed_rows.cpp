#include "engine/runner/replayed_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "engine/device/upload.h"
#include "engine/params/sharding.h"

namespace ringside::engine {
namespace {

// This rank's rows for each expert: int64 [L, X] on the host.
at::Tensor count_rows(const at::Tensor& routes_sLK, int64_t experts) {
  std::vector<at::Tensor> layers;
  for (int64_t layer = 0; layer < routes_sLK.size(1); ++layer) {
    layers.push_back(
        at::bincount(routes_sLK.select(1, layer).flatten().to(at::kLong), {}, experts));
    TORCH_CHECK(layers.back().numel() == experts, "replayed routes: expert ",
                layers.back().numel() - 1, " of a model with ", experts);
  }
  return at::stack(layers);
}

}  // namespace

ReplayedRows::ReplayedRows(std::span<const ModelInput> inputs, const Decoder& decoder,
                           const std::optional<c10::Stream>& stream) {
  const bool known = !inputs.empty() && std::ranges::all_of(inputs, [](const ModelInput& input) {
    return input.routes_sLK.defined();
  });
  if (!known) {
    return;
  }
  std::vector<at::Tensor> counts;
  for (const ModelInput& input : inputs) {
    counts.push_back(count_rows(
        own_rows(input.routes_sLK, row_parts(decoder.context(), input.batch->ids_s.size(0))),
        decoder.config().experts.count));
  }
  at::Tensor on_host = at::cat(counts), on_device = on_host;
  const auto& sharding = decoder.context().experts;
  if (sharding != nullptr && sharding->ranks->size() > 1) {
    Upload upload({&on_host, 1}, decoder.context().device, stream);
    on_device = exchange_row_counts(upload.take().front(), *sharding->ranks);
    on_host = on_device.cpu();
  }
  const int64_t layers = on_host.size(0) / static_cast<int64_t>(inputs.size());
  for (int64_t row = 0; row < on_host.size(0); ++row) {
    if (row % layers == 0) {
      counts_.emplace_back();
    }
    counts_.back().push_back({on_device.select(0, row), on_host.select(0, row)});
  }
}

}  // namespace ringside::engine
