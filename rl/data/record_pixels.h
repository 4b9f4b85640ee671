// Pixels of the images of data files, read and decoded when they are asked for. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/images/image_store.h"
#include "rl/data/image_prompts.h"
#include "rl/data/record_set.h"
#include "rl/data/text_data.h"

namespace ringside::rl {

// Bytes of resized pixels that a process keeps.
inline constexpr int64_t kKeptPixelBytes = int64_t{256} << 20;

// An image is known by the hash of its file, PromptImage::hash, so a process decodes only those
// that it uses. Thread safety: safe from any thread; files are read one after another.
class RecordPixels {
 public:
  using Image = engine::ImageStore::Image;
  // The files of the images of a record.
  using ReadImages = std::function<std::vector<EncodedImage>(RecordSet& records, int64_t record)>;

  // files: as data_file_entries() in rl/config/data_files.h. Pixels of at most max_bytes are kept.
  // Throws: as RecordSet.
  RecordPixels(const std::string& files, ReadImages read, ImageRules rules,
               int64_t max_bytes = kKeptPixelBytes);

  // Says that a record has an image.
  void note(const std::string& hash, int64_t record);

  // Whether a record has the image.
  bool has(const std::string& hash) const;

  // The image, resized as the model takes it.
  // Blocks: while its file is read and decoded, unless it is kept.
  // Throws: std::runtime_error naming the record when it has no such image any more, or one that
  // cannot be decoded; naming the hash when no record had it.
  Image operator()(const std::string& hash);

 private:
  engine::ProcessedImage read(const std::string& hash);
  std::optional<int64_t> record_of(const std::string& hash) const;

  std::mutex reading_;
  RecordSet records_;
  ReadImages read_;
  mutable std::mutex noting_;
  std::map<std::string, int64_t, std::less<>> record_of_;  // a record that has the image
  ImageRules rules_;
  engine::ImageStore kept_;
};

// Whichever of these has the image reads it. Throws, when it is called: std::runtime_error when
// none has it; as RecordPixels.
std::function<RecordPixels::Image(const std::string& hash)> any_of(
    std::vector<std::shared_ptr<RecordPixels>> sources);

// Pixels of the images of prompts that scan_prompts() read from `files`.
// Throws: as RecordPixels.
std::shared_ptr<RecordPixels> prompt_pixels(const std::string& files, const DataConfig& config,
                                            std::span<const Prompt> prompts,
                                            const ImageRules& rules,
                                            int64_t max_bytes = kKeptPixelBytes);

}  // namespace ringside::rl
