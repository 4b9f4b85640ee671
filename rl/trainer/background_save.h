// Saving of a checkpoint in the background of training, one at a time. Every rank writes its part
// with a thread of its own. When all have ended, rank 0 writes the manifest and renames.
//
//   start()    every rank copies its slices to host memory; its thread writes and hashes them
//   advance()  at a step's end: all parts are written -> ranks exchange sizes and hashes, and rank
//              0's thread commits; committed -> the save is complete
//   finish()   the same, waiting
//
// The ranks agree on each transition by the status that they exchange at every step's end.
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "engine/params/named_slice.h"
#include "rl/checkpoint/manifest.h"
#include "rl/checkpoint/part_file.h"
#include "rl/publish/job_thread.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

class BackgroundSave {
 public:
  struct Request {
    std::filesystem::path dir;
    CheckpointManifest manifest;  // without parts
    std::vector<engine::NamedSlice> slices;
    // Adds further files to the directory before the commit. Called by rank 0's thread, which must
    // not touch the models.
    std::function<void(const std::filesystem::path&)> add_files;
    // Called by rank 0's thread after the commit.
    std::function<void()> after_commit;
  };
  // A rank's part in the step end's exchange; over ranks, the maximum counts.
  struct Status {
    int64_t working = 0;  // 1: the thread of a rank works
    int64_t failed = 0;   // above 0: a rank has failed; the lower the rank, the higher
  };
  // Seconds, summed over the saves.
  struct Figures {
    int64_t saves = 0;
    double copying = 0.0;  // training waited for the copies to host memory
    double waiting = 0.0;  // training waited for an earlier save, or at its end
  };

  // round: as of run_rank_work. before_writing: called by each rank's thread before it writes; may
  // be empty.
  BackgroundSave(std::shared_ptr<sp::Communicator> world, std::chrono::milliseconds round,
                 std::function<void(int64_t step)> before_writing);

  bool is_idle() const { return phase_ == Phase::kIdle; }
  // How far this rank's part is. Keeps the exception of a failed save for advance().
  Status status();

  // Call on all ranks with the maxima of their status. Returns whether the save is now complete.
  // Collective over: the world, if all parts are written.
  // Blocks: never for the disk.
  // Throws: the failure of this rank, or RankFailed.
  bool advance(const Status& of_all);

  // Copies the slices and starts to write. The save must be idle. `tag` names the temporary
  // directory: the same on every rank, another for each save of a run.
  // Blocks: until the copies are in host memory.
  // Throws: c10::Error when a save is in progress.
  void start(Request request, int64_t tag);

  // Waits until the save is complete; returns whether there was one.
  // Collective over: the world.
  // Throws: as advance.
  bool finish();

  const Figures& figures() const { return figures_; }

 private:
  enum class Phase { kIdle, kWriting, kCommitting };

  void submit(std::function<void()> write);
  void exchange_parts();
  void start_commit();
  void wait_for_thread();

  std::shared_ptr<sp::Communicator> world_;
  std::chrono::milliseconds round_;
  std::function<void(int64_t)> before_writing_;
  Phase phase_ = Phase::kIdle;
  Request request_;
  std::filesystem::path temporary_;
  HostCopy copy_;
  PartFile part_;  // this rank's; written by the thread
  std::exception_ptr failure_;
  Figures figures_;
  JobThread thread_;  // last: it uses all of the above
};

}  // namespace ringside::rl
