#include "rl/trainer/run_ranks.h"

#include <utility>

#include "rl/trainer/waiting_round.h"
#include "sp/mesh/rank_work.h"

namespace ringside::rl {

RunRanks::RunRanks(const Config& config, const sp::Mesh& mesh, sp::ProcessGroups comms)
    : mesh_(mesh), comms_(std::move(comms)), round_(waiting_round(config)) {}

void RunRanks::on_every(const std::function<void()>& work) const {
  sp::run_rank_work(world(), round_, work);
}

void RunRanks::on_main(const std::function<void()>& work) const {
  on_every(is_main() ? work : std::function<void()>());
}

void RunRanks::export_weights(const engine::WeightView& weights,
                              const engine::WeightSink& sink) const {
  engine::export_weights(weights, sink, world(), round_);
}

}  // namespace ringside::rl
