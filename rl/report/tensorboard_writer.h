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

// TFRecord's mask of a CRC: rotated right by 15 bits, plus 0xa282ead8. It keeps a CRC over data
// that contains CRCs reliable.
std::uint32_t masked_crc32c(std::span<const std::byte> bytes);

// Writes scalar summaries to `folder`/events.out.tfevents.<seconds>.<host>.<pid>.<n>.
// Thread safety: none.
class TensorboardWriter {
 public:
  // Creates the folder and a new file in it. Earlier files stay; TensorBoard shows all of them as
  // one run. first_step: after a resume the next step, so that TensorBoard discards the events of
  // earlier files from that step on; -1 at the start of a run.
  // Throws: std::runtime_error when the file cannot be created.
  TensorboardWriter(const std::filesystem::path& folder, int64_t first_step);
  ~TensorboardWriter();
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  // Writes one event with all metrics as 32-bit floats, the format's own precision. Names are tags;
  // a slash groups them.
  // Throws: std::runtime_error when the disk is full.
  void write(int64_t step, const Metrics& metrics);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(const std::string& event);

  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace ringside::rl
