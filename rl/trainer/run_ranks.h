// Ranks of a run: this rank's place among them, their process groups, and work that one or all of
// them do while the others wait.
#pragma once

#include <chrono>
#include <functional>

#include "engine/models/weight_export.h"
#include "rl/config/config.h"
#include "sp/mesh/mesh.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

// Thread safety: none; one thread of a rank.
class RunRanks {
 public:
  // Does not communicate.
  RunRanks(const Config& config, const sp::Mesh& mesh, sp::ProcessGroups comms);

  const sp::Mesh& mesh() const { return mesh_; }
  const sp::ProcessGroups& comms() const { return comms_; }
  // All ranks, for host numbers.
  sp::Communicator& world() const { return *comms_.control(sp::axes::kWorld); }
  // waiting_round() of the run.
  std::chrono::milliseconds round() const { return round_; }
  // Rank 0 has the run's files and sockets.
  bool is_main() const { return mesh_.rank() == 0; }

  // sp::run_rank_work() over the world: `work` runs on every rank, or on rank 0 only.
  // Collective over: the world.
  // Blocks: until the work of all ranks is done.
  // Throws: as sp::run_rank_work().
  void on_every(const std::function<void()>& work) const;
  void on_main(const std::function<void()>& work) const;
  // engine::export_weights() over the world.
  void export_weights(const engine::WeightView& weights, const engine::WeightSink& sink) const;

 private:
  sp::Mesh mesh_;
  sp::ProcessGroups comms_;
  std::chrono::milliseconds round_;
};

}  // namespace ringside::rl
