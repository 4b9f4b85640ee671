// Figures of one rank as a test reads them.
#pragma once

#include "rl/losses/figures.h"
#include "sp/mesh/process_groups.h"

namespace ringside::test {

// Leaves none in `figures`.
inline rl::StepFigures fetched(rl::Figures& figures) {
  return rl::StepFigures::reduce(figures.take().fetch(),
                                 *sp::single_rank_groups().control(sp::axes::kLoss));
}

}  // namespace ringside::test
