// CURVE keys of the bridge: pairs, the files they lie in, and what each side of a connection holds.
// A key is written as Z85 text of 40 characters (ZeroMQ RFC 32); CURVE itself is ZeroMQ RFC 26.
// Everything here is thread-safe; files are read and written blocking.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::bridge {

struct KeyPair {
  std::string public_key;
  std::string secret_key;
};

// A worker's public key as the trainer's allow-list has it.
struct AllowedKey {
  std::string public_key;
  std::string name;  // for the log; not empty
};

// What the trainer holds: its secret and who may come in. Nobody may when the list is empty.
struct CurveServer {
  std::string secret_key;
  std::vector<AllowedKey> allowed;
};

// What a worker holds: its own pair and the one trainer it talks to.
struct CurveClient {
  KeyPair own;
  std::string server_key;
};

// A new pair from the system's random numbers. Throws std::runtime_error when libzmq has no CURVE.
KeyPair make_key_pair();
// 40 characters that decode as Z85.
bool is_key(std::string_view text);
// The public half of a secret key. Throws std::invalid_argument when it is no key.
std::string public_key_of(const std::string& secret_key);

// Writes DIRECTORY/NAME.key (mode 0600) and DIRECTORY/NAME.pub, and makes the directory. Throws
// std::invalid_argument when one of them is there already or the name is no plain file name,
// std::system_error on other trouble; leaves neither file behind then.
void write_key_pair(const std::filesystem::path& directory, const std::string& name,
                    const KeyPair& pair);

// The three kinds of files hold one entry a line; blank lines and lines that begin with "# " are
// skipped. A key may be followed by blanks and a comment. All throw std::invalid_argument with path
// and line for anything else, std::system_error when the file cannot be read.

// One secret key. The file must be a regular one that its owner alone may read: mode 0600 or 0400.
KeyPair read_secret_key(const std::filesystem::path& path);
// One public key: NAME.pub. Refuses a file named NAME.key, which holds a secret.
std::string read_public_key(const std::filesystem::path& path);
// Any number of public keys; the comment names the key in the log, "key ABCDEFGH" (its first
// characters) without one. A key or a name that comes twice is an error.
std::vector<AllowedKey> read_allowed_keys(const std::filesystem::path& path);

}  // namespace ringside::bridge
