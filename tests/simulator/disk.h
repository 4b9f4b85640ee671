// A file system in memory, with what a crash leaves of it.
//
// Process crash: what was appended stays; the record being appended may stay in part.
// Machine crash: of what was appended since the last sync any beginning may stay. New names and
// renames since the directory was synced may be gone.
// Full disk: an append writes a part and fails with ENOSPC.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rollout_bridge/base/file_system.h"
#include "tests/simulator/clock.h"

namespace ringside::simulator {

// Ends the process that was writing.
struct ProcessCrash {};

struct DiskFile {
  std::vector<std::byte> bytes;
  std::size_t synced = 0;
};

class Disk final : public bridge::FileSystem {
 public:
  explicit Disk(Random& random) : random_(random) {}

  std::unique_ptr<bridge::File> open(const std::filesystem::path& path) override;
  std::unique_ptr<bridge::File> create(const std::filesystem::path& path) override;
  void create_directories(const std::filesystem::path&) override {}
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove(const std::filesystem::path& path) override;
  void sync_directory(const std::filesystem::path&) override { durable_ = files_; }

  // The process dies at the `appends`-th append from now: before it, after it, or within it.
  void crash_at_append(int appends) { appends_to_crash_ = appends; }
  void set_full(bool full) { full_ = full; }
  void machine_crash();
  // What a file holds; nothing when there is none.
  std::span<const std::byte> content(const std::string& path) const;
  // Changes one bit of the file behind its first `keep` bytes. False when there is nothing there.
  bool flip_bit(const std::string& path, std::size_t keep);

 private:
  friend class OpenFile;
  void append(DiskFile& file, std::span<const std::byte> bytes, const std::string& path);

  Random& random_;
  using Names = std::map<std::string, std::shared_ptr<DiskFile>>;
  Names files_, durable_;
  int appends_to_crash_ = 0;  // 0: none is planned
  bool full_ = false;
};

}  // namespace ringside::simulator
