#include "rl/config/checks.h"

#include "rl/config/sections.h"

namespace ringside::rl {

std::vector<Mistake> check_combinations(const Config& config) {
  std::vector<Mistake> mistakes;
  for (const auto check : {check_model_section, check_data_section, check_rollout_section,
                           check_output_sections, check_algorithm_section, check_parallel_sections,
                           check_training_sections, check_bridge_sections}) {
    check(config, mistakes);
  }
  return mistakes;
}

}  // namespace ringside::rl
