// What makes an acknowledged rollout survive kill -9: an append-only file of checksummed records,
// written before the acknowledgement and read back at the next start.
//
// A file is "RSJRNL01" and then records: u32 payload bytes, u32 kind, u64 XXH3-64 of kind and
// payload, payload. Kinds: 1 run id (always the first record), 2 rollout (a flat ROLLOUT message),
// 3 consumed groups (pairs of int64, half-open ranges), 4 reopened groups, 5 granted groups (both
// in the same form). All integers little-endian.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/base/file_system.h"
#include "rollout_bridge/base/id_set.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// When appended records reach the disk itself. kOff and kInterval survive the death of the process
// (the page cache does), only kEvery survives the death of the machine without loss.
enum class FsyncPolicy { kEvery, kInterval, kOff };

class Journal {
 public:
  struct Options {
    std::filesystem::path directory;  // created; holds journal.bin
    std::string run_id;
    FsyncPolicy fsync = FsyncPolicy::kInterval;
    std::chrono::milliseconds fsync_interval{1000};
    uint64_t compact_bytes = 64u * 1024 * 1024;  // rewrite when this much of the file is dead
    uint64_t max_bytes = 0;                      // of the file; 0: no limit but the disk's
    Limits limits{};
    std::shared_ptr<FileSystem> files = posix_file_system();
  };

  // Opens or creates the file, takes its lock, replays it. A torn or damaged record and all behind
  // it are cut off (their groups are sampled again) and counted in truncated_bytes(). Throws
  // std::runtime_error when the file belongs to another run, is not a journal, or is held by
  // another process.
  explicit Journal(Options options);

  // Rollouts journalled earlier and not consumed, in file order; empty at the second call.
  std::vector<Rollout> take_replayed();
  uint64_t truncated_bytes() const { return truncated_bytes_; }
  // Whole records that hold no rollout, as another version of the program may write them; they are
  // passed over. "" when there is none, else how many and why the first is none.
  std::string unreadable() const;
  const IdSet& consumed() const { return consumed_; }
  const IdSet& granted() const { return granted_; }
  uint64_t file_bytes() const { return file_bytes_; }

  // Appends a rollout's flat message. On success the record is in the file. kBusy, with the file
  // and the cause, when there is no room for it: at max_bytes, on a full disk, beyond a quota or
  // RLIMIT_FSIZE (whose signal, SIGXFSZ, the process must ignore). The file is then as it was, and
  // the same call may succeed later. Other trouble throws std::system_error.
  [[nodiscard]] Status append(int64_t group_id, std::span<const uint8_t> flat_rollout);
  // The groups are part of a durable checkpoint: their rollouts are dropped, and remembered as used
  // up. Without room for the record it is written before the next rollout, or lost with the
  // process: then the groups' rollouts come back, which is no loss either.
  void consume(std::span<const int64_t> group_ids);
  // The trainer went back behind this group: forget that it was consumed. Without room as above.
  void reopen(int64_t group_id);
  // The groups are granted: a later start takes rollouts of this one for them. Without room as
  // above; what is lost with the process is sampled again.
  void grant(std::span<const int64_t> group_ids);
  // Calls fdatasync when the policy's interval has passed. Cheap otherwise. Throws
  // std::system_error: records that were acknowledged may not reach the disk.
  void tick(std::chrono::steady_clock::time_point now);

 private:
  enum class Kind : uint32_t { kRun = 1, kRollout = 2, kConsumed = 3, kReopened = 4, kGranted = 5 };
  struct Extent {
    uint64_t offset;
    uint64_t bytes;
  };

  void replay();
  void replay_record(Kind kind, std::span<const std::byte> payload, Extent extent,
                     std::vector<Rollout>& live);
  void replay_rollout(std::span<const std::byte> payload, Extent extent,
                      std::vector<Rollout>& live);
  Result<Rollout> read_rollout(std::span<const std::byte> payload) const;
  void replay_consumed(int64_t begin, int64_t end);
  Status write_record(Kind kind, std::span<const std::byte> payload);
  void write_run_id();
  Status write_deferred();
  Status room_for(uint64_t record_bytes);
  void compact();
  uint64_t write_living(File& fresh, std::map<int64_t, std::vector<Extent>>& moved) const;

  Options options_;
  std::unique_ptr<File> file_;
  uint64_t file_bytes_ = 0;
  uint64_t dead_bytes_ = 0;
  uint64_t truncated_bytes_ = 0;
  uint64_t unreadable_ = 0;
  std::string first_unreadable_;
  IdSet consumed_;
  IdSet granted_;
  std::map<int64_t, std::vector<Extent>> live_;  // group -> its records, whole
  std::vector<Rollout> replayed_;
  std::deque<std::pair<Kind, std::vector<int64_t>>> deferred_;  // records that found no room yet
  bool unsynced_ = false;
  std::chrono::steady_clock::time_point last_sync_{};
};

}  // namespace ringside::bridge
