// A directory that appears whole or not at all: filled under another name, then renamed.
#pragma once

#include <filesystem>

namespace ringside::engine {

class AtomicDirectory {
 public:
  // Creates `<target>.tmp-<pid>` (and missing parents), emptied of what an earlier process of the
  // same id left there. One at a time per target in a process. Throws
  // std::filesystem::filesystem_error.
  explicit AtomicDirectory(std::filesystem::path target);
  // Removes the temporary directory unless commit() has succeeded.
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Where to write until commit().
  const std::filesystem::path& path() const { return temporary_; }

  // Makes every file durable, then gives the directory its name, durably. An older directory of
  // that name is swapped out in one step and removed afterwards, so that a crash leaves either the
  // old or the new one, whole. On filesystems without that exchange the old one is first set aside
  // as `<target>.old-<pid>`; a crash between the two renames leaves it there. Blocks for the disk.
  // Throws std::system_error; the older directory then stays.
  void commit();

 private:
  void replace_in_two_steps();

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool committed_ = false;
};

}  // namespace ringside::engine
