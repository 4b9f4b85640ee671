// TensorBoard event files, encoded by hand: two small messages do not justify libprotobuf, which
// would also clash with the one inside libtorch_cpu.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "rl/report/metrics.h"

namespace ringside::rl {

// CRC-32C (Castagnoli, RFC 3720 section 12.1): reflected polynomial 0x82f63b78, initial and final
// value inverted.
std::uint32_t crc32c(std::span<const std::byte> bytes);

// TFRecord's mask: rotated right by 15 bits, plus 0xa282ead8, so that a CRC over data that holds
// CRCs stays sound.
std::uint32_t masked_crc32c(std::span<const std::byte> bytes);

// Writes scalar summaries to `folder`/events.out.tfevents.<seconds>.<host>.<pid>.<n>. Not
// thread-safe.
class TensorboardWriter {
 public:
  // Makes the folder and a new file in it; earlier files stay and TensorBoard shows all as one run.
  // After a resume pass the first step to come: an event of it makes TensorBoard drop what earlier
  // files hold from that step on; -1 at the start of a run. Throws std::runtime_error when the file
  // cannot be created.
  TensorboardWriter(const std::filesystem::path& folder, std::int64_t first_step);
  ~TensorboardWriter();
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  // One event with all metrics as 32-bit floats, the format's own precision. Throws
  // std::runtime_error when the disk is full. Names are tags: a slash groups them.
  void write(std::int64_t step, const Metrics& metrics);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(const std::string& event);

  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace ringside::rl
