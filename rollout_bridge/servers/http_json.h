// Calls with JSON over HTTP, each with a deadline and a limit on the answer's length.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "rollout_bridge/base/result.h"

namespace ringside::bridge {

using Deadline = std::chrono::steady_clock::time_point;

// An answer of status 200.
struct HttpAnswer {
  std::string text;
  std::string
      context;  // method, URL, status and the first 200 bytes, for what is found wrong later
};

struct JsonAnswer {
  nlohmann::json value;
  std::string context;
  // `detail` with the context behind it.
  Error wrong(Reason reason, const std::string& detail) const {
    return Error{reason, detail + " in " + context};
  }
};

// RFC 4648, with padding: bytes as a JSON string.
std::string base64(std::span<const uint8_t> bytes);

// Each call has a connection of its own, so nothing is left over from a call that was cut off.
// Redirects are not followed. Blocks until the deadline at most, apart from name resolution, which
// is the system's: name servers by address where that matters.
class HttpJson {
 public:
  // `url` is http://host[:port][/prefix], without user, query or fragment. A key that is not empty
  // goes out as bearer token and never appears in an error. Throws std::invalid_argument on another
  // form of URL, control characters in the key, or a limit of 0.
  HttpJson(const std::string& url, std::string api_key, std::size_t max_bytes);

  // Statuses other than 200 are errors, see InferenceServer. `path` starts with '/'.
  Result<HttpAnswer> get(const std::string& path, Deadline deadline) const;
  // An empty body goes out as such, without a content type.
  Result<HttpAnswer> post(const std::string& path, const std::string& body,
                          Deadline deadline) const;
  // kMalformed unless the answer is JSON (NaN is not).
  Result<JsonAnswer> get_json(const std::string& path, Deadline deadline) const;
  Result<JsonAnswer> post_json(const std::string& path, const nlohmann::json& body,
                               Deadline deadline) const;

 private:
  Result<HttpAnswer> send(const std::string& method, const std::string& path,
                          const std::string& body, Deadline deadline) const;

  std::string url_;
  std::string host_;
  int port_ = 80;
  std::string prefix_;
  std::string api_key_;
  std::size_t max_bytes_;
};

}  // namespace ringside::bridge
