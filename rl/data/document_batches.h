// Documents of the coming steps, read and tokenized ahead by a thread. Torch-free.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rl/data/data_order.h"
#include "rl/data/preference_file.h"
#include "rl/data/sft_file.h"

namespace ringside::rl {

// One step's documents or pairs.
template <class Example>
struct DocumentStep {
  std::vector<Example> examples;
  int64_t overlong = 0;  // examples that were cut or left out
};

// The examples of a file are a function of the step: a run that resumes gets those of its next
// step. File: SftFile or PreferenceFile.
// Thread safety: one thread calls next().
template <class File>
class DocumentBatches {
 public:
  using Step = DocumentStep<typename File::Example>;
  struct Options {
    int64_t batch_size = 1;
    int64_t first_step = 0;  // finished steps
    // Examples over all passes, after which steps get none.
    int64_t end = std::numeric_limits<int64_t>::max();
    uint64_t seed = 0;
    bool shuffle = true;
  };
  // Starts to read the first step's examples in a thread of its own.
  DocumentBatches(std::unique_ptr<File> file, const Options& options);
  ~DocumentBatches();
  DocumentBatches(const DocumentBatches&) = delete;
  DocumentBatches& operator=(const DocumentBatches&) = delete;

  // The next step's examples. Those that are dropped leave fewer than batch_size.
  // Blocks: until they are read and tokenized.
  // Throws: as File::read.
  Step next();

 private:
  void loop(const std::stop_token& stop);
  Step read_step(int64_t step);

  std::unique_ptr<File> file_;
  Options options_;
  DataOrder order_;  // the thread's
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Step> ready_;  // at most kAhead
  std::exception_ptr failure_;
  std::jthread thread_;  // last: it uses all of the above
};

using SftBatches = DocumentBatches<SftFile>;
using PreferenceBatches = DocumentBatches<PreferenceFile>;

// Order and end of a run's examples, of which `size` are in its files.
template <class File>
typename DocumentBatches<File>::Options batch_options(const Config& config, int64_t size,
                                                      int64_t finished_steps) {
  typename DocumentBatches<File>::Options options{.batch_size = config.train.batch_size,
                                                  .first_step = finished_steps,
                                                  .seed = static_cast<uint64_t>(config.seed),
                                                  .shuffle = config.data.shuffle};
  if (config.train.epochs > 0) {
    options.end = config.train.epochs * size;
  }
  return options;
}

}  // namespace ringside::rl
