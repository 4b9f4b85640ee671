// HTTP client for JSON, with a deadline and a length limit for each call.
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
  std::string context;  // method, URL, status and the first 200 bytes, for later error messages
};

struct JsonAnswer {
  nlohmann::json value;
  std::string context;
  // An error with `detail` and the context.
  Error wrong(Reason reason, const std::string& detail) const {
    return Error{reason, detail + " in " + context};
  }
};

// Each call opens its own connection, so an aborted call leaves nothing behind. Redirects are not
// followed.
// Blocks: at most until the deadline, apart from name resolution, which the deadline does not
// bound; use an IP address where that matters.
class HttpJson {
 public:
  // `url` is http://host[:port][/prefix] or https://..., without user, query or fragment. With
  // https the server's certificate must be valid for the host and signed by an authority that this
  // machine trusts (OpenSSL's SSL_CERT_FILE names others). A non-empty key is sent as bearer token
  // and never appears in an error.
  // Throws: std::invalid_argument on another form of URL, control characters in the key, or a limit
  // of 0.
  HttpJson(const std::string& url, std::string api_key, std::size_t max_bytes);

  // A status other than 200 is an error, see InferenceServer. `path` starts with '/'.
  Result<HttpAnswer> get(const std::string& path, Deadline deadline) const;
  // An empty body is sent without a content type.
  Result<HttpAnswer> post(const std::string& path, const std::string& body,
                          Deadline deadline) const;
  // Errors: kMalformed when the answer is not JSON (NaN is not).
  Result<JsonAnswer> get_json(const std::string& path, Deadline deadline) const;
  Result<JsonAnswer> post_json(const std::string& path, const nlohmann::json& body,
                               Deadline deadline) const;

 private:
  Result<HttpAnswer> send(const std::string& method, const std::string& path,
                          const std::string& body, Deadline deadline) const;

  std::string url_;
  std::string scheme_;
  std::string host_;
  int port_ = 0;
  std::string prefix_;
  std::string api_key_;
  std::size_t max_bytes_;
};

}  // namespace ringside::bridge
