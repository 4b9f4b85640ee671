#include "rl/trainer/background_save.h"

#include <ATen/ATen.h>

#include <charconv>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "engine/io/atomic_directory.h"
#include "engine/io/disk_file.h"
#include "rl/report/log.h"
#include "sp/mesh/rank_work.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kThreadRound{1000};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// 16 hex digits <-> the bits of an int64, for collectives.
int64_t bits_of(const std::string& digits) {
  uint64_t bits = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  return static_cast<int64_t>(bits);
}

std::string digits_of(int64_t bits) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(bits));
  return text;
}

}  // namespace

BackgroundSave::BackgroundSave(std::shared_ptr<sp::Communicator> world,
                               std::chrono::milliseconds round,
                               std::function<void(int64_t)> before_writing)
    : world_(std::move(world)), round_(round), before_writing_(std::move(before_writing)) {}

BackgroundSave::Status BackgroundSave::status() {
  Status status;
  try {
    status.working = thread_.wait_idle(std::chrono::milliseconds::zero()) ? 0 : 1;
  } catch (...) {
    failure_ = std::current_exception();
    status.failed = world_->size() - world_->rank();
  }
  return status;
}

bool BackgroundSave::advance(const Status& of_all) {
  if (of_all.failed > 0) {
    const int64_t lowest = world_->size() - of_all.failed;
    if (lowest == world_->rank()) {
      std::rethrow_exception(failure_);
    }
    throw sp::RankFailed(lowest);
  }
  if (is_idle() || of_all.working > 0) {
    return false;
  }
  if (phase_ == Phase::kWriting) {
    start_commit();
    return false;
  }
  phase_ = Phase::kIdle;
  return true;
}

void BackgroundSave::start(Request request, int64_t tag) {
  TORCH_CHECK(is_idle(), "a save is started while another is in progress");
  request_ = std::move(request);
  temporary_ = request_.dir.string() + ".tmp-" + digits_of(tag);
  const auto begin = std::chrono::steady_clock::now();
  copy_.copy(request_.slices);
  request_.slices.clear();
  figures_.copying += seconds_since(begin);
  ++figures_.saves;
  phase_ = Phase::kWriting;
  submit([this] {
    const int64_t step = request_.manifest.state.step;
    if (before_writing_) {
      before_writing_(step);
    }
    fs::create_directories(temporary_);
    part_ = write_part(temporary_, {step, world_->rank(), world_->size()}, copy_.slices());
  });
}

// A rank that waits for rollouts may not look at a failed save for long, so it is logged at once.
void BackgroundSave::submit(std::function<void()> write) {
  thread_.submit([dir = request_.dir, write = std::move(write)] {
    try {
      write();
    } catch (const std::exception& error) {
      log::error("checkpoint " + dir.string() + " was not saved: " + error.what() +
                 "; the run ends with this error after the step. Expected free space on the disk; "
                 "then run the same command to resume from the checkpoint before");
      throw;
    }
  });
}

// Every rank learns every part's size and hash, without reading a directory that another machine
// may see late.
void BackgroundSave::exchange_parts() {
  const at::Tensor own = at::tensor(
      {part_.bytes, bits_of(part_.hash.substr(0, 16)), bits_of(part_.hash.substr(16))}, at::kLong);
  const at::Tensor all = world_->all_gather(own, "checkpoint parts");
  for (int64_t rank = 0; rank < world_->size(); ++rank) {
    const auto number = [&](int64_t i) { return all[rank][i].item<int64_t>(); };
    request_.manifest.parts.push_back(
        {part_name(rank, world_->size()), number(0), digits_of(number(1)) + digits_of(number(2))});
  }
}

void BackgroundSave::start_commit() {
  exchange_parts();
  phase_ = Phase::kCommitting;
  if (world_->rank() != 0) {
    return;
  }
  submit([this] {
    if (request_.add_files) {
      request_.add_files(temporary_);
    }
    write_manifest(temporary_, request_.manifest);
    engine::sync_path(temporary_);
    engine::commit_directory(temporary_, request_.dir);
    if (request_.after_commit) {
      request_.after_commit();
    }
  });
}

void BackgroundSave::wait_for_thread() {
  while (!thread_.wait_idle(kThreadRound)) {
  }
}

bool BackgroundSave::finish() {
  if (is_idle()) {
    return false;
  }
  const auto begin = std::chrono::steady_clock::now();
  sp::run_rank_work(*world_, round_, [this] { wait_for_thread(); });
  if (phase_ == Phase::kWriting) {
    start_commit();
    sp::run_rank_work(*world_, round_, [this] { wait_for_thread(); });
  }
  phase_ = Phase::kIdle;
  figures_.waiting += seconds_since(begin);
  return true;
}

}  // namespace ringside::rl
