#include "rl/report/metrics_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace ringside::rl {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void throw_errno(const std::filesystem::path& path, const char* what) {
  throw std::runtime_error(path.string() + ": " + what + ": " + std::strerror(errno));
}

// The step of a line; throws std::runtime_error for anything that is no metrics line.
int64_t step_of(const std::string& line, const std::string& where) {
  const Json parsed = Json::parse(line, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer()) {
    throw std::runtime_error(where + ": not a JSON object with an integer \"step\"");
  }
  return parsed["step"].get<int64_t>();
}

void write_all(int fd, const std::string& text, const std::filesystem::path& path) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) {
      throw_errno(path, "cannot be written");
    }
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    }
  }
}

// Calls `use` with each complete line and its step.
template <class Use>
void for_each_line(const std::filesystem::path& path, Use use) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw_errno(path, "cannot be read");
  }
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (in.eof()) {
      break;  // no newline at its end: the write was cut short
    }
    use(line, step_of(line, path.string() + ":" + std::to_string(number)));
  }
}

// The file's complete lines up to and including `last_step`.
std::string kept_lines(const std::filesystem::path& path, int64_t last_step) {
  std::string kept;
  for_each_line(path, [&](const std::string& line, int64_t step) {
    if (step <= last_step) {
      kept += line + "\n";
    }
  });
  return kept;
}

void replace_file(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path next = path.string() + ".next";
  const int fd = open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw_errno(next, "cannot be created");
  }
  try {
    write_all(fd, text, next);
    if (fsync(fd) != 0) {
      throw_errno(next, "cannot be written");
    }
  } catch (...) {
    close(fd);
    throw;
  }
  close(fd);
  std::filesystem::rename(next, path);
}

std::string non_finite_word(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  return value > 0 ? "inf" : "-inf";
}

// JSON has no NaN and no infinities: such a metric becomes null and is named in "non_finite".
void add_metrics(Json& object, const Metrics& metrics, int64_t step) {
  Json non_finite = Json::object();
  for (const auto& [name, value] : metrics) {
    if (name.empty() || name == "non_finite" || name == "updates" || object.contains(name)) {
      throw std::invalid_argument("metric \"" + name +
                                  "\": empty, reserved or given twice in step " +
                                  std::to_string(step));
    }
    if (std::isfinite(value)) {
      object[name] = value;
    } else {
      object[name] = nullptr;
      non_finite[name] = non_finite_word(value);
    }
  }
  if (!non_finite.empty()) {
    object["non_finite"] = std::move(non_finite);
  }
}

}  // namespace

int64_t last_metrics_step(const std::filesystem::path& path) {
  int64_t last = 0;
  if (std::filesystem::exists(path)) {
    for_each_line(path, [&](const std::string&, int64_t step) { last = std::max(last, step); });
  }
  return last;
}

MetricsWriter::MetricsWriter(std::filesystem::path path, int64_t resumed_step)
    : path_(std::move(path)) {
  if (std::filesystem::exists(path_)) {
    replace_file(path_, kept_lines(path_, resumed_step));
  }
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    throw_errno(path_, "cannot be opened");
  }
}

MetricsWriter::~MetricsWriter() { close(fd_); }

void MetricsWriter::write(int64_t step, const Metrics& metrics,
                          const std::vector<Metrics>& updates) {
  Json line = {{"step", step}};
  add_metrics(line, metrics, step);
  for (const Metrics& update : updates) {
    Json object = Json::object();
    add_metrics(object, update, step);
    line["updates"].push_back(std::move(object));
  }
  struct stat status;
  if (fstat(fd_, &status) == 0 && status.st_nlink == 0) {
    throw std::runtime_error(path_.string() +
                             ": was removed while the run writes it, so its metrics would be lost; "
                             "expected the run directory to stay until the run ends");
  }
  // A name that is not UTF-8 gets replacement characters: the metrics end no run.
  write_all(fd_, line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", path_);
}

}  // namespace ringside::rl
