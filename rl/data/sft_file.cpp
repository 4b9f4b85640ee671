#include "rl/data/sft_file.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "rl/config/task.h"

namespace ringside::rl {

SftFile::SftFile(const std::string& files, const Config& config, const engine::Tokenizer& tokenizer,
                 std::vector<int64_t> eos)
    : records_(files),
      chat_(config),
      data_(config.data),
      limit_(sft_limit(config)),
      tokenizer_(tokenizer),
      eos_(std::move(eos)) {
  if (!data_.image_key.empty()) {
    images_ = read_image_rules(config);
    const auto read = [data = data_](RecordSet& records, int64_t record) {
      return sft_images(records, record, data);
    };
    pixels_ = std::make_shared<RecordPixels>(files, read, *images_);
  }
}

TokenizedExample SftFile::tokenize(int64_t i) {
  const std::string place = records_.place(i);
  const SftExample example = parse_sft_example(records_.record(i), place, data_);
  try {
    TokenizedExample tokens = tokenize_example(example, tokenizer_, eos_, chat_);
    if (images_) {
      std::vector<PromptImage> images;
      for (const EncodedImage& image : sft_images(records_, i, data_)) {
        images.push_back(describe_image(image));
        pixels_->note(images.back().hash, i);
      }
      place_images(tokens, images, *images_);
    }
    return tokens;
  } catch (const ChatUnavailable&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(place + ": " + error.what());
  }
}

SftFile::Read SftFile::read(int64_t i) {
  Read read;
  read.example = tokenize(i);
  const auto ids = static_cast<int64_t>(read.example->ids.size());
  if (ids <= limit_.ids) {
    return read;
  }
  read.overlong = true;
  if (data_.on_overlong == OnOverlong::kError) {
    throw std::runtime_error(overlong_document(records_.place(i), ids, limit_));
  }
  if (data_.on_overlong == OnOverlong::kTruncate && !read.example->images.empty()) {
    throw std::runtime_error(records_.place(i) + ": " + std::to_string(ids - limit_.uncounted) +
                             " tokens, more than " + limit_.key +
                             ", and a document with images cannot be truncated; expected "
                             "data.on_overlong drop, or a lower data.max_image_pixels");
  }
  read.example->ids.resize(static_cast<std::size_t>(limit_.ids));
  read.example->learned.resize(static_cast<std::size_t>(limit_.ids));
  if (data_.on_overlong == OnOverlong::kDrop || read.example->learned_tokens() == 0) {
    read.example.reset();
  }
  return read;
}

std::string describe_overlong(const DocumentSummary& summary, const Config& config) {
  if (summary.overlong == 0) {
    return "";
  }
  return std::to_string(summary.overlong) + " of " + std::to_string(summary.checked) +
         (learns_preferences(config) ? " pairs " : " documents ") +
         (summary.overlong == 1 ? "is" : "are") + " longer than " + sft_limit(config).key +
         (config.data.on_overlong == OnOverlong::kTruncate ? ": truncated" : ": dropped");
}

int64_t steps_of_epochs(const Config& config) {
  const int64_t positions = config.train.epochs * RecordSet(training_files(config).files).size();
  return (positions + config.train.batch_size - 1) / config.train.batch_size;
}

}  // namespace ringside::rl
