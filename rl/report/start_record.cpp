#include "rl/report/start_record.h"

#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "rl/report/byte_text.h"

namespace ringside::rl {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "";
}

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void append_line(const std::filesystem::path& path, const nlohmann::ordered_json& line) {
  std::ofstream file(path, std::ios::app);
  file << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
  if (!file) {
    throw std::runtime_error(path.string() + ": cannot be written");
  }
}

}  // namespace

Facts machine_facts() {
  Facts facts;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) {
      facts.emplace_back(name, value);
    }
  };
  utsname system{};
  if (uname(&system) == 0) {
    add("host", system.nodename);
    add("system", std::string(system.sysname) + " " + system.release + " " + system.machine);
  }
  add("cpu", cpu_name());
  add("cores", std::to_string(std::thread::hardware_concurrency()));
  struct sysinfo memory {};
  if (sysinfo(&memory) == 0) {
    add("memory", byte_text(static_cast<double>(memory.totalram) * memory.mem_unit));
  }
  return facts;
}

void append_start(const std::filesystem::path& path, int64_t step, int64_t steps,
                  const Facts& facts) {
  nlohmann::ordered_json line{{"time", utc_time()}, {"step", step}, {"steps", steps}};
  for (const auto& [name, value] : facts) {
    line[name] = value;
  }
  append_line(path, line);
}

std::optional<int64_t> steps_of_start(const std::string& line) {
  const auto json = nlohmann::ordered_json::parse(line, nullptr, false);
  const bool known =
      json.is_object() && json.contains("steps") && json["steps"].is_number_integer();
  return known ? std::optional(json["steps"].get<int64_t>()) : std::nullopt;
}

void append_end(const std::filesystem::path& run_dir, const std::string& how,
                const std::string& reason) {
  std::ifstream starts(run_dir / "starts.jsonl");
  int64_t start = 0;
  for (std::string line; std::getline(starts, line);) {
    ++start;
  }
  try {
    append_line(run_dir / "ends.jsonl",
                {{"time", utc_time()}, {"start", start}, {"how", how}, {"reason", reason}});
  } catch (const std::runtime_error&) {
    // A full disk is often why the run ends; that error must not be replaced by this one.
  }
}

}  // namespace ringside::rl
