// Documents of supervised fine-tuning in data files. Of JSON Lines only the index of lines is in
// memory, of Parquet one row group; a document is read and tokenized when it is asked for.
// Torch-free.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/chat_format.h"
#include "rl/data/record_pixels.h"
#include "rl/data/record_set.h"
#include "rl/data/sft_examples.h"

namespace ringside::rl {

// Thread safety: none.
class SftFile {
 public:
  using Example = TokenizedExample;

  // eos: the model's end-of-sequence ids. The tokenizer must outlive the object.
  // Throws: as RecordSet; with data.image_key as read_image_rules().
  SftFile(const std::string& files, const Config& config, const engine::Tokenizer& tokenizer,
          std::vector<int64_t> eos);

  const RecordSet& records() const { return records_; }
  int64_t size() const { return records_.size(); }
  // Pixels of the images of the documents read so far; null without data.image_key. They outlive
  // this, and any thread may ask for them.
  const std::shared_ptr<RecordPixels>& pixels() const { return pixels_; }
  // Patches a side of an image's token; 0 without data.image_key.
  int64_t image_merge() const { return images_ ? images_->processor.merge : 0; }
  const std::optional<ImageRules>& image_rules() const { return images_; }

  struct Read {
    // Empty: dropped, as data.on_overlong says, or nothing is left to learn of it.
    std::optional<TokenizedExample> example;
    bool overlong = false;  // longer than sft_limit()
  };
  // Document i.
  // Throws: std::runtime_error "FILE:LINE: ..." when it cannot be learned from, is too long under
  // data.on_overlong error, or has images and would have to be truncated.
  Read read(int64_t i);

 private:
  TokenizedExample tokenize(int64_t i);

  RecordSet records_;
  ChatFormat chat_;
  DataConfig data_;
  SftLimit limit_;
  const engine::Tokenizer& tokenizer_;
  std::vector<int64_t> eos_;
  std::optional<ImageRules> images_;  // with data.image_key
  std::shared_ptr<RecordPixels> pixels_;
};

// What a look at the documents or pairs of a file finds.
struct DocumentSummary {
  int64_t documents = 0;
  int64_t checked = 0;   // from the beginning of the file
  int64_t usable = 0;    // of those
  int64_t overlong = 0;  // of those
  // One sentence each, with file and line. With any, a run does not start.
  std::vector<std::string> problems;
};

// Reads and tokenizes the documents that begin within the first `bytes` of the files. File: SftFile
// or PreferenceFile.
// Throws: ChatUnavailable.
template <class File>
DocumentSummary summarize(File& file, int64_t bytes) {
  DocumentSummary summary;
  summary.documents = file.size();
  for (int64_t i = 0; i < file.size() && file.records().offset(i) < bytes; ++i) {
    ++summary.checked;
    try {
      const auto read = file.read(i);
      summary.usable += read.example ? 1 : 0;
      summary.overlong += read.overlong ? 1 : 0;
    } catch (const ChatUnavailable&) {
      throw;
    } catch (const std::exception& error) {
      summary.problems.emplace_back(error.what());
    }
  }
  return summary;
}

// "3 of 900 documents are longer than data.max_length = 512: dropped"; "" when none is.
std::string describe_overlong(const DocumentSummary& summary, const Config& config);

// Steps of train.epochs passes over training_files(); the last one may have fewer documents.
// Throws: as RecordSet.
// Blocks: until the files are indexed.
int64_t steps_of_epochs(const Config& config);

}  // namespace ringside::rl
