// Atomic directory: filled under a temporary name, then renamed, so it appears complete or not at
// all.
#pragma once

#include <filesystem>

namespace ringside::engine {

// Renames `temporary`, a sibling of `target` whose files are durable, to `target`, durably. An
// existing directory of that name is exchanged in one step and removed afterwards, so a crash
// leaves either the old or the new one complete. On filesystems without exchange the old one is
// first renamed to `<target>.old-<pid>`; a crash between the two renames leaves it there.
// Blocks: until the disk has the names.
// Throws: std::system_error; the existing directory then stays.
void commit_directory(const std::filesystem::path& temporary, const std::filesystem::path& target);

// Thread safety: none.
class AtomicDirectory {
 public:
  // Creates `<target>.tmp-<pid>` and missing parents. Empties what an earlier process with the same
  // pid left there. Only one at a time per target in a process.
  // Throws: std::filesystem::filesystem_error.
  explicit AtomicDirectory(std::filesystem::path target);
  // Removes the temporary directory unless commit() has succeeded.
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // The directory to write into until commit().
  const std::filesystem::path& path() const { return temporary_; }

  // Makes every file durable, then commit_directory().
  // Blocks: until the disk has the data.
  // Throws: as commit_directory.
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool committed_ = false;
};

}  // namespace ringside::engine
