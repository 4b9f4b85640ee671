#include "engine/architectures/architecture.h"

#include <algorithm>
#include <iterator>

#include "engine/architectures/multimodal.h"

namespace ringside::engine {

#define RINGSIDE_FAMILY(architecture) extern const Architecture architecture;
#include "engine/architectures/families.inc"
#undef RINGSIDE_FAMILY

namespace {

constexpr const Architecture* kTable[] = {
#define RINGSIDE_FAMILY(architecture) &architecture,
#include "engine/architectures/families.inc"
#undef RINGSIDE_FAMILY
};

}  // namespace

std::span<const Architecture* const> architectures() { return kTable; }

const Architecture* find_architecture(const std::string& model_type) {
  const auto* const found = std::ranges::find_if(
      kTable, [&](const Architecture* one) { return model_type == one->model_type; });
  return found == std::end(kTable) ? nullptr : *found;
}

std::string architecture_names() {
  std::string names = kTable[0]->model_type;
  for (std::size_t i = 1; i < std::size(kTable); ++i) {
    names.append(i + 1 == std::size(kTable) ? " or " : ", ").append(kTable[i]->model_type);
  }
  for (const MultimodalType& one : multimodal_types()) {
    names.append(", or ").append(one.model_type).append(" (its text part)");
  }
  return names;
}

}  // namespace ringside::engine
