// Write-ahead journal of accepted rollouts and the images that they name: an append-only file of
// checksummed records.
//
// A record is written before the rollout is acknowledged, so an acknowledged rollout survives kill
// -9. The next start replays the file.
//
// An image stands there once, before the first rollout that names it, as long as a rollout that is
// not consumed names it. Afterwards it stays until the file is rewritten. Images are read back when
// they are asked for; they are not held in memory.
//
// Format: "RSJRNL01", then records. A record is u32 payload bytes, u32 kind, u64 XXH3-64 of the
// payload seeded with the kind, payload. All integers are little-endian.
// Kinds: 1 run id (always the first record); 2 rollout (a flat ROLLOUT message); 3 consumed groups,
// 4 reopened groups, 5 granted groups (each: pairs of int64, half-open ranges); 6 image (a flat
// IMAGE message).
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
#include "rollout_bridge/base/fsync_policy.h"
#include "rollout_bridge/base/id_set.h"
#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/living_records.h"

namespace ringside::bridge {

// What the owner of a journal chooses.
struct JournalSettings {
  std::filesystem::path directory = {};  // created; holds journal.bin
  FsyncPolicy fsync = FsyncPolicy::kInterval;
  std::chrono::milliseconds fsync_interval{1000};
  uint64_t compact_bytes = 64u * 1024 * 1024;  // rewrite when this much of the file is dead
  uint64_t max_bytes = uint64_t{16} << 30;     // of the file; 0: no limit but the disk's
  std::shared_ptr<FileSystem> files = posix_file_system();
};

class Journal {
 public:
  struct Options : JournalSettings {
    std::string run_id = {};
    Limits limits = {};
  };

  // Opens or creates the file, locks it and replays it. Cuts off the first torn or damaged record
  // and all that follow; counts them in truncated_bytes(). Their groups are sampled again. What is
  // replayed is durable, but with fsync off.
  // Throws: std::runtime_error when the file belongs to another run, is not a journal, or is locked
  // by another process.
  explicit Journal(Options options);

  // A rollout of the file, decoded and as it stands there.
  struct Record {
    Rollout rollout;
    FlatRollout message;
  };
  // Replayed rollouts that are not consumed, in file order. Empty at the second call.
  std::vector<Record> take_replayed();
  // Frees the room of replayed rollouts that no start can use any more, by their places in
  // take_replayed(). Call it once, before append() and consume(). Nothing is written: a start that
  // finds them again drops them again.
  void drop_replayed(std::span<const std::size_t> places);
  uint64_t truncated_bytes() const { return truncated_bytes_; }
  // Describes intact records that cannot be read as rollouts, as another version of the program may
  // have written them. They are skipped. "" when there are none; otherwise their number and the
  // first one's error.
  std::string unreadable() const;
  const IdSet& consumed() const { return consumed_; }
  const IdSet& granted() const { return granted_; }
  uint64_t file_bytes() const { return file_bytes_; }

  // An image that a rollout names. message: null where the journal has it.
  struct NamedImage {
    std::string hash;
    std::shared_ptr<const FlatImage> message = {};
  };
  // Appends a rollout's flat message, after the images that the journal does not have. On success
  // all of it is in the file.
  // Errors: kBusy, with the file and the cause, when there is no room: max_bytes, a full disk, a
  // quota or RLIMIT_FSIZE (the process must ignore its signal, SIGXFSZ). The rollout is then not in
  // the file, and a later call may succeed.
  // Throws: std::system_error on other failures; std::invalid_argument for an image that is neither
  // here nor in the journal.
  [[nodiscard]] Status append(int64_t group_id, std::span<const uint8_t> flat_rollout,
                              std::span<const NamedImage> images = {});
  bool has_image(const std::string& hash) const { return records_.has_image(hash); }
  // The flat message of an image, from the file.
  // Throws: std::out_of_range for one that the journal does not have; std::runtime_error when the
  // file does not hold what was written.
  FlatImage read_image(const std::string& hash) const;
  // Marks groups as consumed: a durable checkpoint contains them. Drops their rollouts. Without
  // room, the record is deferred until the next append. If the process dies first, the next start
  // replays these rollouts; nothing is lost.
  void consume(std::span<const int64_t> group_ids);
  // Marks a consumed group as open again, because the trainer resumed from before it. Deferred
  // without room.
  void reopen(int64_t group_id);
  // Marks groups as granted, so that a later start accepts rollouts of this start for them.
  // Deferred without room. If the record is lost, the samples are generated again.
  void grant(std::span<const int64_t> group_ids);
  // Calls fdatasync when the policy's interval has passed; otherwise cheap.
  // Throws: std::system_error; records that were acknowledged may then not be on disk.
  void tick(std::chrono::steady_clock::time_point now);

 private:
  enum class Kind : uint32_t {
    kRun = 1,
    kRollout = 2,
    kConsumed = 3,
    kReopened = 4,
    kGranted = 5,
    kImage = 6
  };
  struct Replayed {
    Record record;
    Extent extent;
  };
  struct PassedOver {  // intact records that cannot be read
    uint64_t count = 0;
    std::string first;  // its error
  };

  void begin();
  void replay();
  void replay_record(Kind kind, std::span<const std::byte> payload, Extent extent,
                     std::vector<Replayed>& live);
  void replay_rollout(std::span<const std::byte> payload, Extent extent,
                      std::vector<Replayed>& live);
  void replay_image(std::span<const std::byte> payload, Extent extent);
  void pass_over(const Error& error, const Extent& extent);
  Status write_record(Kind kind, std::span<const std::byte> payload);
  void write_run_id();
  Status write_deferred();
  Status write_images(std::span<const NamedImage> images);
  Status room_for(uint64_t record_bytes);
  void compact();

  Options options_;
  std::unique_ptr<File> file_;
  uint64_t file_bytes_ = 0;
  LivingRecords records_;
  uint64_t truncated_bytes_ = 0;
  PassedOver passed_over_;
  IdSet consumed_;
  IdSet granted_;
  std::vector<Record> replayed_;
  std::vector<std::pair<int64_t, Extent>> replayed_at_;         // group and record of each
  std::deque<std::pair<Kind, std::vector<int64_t>>> deferred_;  // records waiting for room
  bool unsynced_ = false;
  std::chrono::steady_clock::time_point last_sync_{};
};

}  // namespace ringside::bridge
