#include "tools/doctor/machine_findings.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include "rl/report/byte_text.h"

namespace ringside::tools {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr rlim_t kOpenFiles = 4096;       // sockets and files of a trainer with many workers
constexpr rlim_t kLockedBytes = 1 << 30;  // host memory that a GPU copies from
constexpr double kLeastSharedGiB = 1.0;
constexpr double kLeastFreeGiB = 1.0;
constexpr int kEarliestYear = 2026;

std::string limit_text(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) {
    return "unlimited";
  }
  return bytes ? rl::byte_text(static_cast<double>(limit)) : std::to_string(limit);
}

Finding limit_finding(const std::string& name, int resource, rlim_t least, bool bytes,
                      const std::string& advice) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  Finding finding{Health::kGood, name + ": " + limit_text(limit.rlim_cur, bytes), ""};
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < least) {
    finding.health = Health::kWarning;
    finding.advice = advice;
  }
  return finding;
}

// A line "NAME: N kB" of /proc/meminfo, in bytes.
double memory_line(const std::string& name) {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name + ":")) {
      return std::stod(line.substr(name.size() + 1)) * 1024.0;
    }
  }
  return 0;
}

Finding memory_finding() {
  const double total = memory_line("MemTotal"), available = memory_line("MemAvailable");
  Finding finding{Health::kGood,
                  "memory: " + rl::byte_text(available) + " of " + rl::byte_text(total) +
                      " available, " + std::to_string(std::thread::hardware_concurrency()) +
                      " cores",
                  ""};
  if (available < kGiB) {
    finding.health = Health::kWarning;
    finding.advice = "end other programs; `ringside check` says what a rank needs";
  }
  return finding;
}

Finding shared_memory_finding(int64_t needed) {
  struct statvfs stat {};
  if (statvfs("/dev/shm", &stat) != 0) {
    return {Health::kWarning, "shared memory: /dev/shm is not there",
            "mount a tmpfs there, or set weights.shared_memory: false"};
  }
  const double free = static_cast<double>(stat.f_bavail) * static_cast<double>(stat.f_frsize);
  const double least = std::max(kLeastSharedGiB * kGiB, static_cast<double>(needed));
  Finding finding{Health::kGood, "shared memory: " + rl::byte_text(free) + " free in /dev/shm", ""};
  if (needed > 0) {
    finding.what += ", the recipe's weights take " + rl::byte_text(static_cast<double>(needed));
  }
  if (free < least) {
    finding.health = Health::kWarning;
    finding.advice =
        "weights for workers on this machine go through it: enlarge it (docker run --shm-size), or "
        "set weights.shared_memory: false";
  }
  return finding;
}

Finding clock_finding() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  gmtime_r(&now, &date);
  char text[64];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &date);
  if (date.tm_year + 1900 < kEarliestYear) {
    return {Health::kWarning, "clock: " + std::string(text),
            "it is wrong: logs of several machines cannot be compared; set it"};
  }
  timex state{};
  const int status = adjtimex(&state);
  const bool synchronised = status != -1 && status != TIME_ERROR;
  return {Health::kGood,
          "clock: " + std::string(text) +
              (synchronised ? ", synchronised" : ", not known to be synchronised"),
          ""};
}

}  // namespace

Finding disk_finding(const std::string& name, const std::filesystem::path& folder) {
  struct statvfs stat {};
  const std::string what = name + ": " + folder.string();
  if (statvfs(folder.c_str(), &stat) != 0 || access(folder.c_str(), W_OK) != 0) {
    return {Health::kBad, what + ": " + std::generic_category().message(errno),
            "make it, or name another folder"};
  }
  const double free = static_cast<double>(stat.f_bavail) * static_cast<double>(stat.f_frsize);
  Finding finding{Health::kGood, what + ", " + rl::byte_text(free) + " free", ""};
  if (free < kLeastFreeGiB * kGiB) {
    finding.health = Health::kWarning;
    finding.advice = "checkpoints and journals need more; free some space";
  }
  return finding;
}

std::vector<Finding> machine_findings(int64_t shared_bytes) {
  std::vector<Finding> findings;
  findings.push_back(memory_finding());
  findings.push_back(shared_memory_finding(shared_bytes));
  findings.push_back(limit_finding("open files (nofile)", RLIMIT_NOFILE, kOpenFiles, false,
                                   "many workers need more: ulimit -n 65536"));
  findings.push_back(limit_finding(
      "locked memory (memlock)", RLIMIT_MEMLOCK, kLockedBytes, true,
      "offload and copies to a GPU lock host memory: ulimit -l unlimited, or docker run --ulimit "
      "memlock=-1"));
  findings.push_back(disk_finding("temporary files", std::filesystem::temp_directory_path()));
  findings.push_back(clock_finding());
  return findings;
}

}  // namespace ringside::tools
