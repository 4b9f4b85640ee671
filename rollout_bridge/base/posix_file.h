// RAII file descriptor with the operations of a journal.
//
// Throws: every failure is a std::system_error with the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "rollout_bridge/base/file_system.h"

namespace ringside::bridge {

class PosixFile final : public File {
 public:
  // flags as of open(2); files are created with mode 0600.
  PosixFile(std::filesystem::path path, int flags);
  ~PosixFile() override;
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;

  void lock() override;
  uint64_t size() const override;
  void append(std::span<const std::byte> bytes) override;
  std::size_t read_at(uint64_t offset, std::span<std::byte> out) const override;
  void truncate(uint64_t size) override;
  void sync() override;
  const std::filesystem::path& path() const override { return path_; }

 private:
  [[noreturn]] void fail(const char* what) const;
  std::filesystem::path path_;
  int fd_ = -1;
};

// Makes a rename or creation inside `directory` durable.
// Blocks: until the disk has it.
void sync_directory(const std::filesystem::path& directory);

}  // namespace ringside::bridge
