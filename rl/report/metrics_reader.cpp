#include "rl/report/metrics_reader.h"

#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace ringside::rl {
namespace {

using OrderedJson = nlohmann::ordered_json;

double non_finite_value(const OrderedJson& line, const std::string& name) {
  const auto list = line.find("non_finite");
  const std::string word = list != line.end() ? list->value(name, "nan") : "nan";
  const double infinity = std::numeric_limits<double>::infinity();
  return word == "inf" ? infinity : word == "-inf" ? -infinity : std::nan("");
}

MetricsLine parse_metrics_line(const std::string& text, const std::string& where) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
    throw std::runtime_error(where + ": not a JSON object with an integer \"step\"");
  }
  MetricsLine line{json["step"].get<int64_t>(), {}};
  for (const auto& [name, value] : json.items()) {
    if (name == "step" || name == "updates" || name == "non_finite") {
      continue;
    }
    if (!value.is_number() && !value.is_null()) {
      throw std::runtime_error(where + ": metric \"" + name + "\" is " + value.type_name() +
                               ", expected a number");
    }
    line.metrics.emplace_back(name,
                              value.is_null() ? non_finite_value(json, name) : value.get<double>());
  }
  return line;
}

}  // namespace

bool MetricsFollower::poll() {
  struct stat found {};
  if (stat(path_.c_str(), &found) != 0) {
    return false;
  }
  if (found.st_ino != inode_ || static_cast<std::uint64_t>(found.st_size) < offset_) {
    inode_ = found.st_ino;
    offset_ = 0;
    lines_.clear();
  }
  if (static_cast<std::uint64_t>(found.st_size) == offset_) {
    return false;
  }
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset_));
  const std::size_t before = lines_.size();
  for (std::string text; std::getline(file, text) && !file.eof();) {
    lines_.push_back(
        parse_metrics_line(text, path_.string() + ":" + std::to_string(lines_.size() + 1)));
    offset_ += text.size() + 1;
  }
  return lines_.size() > before;
}

std::vector<MetricsLine> read_metrics(const std::filesystem::path& path) {
  MetricsFollower follower(path);
  follower.poll();
  return follower.lines();
}

}  // namespace ringside::rl
