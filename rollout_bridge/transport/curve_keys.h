// CURVE keys of the bridge: key pairs, key files, and the keys that each side of a connection
// holds.
//
// A key is Z85 text of 40 characters.
// Source: ZeroMQ RFC 26 (CURVE) and RFC 32 (Z85).
// Blocks: on file I/O.
// Thread safety: every function.
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

// A worker's public key on the trainer's allow-list.
struct AllowedKey {
  std::string public_key;
  std::string name;  // for the log; not empty
};

// The trainer's keys: its secret key and the allow-list. An empty list admits nobody.
struct CurveServer {
  std::string secret_key;
  std::vector<AllowedKey> allowed;
};

// A worker's keys: its own pair and the public key of its trainer.
struct CurveClient {
  KeyPair own;
  std::string server_key;
};

// A new pair from the system's random numbers.
// Throws: std::runtime_error when libzmq was built without CURVE.
KeyPair make_key_pair();
// True for 40 characters that decode as Z85.
bool is_key(std::string_view text);
// The public key of a secret key.
// Throws: std::invalid_argument when it is not a key.
std::string public_key_of(const std::string& secret_key);

// Writes DIRECTORY/NAME.key (mode 0600) and DIRECTORY/NAME.pub. Creates the directory. Leaves
// neither file behind on failure.
// Throws: std::invalid_argument when one of the files exists or the name is not a plain file name;
// std::system_error on other failures.
void write_key_pair(const std::filesystem::path& directory, const std::string& name,
                    const KeyPair& pair);

// Key files hold one key a line. Blank lines and lines that begin with "# " are skipped. A key may
// be followed by blanks and a comment.
// Throws (all three): std::invalid_argument with path and line for any other content;
// std::system_error when the file cannot be read.

// One secret key. The file must be a regular file that only its owner may read: mode 0600 or 0400.
KeyPair read_secret_key(const std::filesystem::path& path);
// One public key: NAME.pub. Refuses a file named NAME.key, because it holds a secret.
std::string read_public_key(const std::filesystem::path& path);
// Any number of public keys. The comment is the key's name in the log; without one the name is "key
// ABCDEFGH" (its first characters). A repeated key or name is an error.
std::vector<AllowedKey> read_allowed_keys(const std::filesystem::path& path);

}  // namespace ringside::bridge
