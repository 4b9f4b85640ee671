#include "rl/data/record_pixels.h"

#include <stdexcept>
#include <utility>

#include "engine/images/image_decoder.h"

namespace ringside::rl {

RecordPixels::RecordPixels(const std::string& files, ReadImages read,
                           std::map<std::string, int64_t, std::less<>> record_of, ImageRules rules,
                           int64_t max_bytes)
    : records_(files),
      read_(std::move(read)),
      record_of_(std::move(record_of)),
      rules_(std::move(rules)),
      kept_(max_bytes) {}

RecordPixels::Image RecordPixels::operator()(const std::string& hash) {
  return kept_.find_or_make(hash, [&] { return read(hash); });
}

engine::ProcessedImage RecordPixels::read(const std::string& hash) {
  const auto home = record_of_.find(hash);
  if (home == record_of_.end()) {
    throw std::runtime_error("no record of the data has the image " + hash);
  }
  std::vector<EncodedImage> images;
  std::string place;
  {
    const std::lock_guard lock(reading_);
    place = records_.place(home->second);
    images = read_(records_, home->second);
  }
  for (const EncodedImage& image : images) {
    if (describe_image(image).hash != hash) {
      continue;
    }
    try {
      return engine::process_image(engine::decode_image(image.bytes), rules_.processor);
    } catch (const std::exception& error) {
      throw std::runtime_error(place + ": " + image.name + ": " + error.what());
    }
  }
  throw std::runtime_error(place + ": the image " + hash +
                           " is not there any more; its file was changed while the run goes on");
}

std::shared_ptr<RecordPixels> prompt_pixels(const std::string& files, const DataConfig& config,
                                            std::span<const Prompt> prompts,
                                            const ImageRules& rules, int64_t max_bytes) {
  std::map<std::string, int64_t, std::less<>> record_of;
  for (const Prompt& prompt : prompts) {
    for (const PromptImage& image : prompt.images) {
      record_of.emplace(image.hash, prompt.record);
    }
  }
  const auto read = [config](RecordSet& records, int64_t record) {
    return prompt_images(records, record, config);
  };
  return std::make_shared<RecordPixels>(files, read, std::move(record_of), rules, max_bytes);
}

}  // namespace ringside::rl
