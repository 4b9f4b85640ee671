// Documents of the coming steps of supervised fine-tuning, read and tokenized ahead by a thread.
// Torch-free.
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
#include "rl/data/sft_file.h"

namespace ringside::rl {

// One step's documents.
struct SftStep {
  std::vector<TokenizedExample> examples;
  int64_t overlong = 0;  // documents that were cut or left out
};

// The documents are a function of the step: a run that resumes gets those of its next step.
// Thread safety: one thread calls next().
class SftBatches {
 public:
  struct Options {
    int64_t batch_size = 1;
    int64_t first_step = 0;  // finished steps
    // Documents over all passes, after which steps get none.
    int64_t end = std::numeric_limits<int64_t>::max();
    uint64_t seed = 0;
    bool shuffle = true;
  };
  // Starts to read the first step's documents in a thread of its own.
  SftBatches(std::unique_ptr<SftFile> file, const Options& options);
  ~SftBatches();
  SftBatches(const SftBatches&) = delete;
  SftBatches& operator=(const SftBatches&) = delete;

  // The next step's documents. Those that are dropped leave fewer than batch_size.
  // Blocks: until they are read and tokenized.
  // Throws: as SftFile::read.
  SftStep next();

 private:
  void loop(const std::stop_token& stop);
  SftStep read_step(int64_t step);

  std::unique_ptr<SftFile> file_;
  Options options_;
  DataOrder order_;  // the thread's
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<SftStep> ready_;  // at most kAhead
  std::exception_ptr failure_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace ringside::rl
