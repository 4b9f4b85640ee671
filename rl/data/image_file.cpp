#include "rl/data/image_file.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include "engine/images/image_decoder.h"
#include "rollout_bridge/base/base64.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileScheme = "file://";

// The beginning of a text that may be long.
std::string shown(const std::string& text) {
  constexpr std::size_t kShown = 80;
  return "image \"" + text.substr(0, kShown) + (text.size() > kShown ? "..." : "") + "\" ";
}

EncodedImage from_data_uri(const std::string& text) {
  constexpr std::string_view kBase64 = ";base64,";
  const std::size_t at = text.find(kBase64);
  auto bytes = at == std::string::npos
                   ? std::nullopt
                   : bridge::from_base64(std::string_view(text).substr(at + kBase64.size()));
  if (!bytes) {
    throw std::runtime_error(shown(text) +
                             "is no data URI of base64; expected "
                             "data:image/png;base64,...");
  }
  return {"a data URI of " + std::to_string(bytes->size()) + " bytes", *std::move(bytes)};
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const auto [in_folder, in_path] =
      std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return in_folder == folder.end() && in_path != path.end();
}

// The file that a path names, links followed.
fs::path file_below(const std::string& text, const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) {
    throw std::runtime_error(folder.string() +
                             ", the data's folder, cannot be opened: " + error.message());
  }
  if (std::find(path.begin(), path.end(), "..") != path.end()) {
    throw std::runtime_error(shown(text) + "has a \"..\"; expected a path below the data's folder");
  }
  const fs::path file = fs::canonical(path.is_absolute() ? path : root / path, error);
  if (error) {
    throw std::runtime_error(shown(text) + "cannot be opened in " + folder.string() + ": " +
                             error.message());
  }
  if (!is_below(file, root)) {
    throw std::runtime_error(shown(text) + "is " + file.string() +
                             ", which is not below the data's folder, " + root.string());
  }
  if (!fs::is_regular_file(file, error)) {
    throw std::runtime_error(shown(text) + "is no file");
  }
  return file;
}

}  // namespace

EncodedImage read_image_text(const std::string& text, const fs::path& folder) {
  if (text.starts_with("data:")) {
    return from_data_uri(text);
  }
  const bool is_file = text.starts_with(kFileScheme);
  if (!is_file && text.find("://") != std::string::npos) {
    throw std::runtime_error(shown(text) +
                             "is a URL; expected a path below the data's folder or a data URI, "
                             "because a run does not depend on the network");
  }
  const fs::path path = is_file ? text.substr(kFileScheme.size()) : text;
  const fs::path file = file_below(text, path, folder);
  const auto size = static_cast<int64_t>(fs::file_size(file));
  if (size > engine::ImageLimits{}.file_bytes) {
    throw std::runtime_error(shown(text) + "has " + std::to_string(size) +
                             " bytes, expected at most " +
                             std::to_string(engine::ImageLimits{}.file_bytes));
  }
  EncodedImage image{path.string(), std::vector<uint8_t>(static_cast<std::size_t>(size))};
  std::ifstream in(file, std::ios::binary);
  if (!in.read(reinterpret_cast<char*>(image.bytes.data()), size)) {
    throw std::runtime_error(shown(text) + "cannot be read");
  }
  return image;
}

}  // namespace ringside::rl
