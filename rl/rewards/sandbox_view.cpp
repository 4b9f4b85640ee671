#include "rl/rewards/sandbox_view.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

// What interpreters and their libraries need of the system. Nothing of a user is there.
constexpr std::array kSystemPaths = {"/usr",
                                     "/bin",
                                     "/sbin",
                                     "/lib",
                                     "/lib32",
                                     "/lib64",
                                     "/libx32",
                                     "/nix/store",
                                     "/etc/ld.so.cache",
                                     "/etc/ld.so.conf",
                                     "/etc/ld.so.conf.d",
                                     "/etc/alternatives",
                                     "/etc/localtime",
                                     "/etc/passwd",
                                     "/etc/group",
                                     "/etc/nsswitch.conf"};
constexpr std::array kDevices = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                 "/dev/urandom"};
constexpr std::array kTemporaryFolders = {"/tmp", "/var/tmp", "/dev/shm"};
constexpr const char* kPrivateFiles = "size=64m,nr_inodes=16384,mode=755";
constexpr int kMostLinks = 16;

// Rights of Landlock: those of its first version, moving files (2) and truncation (3).
constexpr uint64_t kRightsOfVersion1 = (uint64_t{1} << 13) - 1;
constexpr uint64_t kRefer = uint64_t{1} << 13;
constexpr uint64_t kTruncate = uint64_t{1} << 14;
constexpr uint64_t kReadFile = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE;

bool is_below(const fs::path& path, const fs::path& folder) {
  const fs::path rest = path.lexically_relative(folder);
  return !rest.empty() && *rest.begin() != "..";
}

// The folders that the interpreter at `path` needs: DIR of DIR/bin/python3, unless that holds the
// user's home.
fs::path installation_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  const char* home = ::getenv("HOME");
  const bool is_bin = folder.filename() == "bin" && folder.has_parent_path();
  const fs::path prefix = folder.parent_path();
  const bool holds_home = home != nullptr && is_below(fs::path(home), prefix);
  return is_bin && prefix != "/" && !holds_home ? prefix : folder;
}

void write_file(const char* path, const char* text, std::size_t bytes) {
  const int file = ::open(path, O_WRONLY | O_CLOEXEC);
  if (file >= 0) {
    [[maybe_unused]] const ssize_t written = ::write(file, text, bytes);
    ::close(file);
  }
}

bool make_folder(const char* path) { return ::mkdir(path, 0755) == 0 || errno == EEXIST; }

bool bind(const char* source, const char* target, uint64_t attributes) {
  if (::mount(source, target, nullptr, MS_BIND | MS_REC, nullptr) != 0) {
    return false;
  }
  struct mount_attr set {};
  set.attr_set = attributes;
  // glibc has a function for it since 2.36 only, and the program runs with 2.34.
  return attributes == 0 ||
         ::syscall(SYS_mount_setattr, AT_FDCWD, target, AT_RECURSIVE, &set, sizeof set) == 0;
}

int landlock_version() {
  return static_cast<int>(
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION));
}

// Allows `rights` under a path; a path that cannot be opened stays forbidden.
bool allow(int ruleset, const char* path, uint64_t rights) {
  const int file = ::open(path, O_PATH | O_CLOEXEC);
  if (file < 0) {
    return true;
  }
  struct stat status {};
  const bool is_folder = ::fstat(file, &status) == 0 && S_ISDIR(status.st_mode);
  constexpr uint64_t kOfFiles = kReadFile | LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate;
  landlock_path_beneath_attr rule{};
  rule.allowed_access = is_folder ? rights : rights & kOfFiles;
  rule.parent_fd = file;
  const bool done =
      ::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
  ::close(file);
  return done;
}

}  // namespace

SandboxView::SandboxView(const std::string& program, const std::string& work,
                         const std::string& root)
    : root_(root), work_(work), proc_(root + "/proc") {
  const std::string user = std::to_string(::geteuid());
  const std::string group = std::to_string(::getegid());
  uid_map_ = user + " " + user + " 1";
  gid_map_ = group + " " + group + " 1";
  for (const char* path : kSystemPaths) {
    add_system_path(path);
  }
  add_interpreter(program);
  steps_.push_back({Kind::kFolder, proc_, ""});
  add_folders("/dev/x");
  for (const char* device : kDevices) {
    steps_.push_back({Kind::kFile, root_ + device, ""});
    steps_.push_back({Kind::kDevice, root_ + device, device});
  }
  for (const char* folder : kTemporaryFolders) {
    add_folders(folder);
    steps_.push_back({Kind::kSharedFolder, root_ + folder, ""});
  }
  add_mount(Kind::kWritable, work_);
}

// The folders above `path`, in the private root.
void SandboxView::add_folders(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    steps_.push_back({Kind::kFolder, root_ + path.substr(0, slash), ""});
  }
}

void SandboxView::add_mount(Kind kind, const std::string& path) {
  std::error_code ignored;
  add_folders(path);
  steps_.push_back(
      {fs::is_directory(path, ignored) ? Kind::kFolder : Kind::kFile, root_ + path, ""});
  steps_.push_back({kind, root_ + path, path});
}

void SandboxView::add_system_path(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return;
  }
  readable_.push_back(path);
  if (fs::path(path).parent_path() == "/" && fs::is_symlink(path, ignored)) {  // /bin -> usr/bin
    steps_.push_back({Kind::kLink, root_ + path, fs::read_symlink(path, ignored).string()});
    return;
  }
  add_mount(Kind::kReadOnly, path);
}

bool SandboxView::is_visible(const std::string& path) const {
  for (const std::string& folder : readable_) {
    if (path == folder || is_below(path, folder)) {
      return true;
    }
  }
  return false;
}

// The interpreter's folders, and those of every link on the way to it.
void SandboxView::add_interpreter(const std::string& program) {
  std::error_code ignored;
  fs::path path = program;
  for (int links = 0; links < kMostLinks; ++links) {
    for (const fs::path& one : {path, fs::weakly_canonical(path, ignored)}) {
      const std::string folder = installation_of(one).string();
      if (!is_visible(folder)) {
        readable_.push_back(folder);
        add_mount(Kind::kReadOnly, folder);
      }
    }
    if (!fs::is_symlink(path, ignored)) {
      return;
    }
    path = (path.parent_path() / fs::read_symlink(path, ignored)).lexically_normal();
  }
}

bool SandboxView::run(const Step& step) {
  const char* target = step.target.c_str();
  const char* source = step.source.c_str();
  constexpr uint64_t kSafe = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  switch (step.kind) {
    case Kind::kFolder:
      return make_folder(target);
    case Kind::kSharedFolder:
      return make_folder(target) && ::chmod(target, 01777) == 0;
    case Kind::kFile: {
      const int file = ::open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
      return file >= 0 && ::close(file) == 0;
    }
    case Kind::kLink:
      return ::symlink(source, target) == 0;
    case Kind::kReadOnly:
      return bind(source, target, kSafe | MOUNT_ATTR_RDONLY);
    case Kind::kWritable:
      return bind(source, target, kSafe);
    case Kind::kDevice:
      return bind(source, target, 0);
  }
  return false;
}

bool SandboxView::enter(bool own_user) const {
  if (own_user) {
    write_file("/proc/self/setgroups", "deny", 4);
    write_file("/proc/self/uid_map", uid_map_.data(), uid_map_.size());
    write_file("/proc/self/gid_map", gid_map_.data(), gid_map_.size());
  }
  ::umask(022);
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", root_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, kPrivateFiles) != 0) {
    return false;
  }
  for (const Step& step : steps_) {
    if (!run(step)) {
      return false;
    }
  }
  // A container may not permit a new one. The machine's own would show other processes' files.
  ::mount("proc", proc_.c_str(), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
  return ::chdir(root_.c_str()) == 0 && ::syscall(SYS_pivot_root, ".", ".") == 0 &&
         ::umount2(".", MNT_DETACH) == 0 && ::chdir("/") == 0;
}

bool SandboxView::restrict_files() const {
  const int version = landlock_version();
  if (version < 1) {
    return false;
  }
  landlock_ruleset_attr rules{};
  rules.handled_access_fs =
      kRightsOfVersion1 | (version >= 2 ? kRefer : 0) | (version >= 3 ? kTruncate : 0);
  const auto ruleset = static_cast<int>(
      ::syscall(SYS_landlock_create_ruleset, &rules, sizeof rules.handled_access_fs, 0));
  if (ruleset < 0) {
    return false;
  }
  bool good = allow(ruleset, work_.c_str(), rules.handled_access_fs);
  for (const std::string& path : readable_) {
    good = good && allow(ruleset, path.c_str(), kReadFile | LANDLOCK_ACCESS_FS_READ_DIR);
  }
  for (const char* device : kDevices) {
    good = good && allow(ruleset, device, kReadFile | LANDLOCK_ACCESS_FS_WRITE_FILE);
  }
  good = good && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
  ::close(ruleset);
  return good;
}

bool has_landlock() { return landlock_version() >= 1; }

}  // namespace ringside::rl
