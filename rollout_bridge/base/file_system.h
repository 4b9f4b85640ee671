// File system interface of the journal, implemented by the operating system or by a test's memory.
//
// Throws: every failure is a std::system_error with the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace ringside::bridge {

// Thread safety: none.
class File {
 public:
  virtual ~File() = default;
  // Takes an exclusive advisory lock.
  // Throws: std::runtime_error at once when another process holds it.
  virtual void lock() = 0;
  // Bytes.
  virtual uint64_t size() const = 0;
  // Appends all bytes to the file.
  virtual void append(std::span<const std::byte> bytes) = 0;
  // Reads up to out.size() bytes at `offset`; returns the number of bytes read.
  virtual std::size_t read_at(uint64_t offset, std::span<std::byte> out) const = 0;
  virtual void truncate(uint64_t size) = 0;
  // Makes the content durable.
  // Blocks: until the disk has it.
  virtual void sync() = 0;
  virtual const std::filesystem::path& path() const = 0;
};

// Thread safety: any thread, for different paths.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Opens for reading and appending. Creates a missing file.
  virtual std::unique_ptr<File> open(const std::filesystem::path& path) = 0;
  // open() of a file that is emptied first.
  virtual std::unique_ptr<File> create(const std::filesystem::path& path) = 0;
  virtual void create_directories(const std::filesystem::path& directory) = 0;
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void remove(const std::filesystem::path& path) = 0;
  // Makes a rename or creation inside `directory` durable.
  // Blocks: until the disk has it.
  virtual void sync_directory(const std::filesystem::path& directory) = 0;
};

// The operating system's file system.
// Thread safety: any thread.
std::shared_ptr<FileSystem> posix_file_system();

}  // namespace ringside::bridge
