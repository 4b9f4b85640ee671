#include "sp/plan/stage_balance.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

namespace ringside::sp {
namespace {

// What stages cost, by their layers.
class StageCosts {
 public:
  StageCosts(const ModelParts& parts, int64_t stages)
      : parts_(parts), stages_(stages), before_(parts.layers.size() + 1) {
    for (std::size_t l = 0; l < parts.layers.size(); ++l) {
      before_[l + 1] = before_[l] + parts.layers[l];
    }
  }

  int64_t layers() const { return static_cast<int64_t>(parts_.layers.size()); }
  int64_t stages() const { return stages_; }

  // Nothing for a stage without a part of the model.
  std::optional<PartCost> of(int64_t stage, Range layers) const {
    const bool first = stage == 0, last = stage == stages_ - 1;
    if (layers.empty() && !first && !last) {
      return std::nullopt;
    }
    PartCost cost{before_[layers.end].work - before_[layers.begin].work,
                  before_[layers.end].bytes - before_[layers.begin].bytes};
    if (first) {
      cost = {cost.work + parts_.embedding.work, cost.bytes + parts_.embedding.bytes};
    }
    if (last) {
      cost = {cost.work + parts_.head.work, cost.bytes + parts_.head.bytes};
    }
    return cost;
  }

 private:
  struct Sum : PartCost {
    Sum operator+(const PartCost& other) const {
      return {{work + other.work, bytes + other.bytes}};
    }
  };
  const ModelParts& parts_;
  int64_t stages_;
  std::vector<Sum> before_;  // [L + 1] of the layers before
};

// The cuts of the layers into stages with the least cost.
struct Cuts {
  int64_t cost = 0;
  std::vector<Range> layers;  // [S]
};

// Cost of a stage; nothing where it is not allowed.
using StageCost = std::function<std::optional<int64_t>(const PartCost&)>;
// Cost of stages together: of those before, and the next one's.
using Together = int64_t (*)(int64_t, int64_t);

int64_t larger(int64_t a, int64_t b) { return std::max(a, b); }
int64_t sum(int64_t a, int64_t b) { return a + b; }

// Throws: std::logic_error when nothing is allowed.
Cuts cheapest_cuts(const StageCosts& costs, const StageCost& cost_of, Together together) {
  struct Best {
    int64_t cost = 0;
    int64_t begin = 0;  // of the last stage
  };
  const int64_t layers = costs.layers();
  // [S][L + 1] of the first stages up to a layer.
  std::vector<std::vector<std::optional<Best>>> best(costs.stages(),
                                                     std::vector<std::optional<Best>>(layers + 1));
  for (int64_t stage = 0; stage < costs.stages(); ++stage) {
    for (int64_t end = 0; end <= layers; ++end) {
      std::optional<Best>& here = best[stage][end];
      for (int64_t begin = 0; begin <= (stage == 0 ? 0 : end); ++begin) {
        const std::optional<PartCost> part = costs.of(stage, {begin, end});
        const std::optional<int64_t> own = part ? cost_of(*part) : std::nullopt;
        if (!own || (stage > 0 && !best[stage - 1][begin])) {
          continue;
        }
        const int64_t all = stage == 0 ? *own : together(best[stage - 1][begin]->cost, *own);
        if (!here || all < here->cost) {
          here = Best{all, begin};
        }
      }
    }
  }
  Cuts cuts;
  int64_t end = layers;
  for (int64_t stage = costs.stages() - 1; stage >= 0; --stage) {
    const std::optional<Best>& last = best[stage][end];
    if (!last) {
      throw std::logic_error("stages: no cut of the layers is allowed");
    }
    cuts.cost = stage == costs.stages() - 1 ? last->cost : cuts.cost;
    cuts.layers.insert(cuts.layers.begin(), Range{last->begin, end});
    end = last->begin;
  }
  return cuts;
}

void check_parts(const ModelParts& parts) {
  constexpr int64_t kMost = int64_t{1} << 31;
  int64_t work = 0;
  const auto check = [&](const PartCost& part) {
    if (part.work < 0 || part.bytes < 0) {
      throw std::invalid_argument("stages: a part's work and bytes must not be negative, got " +
                                  std::to_string(part.work) + " and " + std::to_string(part.bytes));
    }
    work = std::min(kMost, part.work) + work;
    if (work >= kMost) {
      throw std::invalid_argument("stages: all work together is 2^31 or more; use a larger unit");
    }
  };
  check(parts.embedding);
  check(parts.head);
  std::for_each(parts.layers.begin(), parts.layers.end(), check);
}

}  // namespace

StageBalance balance_stages(const ModelParts& parts, int64_t stages) {
  check_parts(parts);
  const int64_t most = static_cast<int64_t>(parts.layers.size()) + 2;
  if (stages < 1 || stages > most) {
    throw std::invalid_argument("stages: " + std::to_string(parts.layers.size()) +
                                " layers, an embedding and a head make 1 to " +
                                std::to_string(most) + " stages, got " + std::to_string(stages));
  }
  const StageCosts costs(parts, stages);
  const int64_t work = cheapest_cuts(
                           costs, [](const PartCost& c) { return std::optional(c.work); }, larger)
                           .cost;
  const auto bytes_within_work = [&](const PartCost& c) {
    return c.work <= work ? std::optional(c.bytes) : std::nullopt;
  };
  const int64_t bytes = cheapest_cuts(costs, bytes_within_work, larger).cost;
  const auto square_within_both = [&](const PartCost& c) {
    return c.work <= work && c.bytes <= bytes ? std::optional(c.work * c.work) : std::nullopt;
  };
  return {cheapest_cuts(costs, square_within_both, sum).layers, work};
}

std::vector<int64_t> bytes_of_ranks(const ModelParts& parts, const std::vector<Range>& stages,
                                    const PipelineShape& shape) {
  if (static_cast<int64_t>(stages.size()) != shape.stages()) {
    throw std::invalid_argument("stages: layers of " + std::to_string(stages.size()) +
                                " stages for a pipeline of " + std::to_string(shape.stages()));
  }
  std::vector<int64_t> bytes(shape.ranks, 0);
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    for (int64_t l = stages[stage].begin; l < stages[stage].end; ++l) {
      bytes[shape.rank_of(stage)] += parts.layers.at(l).bytes;
    }
  }
  const int64_t first = shape.rank_of(0), last = shape.rank_of(shape.stages() - 1);
  bytes[first] += parts.embedding.bytes;
  bytes[last] += parts.tied && first == last ? 0 : parts.head.bytes;
  return bytes;
}

}  // namespace ringside::sp
