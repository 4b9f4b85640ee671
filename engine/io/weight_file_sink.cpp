#include "engine/io/weight_file_sink.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "engine/io/weight_stream.h"

namespace ringside::engine {

void write_weight_files(UnitExport& units, const std::filesystem::path& dir, at::ScalarType storage,
                        int64_t max_shard_bytes) {
  std::vector<SafetensorsEntry> entries;
  for (const ParamSpec& spec : units.weights().specs()) {
    entries.push_back({spec.name, widened_dtype(spec, storage), spec.shape});
  }
  WeightStream stream(dir, std::move(entries), max_shard_bytes);
  while (const auto unit = units.next()) {
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      stream.write(unit->tensor(i));
    }
  }
  stream.close();
}

}  // namespace ringside::engine
