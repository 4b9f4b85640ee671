#include "rl/data/record_pixels.h"

#include <stdexcept>
#include <utility>

#include "engine/images/image_decoder.h"

namespace ringside::rl {

RecordPixels::RecordPixels(const std::string& files, ReadImages read, ImageRules rules,
                           int64_t max_bytes)
    : records_(files), read_(std::move(read)), rules_(std::move(rules)), kept_(max_bytes) {}

void RecordPixels::note(const std::string& hash, int64_t record) {
  const std::lock_guard lock(noting_);
  record_of_.emplace(hash, record);
}

std::optional<int64_t> RecordPixels::record_of(const std::string& hash) const {
  const std::lock_guard lock(noting_);
  const auto found = record_of_.find(hash);
  return found == record_of_.end() ? std::nullopt : std::optional(found->second);
}

bool RecordPixels::has(const std::string& hash) const { return record_of(hash).has_value(); }

RecordPixels::Image RecordPixels::operator()(const std::string& hash) {
  return kept_.find_or_make(hash, [&] { return read(hash); });
}

engine::ProcessedImage RecordPixels::read(const std::string& hash) {
  const std::optional<int64_t> record = record_of(hash);
  if (!record) {
    throw std::runtime_error("no record of the data has the image " + hash);
  }
  std::vector<EncodedImage> images;
  std::string place;
  {
    const std::lock_guard lock(reading_);
    place = records_.place(*record);
    images = read_(records_, *record);
  }
  try {
    for (const EncodedImage& image : images) {
      if (describe_image(image).hash == hash) {
        return engine::process_image(engine::decode_image(image.bytes), rules_.processor);
      }
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(place + ": " + error.what());
  }
  throw std::runtime_error(place + ": the image " + hash +
                           " is not there any more; its file was changed while the run goes on");
}

std::function<RecordPixels::Image(const std::string& hash)> any_of(
    std::vector<std::shared_ptr<RecordPixels>> sources) {
  return [sources = std::move(sources)](const std::string& hash) {
    for (const auto& source : sources) {
      if (source->has(hash)) {
        return (*source)(hash);
      }
    }
    throw std::runtime_error("no data file has the image " + hash);
  };
}

std::shared_ptr<RecordPixels> prompt_pixels(const std::string& files, const DataConfig& config,
                                            std::span<const Prompt> prompts,
                                            const ImageRules& rules, int64_t max_bytes) {
  const auto read = [config](RecordSet& records, int64_t record) {
    return prompt_images(records, record, config);
  };
  auto pixels = std::make_shared<RecordPixels>(files, read, rules, max_bytes);
  for (const Prompt& prompt : prompts) {
    for (const PromptImage& image : prompt.images) {
      pixels->note(image.hash, prompt.record);
    }
  }
  return pixels;
}

}  // namespace ringside::rl
