// A file descriptor that closes itself, with the few calls a journal needs. Every failure throws
// std::system_error with the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace ringside::bridge {

class PosixFile {
 public:
  // flags as of open(2); files are created with mode 0600.
  PosixFile(std::filesystem::path path, int flags);
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;

  // Takes an exclusive advisory lock; throws std::runtime_error at once when another holds it.
  void lock();
  uint64_t size() const;
  // Writes all bytes at the end of the file (O_APPEND).
  void append(std::span<const std::byte> bytes);
  // Reads up to out.size() bytes at `offset`; returns how many there were.
  std::size_t read_at(uint64_t offset, std::span<std::byte> out) const;
  void truncate(uint64_t size);
  void sync();
  const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* what) const;
  std::filesystem::path path_;
  int fd_ = -1;
};

// Makes a rename or creation inside `directory` durable.
void sync_directory(const std::filesystem::path& directory);

}  // namespace ringside::bridge
