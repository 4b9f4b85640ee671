#include "tests/simulator/disk.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace ringside::simulator {

class OpenFile final : public bridge::File {
 public:
  OpenFile(Disk& disk, std::filesystem::path path, std::shared_ptr<DiskFile> file)
      : disk_(disk), path_(std::move(path)), file_(std::move(file)) {}

  void lock() override {}
  uint64_t size() const override { return file_->bytes.size(); }
  void append(std::span<const std::byte> bytes) override {
    disk_.append(*file_, bytes, path_.string());
  }
  std::size_t read_at(uint64_t offset, std::span<std::byte> out) const override {
    if (offset >= file_->bytes.size()) {
      return 0;
    }
    const std::size_t count = std::min<std::size_t>(out.size(), file_->bytes.size() - offset);
    std::copy_n(file_->bytes.begin() + static_cast<std::ptrdiff_t>(offset), count, out.begin());
    return count;
  }
  void truncate(uint64_t size) override {
    file_->bytes.resize(size);
    file_->synced = std::min<std::size_t>(file_->synced, size);
  }
  void sync() override { file_->synced = file_->bytes.size(); }
  const std::filesystem::path& path() const override { return path_; }

 private:
  Disk& disk_;
  std::filesystem::path path_;
  std::shared_ptr<DiskFile> file_;
};

std::unique_ptr<bridge::File> Disk::open(const std::filesystem::path& path) {
  auto& file = files_[path.string()];
  if (!file) {
    file = std::make_shared<DiskFile>();
  }
  return std::make_unique<OpenFile>(*this, path, file);
}

std::unique_ptr<bridge::File> Disk::create(const std::filesystem::path& path) {
  files_[path.string()] = std::make_shared<DiskFile>();
  return open(path);
}

void Disk::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  files_[to.string()] = files_.at(from.string());
  files_.erase(from.string());
}

void Disk::remove(const std::filesystem::path& path) { files_.erase(path.string()); }

void Disk::append(DiskFile& file, std::span<const std::byte> bytes, const std::string& path) {
  const bool crashes = appends_to_crash_ > 0 && --appends_to_crash_ == 0;
  std::size_t written = bytes.size();
  if (crashes || full_) {
    const int64_t kind = full_ ? 2 : random_.between(0, 2);  // before, after, within
    const auto length = static_cast<int64_t>(bytes.size());
    written = kind == 0   ? 0
              : kind == 1 ? bytes.size()
                          : static_cast<std::size_t>(random_.between(0, length - 1));
  }
  file.bytes.insert(file.bytes.end(), bytes.begin(),
                    bytes.begin() + static_cast<std::ptrdiff_t>(written));
  if (crashes) {
    throw ProcessCrash{};
  }
  if (full_) {
    throw std::system_error(ENOSPC, std::generic_category(), path + ": write");
  }
}

bool Disk::flip_bit(const std::string& path, std::size_t keep) {
  const auto file = files_.find(path);
  if (file == files_.end() || file->second->bytes.size() <= keep) {
    return false;
  }
  auto& bytes = file->second->bytes;
  const auto at = static_cast<std::size_t>(
      random_.between(static_cast<int64_t>(keep), static_cast<int64_t>(bytes.size()) - 1));
  bytes[at] ^= std::byte{1} << random_.between(0, 7);
  return true;
}

std::span<const std::byte> Disk::content(const std::string& path) const {
  const auto file = files_.find(path);
  return file == files_.end() ? std::span<const std::byte>() : file->second->bytes;
}

void Disk::machine_crash() {
  if (files_ != durable_ && random_.chance(0.5)) {
    files_ = durable_;
  }
  for (auto& [path, file] : files_) {
    const auto low = static_cast<int64_t>(file->synced);
    const auto high = static_cast<int64_t>(file->bytes.size());
    file->bytes.resize(static_cast<std::size_t>(random_.between(low, high)));
  }
}

}  // namespace ringside::simulator
