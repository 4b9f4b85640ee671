// Runs a program that nobody trusts, to its end or to its deadline, and leaves nothing of it
// behind. Linux alone.
//
// What holds it: limits on address space, file size, open files, CPU time, processes and cores;
// no_new_privs; no inherited descriptor, no inherited environment; a working directory of its own;
// SIGKILL for all of it at the deadline or when its first process ends; and a user id that nothing
// else has (run by root) or a user and process namespace of its own (run by anyone else). Where
// neither can be had it does not run at all. Where the kernel permits, root's programs get a
// process namespace too, then nothing they start can outlive them, and all get an empty network
// namespace. A program may read what its user may read, and fill its directory's disk for as long
// as it runs. It is a guard against accidents and cheap tricks, not against an attacker with a
// kernel exploit.
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
  std::size_t output_bytes =
      1 << 20;  // of standard output that are kept; the rest is read and dropped
};

inline constexpr int kSandboxCannotStart = 127;

struct SandboxResult {
  enum class End { kExited, kSignalled, kTimedOut };
  End end = End::kSignalled;
  int code = -1;  // exit status or signal; kSandboxCannotStart when argv[0] could not be executed
  std::string output;       // the first output_bytes of standard output
  std::string output_end;   // its last 4096 bytes
  bool output_cut = false;  // there was more than output_bytes
};

// A new directory with one file `name` of that content, for one run; removed with whatever the
// program left in it.
class SandboxDirectory {
 public:
  // Throws std::runtime_error when the directory or the file cannot be made.
  SandboxDirectory(const std::string& name, std::string_view content);
  ~SandboxDirectory();
  SandboxDirectory(const SandboxDirectory&) = delete;
  SandboxDirectory& operator=(const SandboxDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint32_t user() const { return user_; }  // who owns it and runs in it

 private:
  std::filesystem::path path_;
  uint32_t user_;
};

// The absolute paths that execution of `command` through this process's PATH would try, best first;
// the path itself when it has a slash; empty when there is none. Not all of them need be within
// reach of the sandbox's user.
std::vector<std::string> find_executables(const std::string& command);

// Runs argv (argv[0] absolute) in `directory` with `input` on standard input; standard error is
// dropped. The environment is PATH, HOME and TMPDIR (the directory), LANG and one thread for OpenMP
// and OpenBLAS. Blocks for up to limits.seconds and a second. Thread-safe. Throws
// std::runtime_error when no process can be started in such bounds.
SandboxResult run_sandboxed(const std::vector<std::string>& argv, const SandboxDirectory& directory,
                            std::string_view input, const SandboxLimits& limits);

}  // namespace ringside::rl
