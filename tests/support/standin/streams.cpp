#include "tests/support/standin/streams.h"

#include <array>
#include <atomic>
#include <stdexcept>

namespace ringside::standin {
namespace {

constexpr int64_t kMaxStreams = 10000;

thread_local int device_of_thread = 0;
thread_local std::array<int64_t, kDevices> streams_of_thread = {};

}  // namespace

int current_device() { return device_of_thread; }
void set_current_device(int device) { device_of_thread = device; }

StreamKey current_stream(int device) { return {device, streams_of_thread.at(device)}; }
void set_current_stream(StreamKey stream) { streams_of_thread.at(stream.device) = stream.id; }

StreamKey new_stream(int device) {
  static std::atomic<int64_t> made{0};
  const int64_t id = ++made;
  if (id > kMaxStreams) {
    throw std::runtime_error("stand-in: more than 10000 streams were made");
  }
  return {device, id};
}

}  // namespace ringside::standin
