#include "engine/models/whole_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace ringside::engine {

bool is_sharded(const Decoder& decoder) {
  const auto units = decoder.units();
  return std::ranges::any_of(units, [](const ParamUnit* unit) { return !is_whole(*unit); });
}

std::unique_ptr<Decoder> whole_copy(const Decoder& decoder) {
  const at::NoGradGuard no_grad;
  std::size_t next = 0;
  const auto copy = [&](ParamUnit& unit) { unit.flat().copy_(decoder.effective_values(next++)); };
  return std::make_unique<Decoder>(decoder.config(), whole_context(decoder.context()),
                                   WeightStorage{.frozen = true, .projections = {}}, copy);
}

void join_reading(const std::vector<const ParamUnit*>& units) {
  for (const ParamUnit* unit : units) {
    unit->gather_flat();
  }
}

}  // namespace ringside::engine
