#include "rl/data/sft_batches.h"

#include <algorithm>
#include <utility>

namespace ringside::rl {
namespace {

constexpr std::size_t kAhead = 4;  // steps

}  // namespace

SftBatches::SftBatches(std::unique_ptr<SftFile> file, const Options& options)
    : file_(std::move(file)),
      options_(options),
      order_(file_->records().parts(), options.seed, options.shuffle, /*cached_passes=*/1),
      thread_([this](const std::stop_token& stop) { loop(stop); }) {}

SftBatches::~SftBatches() = default;

SftStep SftBatches::read_step(int64_t step) {
  SftStep result;
  const int64_t begin = step * options_.batch_size;
  const int64_t end = std::min(begin + options_.batch_size, options_.end);
  for (int64_t position = begin; position < end; ++position) {
    SftFile::Read read = file_->read(order_.at(position));
    result.overlong += read.overlong ? 1 : 0;
    if (read.example) {
      result.examples.push_back(*std::move(read.example));
    }
  }
  return result;
}

void SftBatches::loop(const std::stop_token& stop) {
  for (int64_t step = options_.first_step; !stop.stop_requested(); ++step) {
    SftStep read;
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

SftStep SftBatches::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || failure_; });
  if (ready_.empty()) {
    std::rethrow_exception(failure_);
  }
  SftStep step = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return step;
}

}  // namespace ringside::rl
