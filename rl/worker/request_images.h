// Images of prompts as inference servers get them: the patch rows of our own image processor.
// Torch-free.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rl/data/prompt_set.h"
#include "rl/data/record_pixels.h"
#include "rollout_bridge/servers/inference_server.h"

namespace ringside::rl {

// Samples of one image share its rows as long as one of their requests holds them.
// Thread safety: none.
class RequestImages {
 public:
  // rules: of the served model.
  RequestImages(const DataConfig& config, ImageRules rules);

  // Lets these prompts of data files have images, beside those of other files.
  // files: as data_file_entries() in rl/config/data_files.h.
  // Throws: as RecordPixels.
  void take(const std::string& files, std::span<const Prompt> prompts);

  // The images of a prompt with these ids, which are its own.
  // Blocks: while files of images are read and decoded.
  // Throws: as expanded_spans() and RecordPixels.
  std::vector<bridge::RequestImage> of(const Prompt& prompt, std::span<const int64_t> prompt_ids);

 private:
  // What is kept of an image: all but its place, and its rows while a request holds them.
  struct Made {
    std::string id;
    engine::PatchGrid grid;
    std::weak_ptr<const std::vector<float>> patches;
  };

  // The image without its place.
  bridge::RequestImage image(const std::string& hash);

  DataConfig config_;
  ImageRules rules_;
  std::string rules_hash_;
  std::vector<std::shared_ptr<RecordPixels>> pixels_;
  std::map<std::string, Made> made_;  // by hash of the file
};

}  // namespace ringside::rl
