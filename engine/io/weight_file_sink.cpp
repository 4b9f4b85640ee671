#include "engine/io/weight_file_sink.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "engine/io/stacked_experts.h"
#include "engine/io/weight_stream.h"

namespace ringside::engine {

void write_weight_files(UnitExport& units, const std::filesystem::path& dir, at::ScalarType storage,
                        int64_t max_shard_bytes, const KeptTensors& kept) {
  const StackedExperts stacked(units.weights().config());
  std::vector<SafetensorsEntry> entries;
  const auto add = [&](const ParamSpec& spec) {
    entries.push_back({spec.name, widened_dtype(spec, storage), spec.shape});
  };
  const std::vector<ParamSpec> specs = units.weights().specs();
  for (std::size_t i = 0; i < specs.size();) {
    if (stacked.holds(specs[i])) {
      std::ranges::for_each(stacked.specs(specs[i]), add);
      i += static_cast<std::size_t>(stacked.parameters());
    } else {
      add(specs[i++]);
    }
  }
  std::ranges::copy(kept.entries(), std::back_inserter(entries));
  WeightStream stream(dir, std::move(entries), max_shard_bytes);
  while (const auto unit = units.next()) {
    if (stacked.holds(unit->specs().front())) {
      for (const at::Tensor& stack : stacked.tensors(unit->values())) {
        stream.write(stack);
      }
      continue;
    }
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      stream.write(unit->tensor(i));
    }
  }
  kept.write(stream);
  stream.close();
}

}  // namespace ringside::engine
