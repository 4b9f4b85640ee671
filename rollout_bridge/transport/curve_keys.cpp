#include "rollout_bridge/transport/curve_keys.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "rollout_bridge/base/posix_file.h"

namespace ringside::bridge {
namespace {

constexpr std::size_t kKeyCharacters = 40;
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kNamedCharacters = 8;  // shown for a key without a name
constexpr off_t kMaxFileBytes = 1 << 20;
constexpr mode_t kOthersBits = 077;

using KeyText = std::array<char, kKeyCharacters + 1>;  // libzmq writes a terminating zero

[[noreturn]] void bad_file(const std::filesystem::path& path, const std::string& what) {
  throw std::invalid_argument(path.string() + ": " + what);
}

// File descriptor, so that the mode is checked on the same file that is read.
class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) {
      throw std::system_error(errno, std::generic_category(), path.string());
    }
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string octal(mode_t mode) {
  std::ostringstream out;
  out << '0' << std::oct << (mode & 07777);
  return out.str();
}

std::string read_text(const std::filesystem::path& path, bool secret) {
  const Descriptor file(path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw std::system_error(errno, std::generic_category(), path.string());
  }
  if (!S_ISREG(status.st_mode)) {
    bad_file(path, "not a regular file");
  }
  if (secret && (status.st_mode & kOthersBits) != 0) {
    bad_file(path, "a secret key with mode " + octal(status.st_mode) +
                       " is open to others; expected 0600 (chmod 600)");
  }
  if (status.st_size > kMaxFileBytes) {
    bad_file(path,
             std::to_string(status.st_size) + " bytes, limit " + std::to_string(kMaxFileBytes));
  }
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw std::system_error(errno, std::generic_category(), path.string());
    }
    if (got == 0) {
      break;
    }
    filled += static_cast<std::size_t>(got);
  }
  text.resize(filled);
  return text;
}

struct Line {
  std::size_t number;
  std::string key;
  std::string comment;
};

// Error messages do not quote the line, because it may be a secret in the wrong place.
std::vector<Line> read_lines(const std::filesystem::path& path, bool secret) {
  std::istringstream text(read_text(path, secret));
  std::vector<Line> lines;
  std::string raw;
  for (std::size_t number = 1; std::getline(text, raw); ++number) {
    std::istringstream words(raw);
    Line line{number, "", ""};
    // '#' is a character of Z85, so only a '#' that stands alone begins a comment.
    if (!(words >> line.key) || line.key == "#") {
      continue;
    }
    if (!is_key(line.key)) {
      bad_file(path, "line " + std::to_string(number) +
                         ": expected a key of 40 Z85 characters, got " +
                         std::to_string(line.key.size()) + " characters");
    }
    std::getline(words >> std::ws, line.comment);
    line.comment.erase(line.comment.find_last_not_of(" \t\r") + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string read_one_key(const std::filesystem::path& path, bool secret) {
  const std::vector<Line> lines = read_lines(path, secret);
  if (lines.size() != 1) {
    bad_file(path, std::to_string(lines.size()) + " keys, expected 1");
  }
  return lines[0].key;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  PosixFile file(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
  file.append(std::as_bytes(std::span(text)));
  file.sync();
}

}  // namespace

KeyPair make_key_pair() {
  KeyText public_key{};
  KeyText secret_key{};
  if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    throw std::runtime_error(std::string("libzmq makes no CURVE keys: ") +
                             zmq_strerror(zmq_errno()));
  }
  return {public_key.data(), secret_key.data()};
}

bool is_key(std::string_view text) {
  if (text.size() != kKeyCharacters || text.find('\0') != std::string_view::npos) {
    return false;
  }
  std::array<uint8_t, kKeyBytes> bytes{};
  return zmq_z85_decode(bytes.data(), std::string(text).c_str()) != nullptr;
}

std::string public_key_of(const std::string& secret_key) {
  KeyText public_key{};
  if (!is_key(secret_key) || zmq_curve_public(public_key.data(), secret_key.c_str()) != 0) {
    throw std::invalid_argument("a secret key of " + std::to_string(secret_key.size()) +
                                " characters, expected 40 of Z85");
  }
  return public_key.data();
}

void write_key_pair(const std::filesystem::path& directory, const std::string& name,
                    const KeyPair& pair) {
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) {
    throw std::invalid_argument("key name '" + name + "': expected a plain file name");
  }
  const std::filesystem::path secret = directory / (name + ".key");
  const std::filesystem::path open = directory / (name + ".pub");
  for (const auto& path : {secret, open}) {
    if (std::filesystem::exists(std::filesystem::symlink_status(path))) {
      bad_file(path, "exists already; keys are never overwritten");
    }
  }
  std::filesystem::create_directories(directory);
  write_file(secret, pair.secret_key + "\n");
  try {
    write_file(open, pair.public_key + " " + name + "\n");
    using std::filesystem::perms;
    std::filesystem::permissions(
        open, perms::owner_read | perms::owner_write | perms::group_read | perms::others_read);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(secret, ignored);
    throw;
  }
  sync_directory(directory);
}

KeyPair read_secret_key(const std::filesystem::path& path) {
  std::string secret = read_one_key(path, /*secret=*/true);
  return {public_key_of(secret), std::move(secret)};
}

std::string read_public_key(const std::filesystem::path& path) {
  if (path.extension() == ".key") {
    bad_file(path, "is named as a secret key; expected the public one, NAME.pub");
  }
  return read_one_key(path, /*secret=*/false);
}

std::vector<AllowedKey> read_allowed_keys(const std::filesystem::path& path) {
  std::vector<AllowedKey> allowed;
  std::set<std::string> keys;
  std::set<std::string> names;
  for (Line& line : read_lines(path, /*secret=*/false)) {
    if (line.comment.empty()) {
      line.comment = "key " + line.key.substr(0, kNamedCharacters);
    }
    const std::string where = "line " + std::to_string(line.number);
    if (!keys.insert(line.key).second) {
      bad_file(path, where + ": the key is there twice");
    }
    if (!names.insert(line.comment).second) {
      bad_file(path, where + ": the name '" + line.comment + "' is there twice");
    }
    allowed.push_back({std::move(line.key), std::move(line.comment)});
  }
  return allowed;
}

}  // namespace ringside::bridge
