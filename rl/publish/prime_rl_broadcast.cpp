#include "rl/publish/prime_rl_broadcast.h"

#include <charconv>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "engine/io/hf_directory.h"

namespace ringside::rl {
namespace {

constexpr std::chrono::milliseconds kLook{50};
constexpr const char* kStep = "step_";

void touch(const std::filesystem::path& marker) {
  if (!std::ofstream(marker)) {
    throw std::runtime_error("cannot write " + marker.string());
  }
}

// N of step_N; -1 for anything else.
int64_t step_of(const std::string& name) {
  int64_t step = -1;
  const std::string digits = name.starts_with(kStep) ? name.substr(std::string(kStep).size()) : "";
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return !digits.empty() && parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size()
             ? step
             : -1;
}

}  // namespace

PrimeRlBroadcast::PrimeRlBroadcast(std::filesystem::path root, at::ScalarType storage,
                                   std::filesystem::path copy_from,
                                   std::chrono::milliseconds patience)
    : root_(std::move(root)),
      storage_(storage),
      copy_from_(std::move(copy_from)),
      patience_(patience) {}

void PrimeRlBroadcast::publish(engine::UnitExport& units, int64_t version) const {
  const auto directory = root_ / (kStep + std::to_string(version));
  std::filesystem::remove_all(directory);  // left by an earlier start, with its markers
  std::filesystem::create_directories(directory);
  touch(directory / ".sender_ready");
  wait_for(directory / ".receiver_ready");
  touch(directory / ".started");
  engine::SaveOptions options;
  options.copy_from = copy_from_;
  engine::model_files(directory, storage_, options)(units);
  touch(directory / ".finished");
  prune(version);
}

void PrimeRlBroadcast::wait_for(const std::filesystem::path& marker) const {
  const auto deadline = std::chrono::steady_clock::now() + patience_;
  while (!std::filesystem::exists(marker)) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("prime-rl's orchestrator did not answer within " +
                               std::to_string(patience_.count()) + " ms: no " + marker.string());
    }
    std::this_thread::sleep_for(kLook);
  }
}

void PrimeRlBroadcast::prune(int64_t version) const {
  for (const auto& entry : std::filesystem::directory_iterator(root_)) {
    const int64_t step = step_of(entry.path().filename().string());
    if (step >= 0 && step < version - 1) {
      std::filesystem::remove_all(entry.path());
    }
  }
}

}  // namespace ringside::rl
