#include "rl/data/document_batches.h"

#include <algorithm>
#include <utility>

namespace ringside::rl {
namespace {

constexpr std::size_t kAhead = 4;  // steps

}  // namespace

template <class File>
DocumentBatches<File>::DocumentBatches(std::unique_ptr<File> file, const Options& options)
    : file_(std::move(file)),
      options_(options),
      order_(file_->records().parts(), options.seed, options.shuffle, /*cached_passes=*/1),
      thread_([this](const std::stop_token& stop) { loop(stop); }) {}

template <class File>
DocumentBatches<File>::~DocumentBatches() = default;

template <class File>
typename DocumentBatches<File>::Step DocumentBatches<File>::read_step(int64_t step) {
  Step result;
  const int64_t begin = step * options_.batch_size;
  const int64_t end = std::min(begin + options_.batch_size, options_.end);
  for (int64_t position = begin; position < end; ++position) {
    auto read = file_->read(order_.at(position));
    result.overlong += read.overlong ? 1 : 0;
    if (read.example) {
      result.examples.push_back(*std::move(read.example));
    }
  }
  return result;
}

template <class File>
void DocumentBatches<File>::loop(const std::stop_token& stop) {
  for (int64_t step = options_.first_step; !stop.stop_requested(); ++step) {
    Step read;
    std::exception_ptr failure;
    try {
      read = read_step(step);
    } catch (...) {
      failure = std::current_exception();
    }
    std::unique_lock lock(mutex_);
    if (failure) {
      failure_ = failure;
      changed_.notify_all();
      return;
    }
    if (!changed_.wait(lock, stop, [this] { return ready_.size() < kAhead; })) {
      return;
    }
    ready_.push_back(std::move(read));
    changed_.notify_all();
  }
}

template <class File>
typename DocumentBatches<File>::Step DocumentBatches<File>::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || failure_; });
  if (ready_.empty()) {
    std::rethrow_exception(failure_);
  }
  Step step = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return step;
}

template class DocumentBatches<SftFile>;
template class DocumentBatches<PreferenceFile>;

}  // namespace ringside::rl
