// Files of images that a record names: paths below the data's folder, and data URIs. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ringside::rl {

// An image as it is stored.
struct EncodedImage {
  std::string name;            // for messages: the path, "a data URI", "bytes"
  std::vector<uint8_t> bytes;  // of a JPEG, PNG or WebP
};

// The image that a text of a record names: a path, a "file://" path, or "data:...;base64,...".
// Paths are relative to `folder`, that of the data file, and stay below it after links are
// followed. The whole file is read.
// Throws: std::runtime_error naming the text for a path that leaves the folder, is no file or
// cannot be read, for a file above 32 MiB, for a data URI without base64, and for a URL, because
// what a network answers may differ between the processes of a run.
EncodedImage read_image_text(const std::string& text, const std::filesystem::path& folder);

}  // namespace ringside::rl
