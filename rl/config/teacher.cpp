#include "rl/config/teacher.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "rl/config/data_files.h"

namespace ringside::rl {
namespace {

std::string without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  return begin == std::string_view::npos
             ? ""
             : std::string(text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin));
}

TeacherEntry read_entry(const std::string& text) {
  const std::size_t sign = text.find('=');
  TeacherEntry entry;
  if (sign != std::string::npos) {
    entry = {without_blanks(std::string_view(text).substr(0, sign)),
             without_blanks(std::string_view(text).substr(sign + 1))};
  }
  if (entry.source.empty() || entry.place.empty()) {
    throw std::invalid_argument("has the entry \"" + text +
                                "\"; expected SOURCE=PLACE, SOURCE=PLACE with the words of "
                                "data.source_key and directories of models or servers");
  }
  return entry;
}

std::vector<TeacherEntry> read_entries(const std::string& text) {
  std::vector<TeacherEntry> entries;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    TeacherEntry entry = read_entry(without_blanks(text.substr(begin, end - begin)));
    for (const TeacherEntry& other : entries) {
      if (other.source == entry.source) {
        throw std::invalid_argument("names the source " + entry.source +
                                    " twice; expected one teacher for each source");
      }
    }
    entries.push_back(std::move(entry));
    begin = end + 1;
  }
  return entries;
}

}  // namespace

bool TeacherEntry::is_server() const {
  return place.starts_with("http://") || place.starts_with("https://");
}

std::vector<TeacherEntry> teachers_of(const DistillationConfig& config) {
  if (!config.teacher.empty()) {
    return {{"", config.teacher}};
  }
  return config.teachers.empty() ? std::vector<TeacherEntry>{} : read_entries(config.teachers);
}

std::string absolute_teacher(const std::string& text, const std::filesystem::path& folder) {
  return TeacherEntry{"", text}.is_server() ? text : absolute_path(text, folder);
}

std::string absolute_teachers(const std::string& text, const std::filesystem::path& folder) {
  std::string absolute;
  for (const TeacherEntry& entry : read_entries(text)) {
    absolute +=
        (absolute.empty() ? "" : ", ") + entry.source + "=" + absolute_teacher(entry.place, folder);
  }
  return absolute;
}

bool has_server_teacher(const DistillationConfig& config) {
  const auto teachers = teachers_of(config);
  return std::any_of(teachers.begin(), teachers.end(),
                     [](const TeacherEntry& teacher) { return teacher.is_server(); });
}

}  // namespace ringside::rl
