// Sandbox for untrusted programs: runs a program until it ends or its deadline passes, and removes
// everything it left. Linux only.
//
// Restrictions: limits on address space, file size, open files, CPU time, processes and core dumps;
// no_new_privs; no inherited descriptors and no inherited environment; a working directory of its
// own; SIGKILL for all processes at the deadline or when the first process ends. When run by root,
// the program gets a user id that nothing else has; otherwise a user and process namespace of its
// own. If neither is possible, the program is not run. Where the kernel permits, root's programs
// get a process namespace too, so that none of their processes can outlive them, and all programs
// get an empty network namespace.
//
// Files (SandboxFiles): in a mount namespace the program sees a root of its own (sandbox_view.h):
// its directory, system folders and the interpreter's, both read-only, and empty /tmp, /var/tmp and
// /dev/shm, which end with it. Where mount namespaces are not permitted, Landlock limits it to the
// same folders, without temporary ones. Without either, root's programs have all files that a user
// without rights has, and programs of another user are not run. A program can fill its directory's
// disk while it runs. The sandbox protects against accidents and simple tricks, not against an
// attacker with a kernel exploit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

struct SandboxLimits {
  double seconds = 5.0;              // wall clock
  int64_t memory_bytes = 1LL << 30;  // address space of each process
  int64_t file_bytes = 16LL << 20;   // of each file written
  int64_t processes = 32;            // threads count too
  // Bytes of standard output that are kept; the rest is read and discarded.
  std::size_t output_bytes = 1 << 20;
  // Whether the program may get a root of its own; if not, Landlock limits its files. Tests of that
  // switch it off.
  bool private_files = true;
};

// How a program's files were limited.
enum class SandboxFiles : int32_t { kOpen, kLandlock, kPrivate };

// Messages with a running program on its descriptor 3, a stream socket. `first` is sent at once,
// and `reply` when what the program has sent begins with `request`.
struct SandboxExchange {
  std::string first;
  std::string request;
  std::string reply;
};

inline constexpr int kSandboxCannotStart = 127;

struct SandboxResult {
  enum class End { kExited, kSignalled, kTimedOut };
  End end = End::kSignalled;
  int code = -1;  // exit status or signal; kSandboxCannotStart when argv[0] could not be executed
  std::string output;       // the first output_bytes of standard output
  std::string output_end;   // its last 4096 bytes
  bool output_cut = false;  // there was more than output_bytes
  std::string received;     // the first 4096 bytes that it sent on descriptor 3
  SandboxFiles files = SandboxFiles::kOpen;
};

// A new directory for one run, with one file `name` of the given content. The destructor removes it
// with everything the program left in it.
class SandboxDirectory {
 public:
  // Throws: std::runtime_error when the directory or the file cannot be created.
  SandboxDirectory(const std::string& name, std::string_view content);
  ~SandboxDirectory();
  SandboxDirectory(const SandboxDirectory&) = delete;
  SandboxDirectory& operator=(const SandboxDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // An empty directory beside it, for the private root of a program.
  const std::filesystem::path& root() const { return root_; }
  uint32_t user() const { return user_; }  // its owner, and the user of the program

 private:
  std::filesystem::path base_;  // holds both
  std::filesystem::path path_;
  std::filesystem::path root_;
  uint32_t user_;
};

// The absolute paths that executing `command` through this process's PATH would try, in order; the
// path itself if it has a slash; empty if there is none. The sandbox's user may be unable to reach
// some of them.
std::vector<std::string> find_executables(const std::string& command);

// Runs argv (argv[0] absolute) in `directory` with `input` on standard input and, unless it is
// nullptr, with `exchange`. Standard error is discarded. The environment is PATH, HOME and TMPDIR
// (the directory), LANG, and one thread for OpenMP and OpenBLAS. Blocks: up to limits.seconds plus
// about two seconds, in which what is left is killed. Throws: std::runtime_error when no process
// can be started with these restrictions. Thread safety: safe to call concurrently.
SandboxResult run_sandboxed(const std::vector<std::string>& argv, const SandboxDirectory& directory,
                            std::string_view input, const SandboxLimits& limits,
                            const SandboxExchange* exchange = nullptr);

}  // namespace ringside::rl
