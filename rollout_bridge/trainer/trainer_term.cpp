#include "rollout_bridge/trainer/trainer_term.h"

#include <fcntl.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "rollout_bridge/base/posix_file.h"

namespace ringside::bridge {

int64_t next_trainer_term(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  const std::filesystem::path path = directory / "trainer_term";
  int64_t term = 0;
  if (std::filesystem::exists(path)) {
    std::ifstream in(path);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), term);
    if (error != std::errc{} || std::string(end) != "\n" || term < 1) {
      throw std::runtime_error(path.string() + ": expected a number >= 1 and a newline");
    }
  }
  ++term;
  const std::filesystem::path fresh = directory / "trainer_term.new";
  const std::string text = std::to_string(term) + "\n";
  {
    PosixFile file(fresh, O_WRONLY | O_CREAT | O_TRUNC);
    file.append(std::as_bytes(std::span(text)));
    file.sync();
  }
  std::filesystem::rename(fresh, path);
  sync_directory(directory);
  return term;
}

}  // namespace ringside::bridge
