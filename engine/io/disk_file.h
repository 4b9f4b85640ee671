// Files of checkpoints: complete durable writes, and mapped reads.
//
// Throws: every failure is a std::system_error that names the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace ringside::engine {

// A new or truncated file, written front to back. The destructor closes it; call close() to get
// late errors.
class OutputFile {
 public:
  // Throws: std::system_error naming the path when it cannot be created.
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Appends `size` bytes.
  // Blocks: until the kernel has accepted all bytes.
  void write(const void* data, std::size_t size);
  // Call it once, after the last write(). Does not make the bytes durable.
  void close();

 private:
  std::filesystem::path path_;
  int fd_;
};

// A whole file in memory, read on demand. Writes to the memory stay private to this process.
// Truncating the file while it is mapped kills the process, as for any mapping.
class MappedFile {
 public:
  // Throws: std::system_error naming the path when it cannot be opened or mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Its size() bytes; null when it is empty.
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// Writes `text` as the whole content of a file. Not durable.
void write_text(const std::filesystem::path& path, std::string_view text);

// Makes a file's content, or a directory's entries, durable.
// Blocks: until the disk has the data.
void sync_path(const std::filesystem::path& path);

}  // namespace ringside::engine
