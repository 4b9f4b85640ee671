#include "tests/support/cuda_host/reports.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <utility>

namespace ringside::cuda_host {
namespace {

constexpr std::size_t kMostReports = 200;

std::vector<Report>& reports() {
  static std::vector<Report> all;
  return all;
}

// The output of a program, line by line.
std::vector<std::string> lines_from(const std::string& command) {
  std::vector<std::string> lines;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char line[4096];
    while (std::fgets(line, sizeof(line), pipe) != nullptr) {
      lines.emplace_back(line);
      if (!lines.back().empty() && lines.back().back() == '\n') {
        lines.back().pop_back();
      }
    }
    pclose(pipe);
  }
  return lines;
}

// The path from the root of the sources. The compiler notes "./build/../engine/x.h" for a header of
// the project (CMakeLists.txt makes paths start at the root, whatever checkout an object was
// compiled in), and "./build/engine/x.cu" for a translated file, which names itself from the root.
std::string from_root(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  if (normal.is_absolute()) {
    return path;
  }
  std::filesystem::path rest = normal;
  while (!rest.empty() && !std::filesystem::exists(RINGSIDE_SOURCE_DIR / rest)) {
    rest = rest.lexically_relative(*rest.begin());
  }
  return (rest.empty() ? normal : rest).string();
}

// "./build/../engine/x.h:12 (discriminator 3)"
SourceLine parsed(const std::string& function, const std::string& place) {
  const auto colon = place.rfind(':');
  if (colon == std::string::npos) {
    return {place, 0, function};
  }
  return {from_root(place.substr(0, colon)), std::atoi(place.c_str() + colon + 1), function};
}

// What runs kernels, between them and the launch.
bool of_the_model(const SourceLine& line) {
  return line.file.starts_with("/") || line.file.starts_with("tests/support/cuda_host/");
}

}  // namespace

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::kRace:
      return "race";
    case Fault::kDivergentBarrier:
      return "divergent barrier";
    case Fault::kOutOfBounds:
      return "out of bounds";
    case Fault::kMisaligned:
      return "misaligned";
    case Fault::kUnwritten:
      return "read before written";
    case Fault::kLanes:
      return "lanes";
    case Fault::kAssertion:
      return "assertion";
    case Fault::kLaunch:
      return "launch";
  }
  return "";
}

std::vector<SourceLine> lines_of(const std::vector<uintptr_t>& calls) {
  static std::map<uintptr_t, SourceLine> known;
  std::map<std::pair<std::string, uintptr_t>, std::vector<uintptr_t>> unknown;  // by the module
  for (const uintptr_t call : calls) {
    Dl_info info;
    if (known.count(call) == 0 && dladdr(reinterpret_cast<void*>(call), &info) != 0) {
      unknown[{info.dli_fname, reinterpret_cast<uintptr_t>(info.dli_fbase)}].push_back(call);
    }
  }
  for (const auto& [module, addresses] : unknown) {
    std::ostringstream command;
    command << "addr2line -C -f -e '" << module.first << "'";
    for (const uintptr_t address : addresses) {
      // The byte before a return address belongs to the call.
      command << " 0x" << std::hex << address - module.second - 1;
    }
    const auto lines = lines_from(command.str() + " 2>/dev/null");
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      known[addresses[i]] = 2 * i + 1 < lines.size() ? parsed(lines[2 * i], lines[2 * i + 1])
                                                     : SourceLine{"?", 0, "?"};
    }
  }
  std::vector<SourceLine> found;
  for (const uintptr_t call : calls) {
    found.push_back(known[call]);
  }
  return found;
}

std::string text_of(const Report& report) {
  std::ostringstream text;
  text << report.kernel << ": " << name_of(report.fault) << ": " << report.what;
  const auto add = [&text](const char* head, const std::vector<uintptr_t>& calls) {
    const auto lines = lines_of(calls);
    for (const SourceLine& line : lines) {
      if (of_the_model(line)) {
        continue;
      }
      text << "\n  " << std::exchange(head, "from") << ' ' << line.file << ':' << line.line << ' '
           << line.function.substr(0, 80);
    }
  };
  add("at", report.calls);
  add("other thread at", report.others);
  return text.str();
}

std::vector<Report> take_reports() { return std::exchange(reports(), {}); }

void add_report(Report report) {
  const auto same = [&report](const Report& other) {
    return other.fault == report.fault && other.kernel == report.kernel &&
           other.calls == report.calls && other.others == report.others;
  };
  if (reports().size() < kMostReports && std::none_of(reports().begin(), reports().end(), same)) {
    reports().push_back(std::move(report));
  }
}

}  // namespace ringside::cuda_host
