#include "engine/io/atomic_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "engine/io/disk_file.h"

namespace ringside::engine {
namespace fs = std::filesystem;
namespace {

// "runs/x/" is the same directory as "runs/x", but the temporary directory must be a sibling, not a
// child.
fs::path without_trailing_slash(const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

fs::path with_suffix(const fs::path& path, const std::string& suffix) {
  return path.string() + suffix + std::to_string(::getpid());
}

void sync_tree(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file() || entry.is_directory()) {
      sync_path(entry.path());
    }
  }
  sync_path(directory);
}

void replace_in_two_steps(const fs::path& temporary, const fs::path& target) {
  const fs::path aside = with_suffix(target, ".old-");
  fs::remove_all(aside);
  fs::rename(target, aside);
  try {
    fs::rename(temporary, target);
  } catch (...) {
    fs::rename(aside, target);
    throw;
  }
  std::error_code ignored;  // as in commit_directory()
  fs::remove_all(aside, ignored);
}

}  // namespace

AtomicDirectory::AtomicDirectory(fs::path target)
    : target_(without_trailing_slash(target)), temporary_(with_suffix(target_, ".tmp-")) {
  fs::create_directories(target_.parent_path());
  fs::remove_all(temporary_);
  fs::create_directory(temporary_);
}

AtomicDirectory::~AtomicDirectory() {
  if (!committed_) {
    std::error_code ignored;  // a destructor cannot report it
    fs::remove_all(temporary_, ignored);
  }
}

void AtomicDirectory::commit() {
  sync_tree(temporary_);
  commit_directory(temporary_, target_);
  committed_ = true;
}

void commit_directory(const fs::path& temporary, const fs::path& target) {
  if (!fs::exists(fs::symlink_status(target))) {
    fs::rename(temporary, target);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) !=
             0) {
    if (errno != EINVAL && errno != ENOSYS) {
      throw std::system_error(errno, std::generic_category(),
                              "cannot exchange " + temporary.string() + " and " + target.string());
    }
    replace_in_two_steps(temporary, target);
  }
  sync_path(target.parent_path());
  // The temporary name now holds the older directory. The new one is in place, so a failure to
  // remove the older one does not fail the commit.
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
}

}  // namespace ringside::engine
