#include "rollout_bridge/servers/http_json.h"

#include <httplib.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace ringside::bridge {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kExcerptBytes = 200;

// Closes the connection at the deadline. The library's timeouts apply to a single read, so a server
// that sends one header byte at a time could hold the caller forever.
class Watchdog {
 public:
  Watchdog(httplib::Client& client, Deadline deadline)
      : thread_([this, &client, deadline](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          const auto never = [] { return false; };
          ended_.wait_until(lock, stop, deadline, never);
          // Repeated, because the connection may not have existed at the first call.
          while (!stop.stop_requested()) {
            client.stop();
            ended_.wait_for(lock, stop, std::chrono::milliseconds(20), never);
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  // last member: it uses the others and is joined first
};

Reason reason_of_status(int status) {
  switch (status) {
    case 401:
    case 403:
      return Reason::kDenied;
    case 404:
    case 405:
    case 501:
      return Reason::kUnsupported;
    case 429:
    case 503:
      return Reason::kBusy;
    default:
      return status >= 500 ? Reason::kClosed : Reason::kInvalidField;
  }
}

int port_of(const std::string& text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool read = error == std::errc{} && end == text.data() + text.size();
  return read && port >= 1 && port <= 65535 ? port : 0;
}

// In words for whoever started the server: those of the library are single words.
std::string words_of(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "cannot connect; expected a server that listens there";
    case httplib::Error::BindIPAddress:
      return "cannot bind an address of this machine";
    case httplib::Error::Read:
      return "the connection ended before the answer was whole";
    case httplib::Error::Write:
      return "the connection ended before the request was sent";
    case httplib::Error::SSLServerVerification:
      return "the server's certificate is not valid for this host or not signed by an authority "
             "that this machine trusts; SSL_CERT_FILE names a file of others";
    case httplib::Error::SSLConnection:
      return "no TLS connection; expected a server that speaks https there";
    default:
      return "the request failed (" + httplib::to_string(error) + ")";
  }
}

bool graphic(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

HttpJson::HttpJson(const std::string& url, std::string api_key, std::size_t max_bytes)
    : url_(url), api_key_(std::move(api_key)), max_bytes_(max_bytes) {
  scheme_ = url.starts_with("https://") ? "https://" : "http://";
  port_ = scheme_ == "https://" ? 443 : 80;
  const std::size_t path = std::min(url.find('/', scheme_.size()), url.size());
  std::string place = url.substr(0, path);
  bool good = graphic(url) && place.starts_with(scheme_) && url.find_first_of("@?#") == url.npos;
  if (good) {
    place.erase(0, scheme_.size());
    const std::size_t colon = place.find(':', place.starts_with('[') ? place.find(']') : 0);
    if (colon != place.npos) {
      port_ = port_of(place.substr(colon + 1));
      place.erase(colon);
    }
    host_ =
        place.starts_with('[') && place.ends_with(']') ? place.substr(1, place.size() - 2) : place;
    good = !host_.empty() && port_ != 0 && host_.find_first_of("[]") == host_.npos;
  }
  if (!good) {
    throw std::invalid_argument("'" + clip_text(url, kExcerptBytes) +
                                "' is not of the form http[s]://host[:port][/prefix]");
  }
  prefix_ = url.substr(path);
  while (prefix_.ends_with('/')) {
    prefix_.pop_back();
  }
  while (url_.ends_with('/')) {
    url_.pop_back();
  }
  if (!graphic(api_key_)) {
    throw std::invalid_argument("the API key holds control characters");
  }
  if (max_bytes == 0) {
    throw std::invalid_argument("an answer's limit is 0 bytes; expected more");
  }
}

Result<HttpAnswer> HttpJson::send(const std::string& method, const std::string& path,
                                  const std::string& body, Deadline deadline) const {
  const std::string name = method + " " + url_ + path;
  const auto left = deadline - Clock::now();
  if (left.count() <= 0) {
    return Error{Reason::kTimeout, name + ": no time is left"};
  }
  httplib::Client client = scheme_ == "https://"
                               ? httplib::Client(scheme_ + host_ + ":" + std::to_string(port_))
                               : httplib::Client(host_, port_);
  // Rounds up, because the library drops fractions of a millisecond and an end before the deadline
  // would not count as a timeout.
  const auto whole = std::chrono::ceil<std::chrono::milliseconds>(left);
  client.set_connection_timeout(whole);
  client.set_read_timeout(whole);
  client.set_write_timeout(whole);

  HttpAnswer answer;
  bool too_long = false;
  httplib::Request request;
  request.method = method;
  request.path = prefix_ + path;
  if (!body.empty()) {
    request.set_header("Content-Type", "application/json");
  }
  if (!api_key_.empty()) {
    request.set_header("Authorization", "Bearer " + api_key_);
  }
  request.body = body;
  request.content_receiver = [&](const char* data, std::size_t length, uint64_t, uint64_t) {
    too_long = length > max_bytes_ - answer.text.size();
    if (!too_long) {
      answer.text.append(data, length);
    }
    return !too_long && Clock::now() < deadline;
  };
  const httplib::Result result = [&] {
    const Watchdog watchdog(client, deadline);
    return client.send(request);
  }();
  if (too_long) {
    return Error{Reason::kLimit,
                 name + ": the answer is longer than " + std::to_string(max_bytes_) + " bytes"};
  }
  if (!result) {
    if (Clock::now() >= deadline) {
      return Error{Reason::kTimeout, name + ": no answer in time"};
    }
    return Error{Reason::kClosed, name + ": " + words_of(result.error())};
  }
  answer.context = name + ": status " + std::to_string(result->status) + ": " +
                   clip_text(answer.text.substr(0, kExcerptBytes), kExcerptBytes);
  if (result->status != 200) {
    return Error{reason_of_status(result->status), answer.context};
  }
  return answer;
}

Result<HttpAnswer> HttpJson::get(const std::string& path, Deadline deadline) const {
  return send("GET", path, "", deadline);
}

Result<HttpAnswer> HttpJson::post(const std::string& path, const std::string& body,
                                  Deadline deadline) const {
  return send("POST", path, body, deadline);
}

namespace {

Result<JsonAnswer> parsed(const Result<HttpAnswer>& got) {
  if (!got) {
    return got.error();
  }
  JsonAnswer answer{json::parse(got.value().text, nullptr, /*allow_exceptions=*/false),
                    got.value().context};
  if (answer.value.is_discarded()) {
    return answer.wrong(Reason::kMalformed, "no JSON");
  }
  return answer;
}

}  // namespace

Result<JsonAnswer> HttpJson::get_json(const std::string& path, Deadline deadline) const {
  return parsed(get(path, deadline));
}

Result<JsonAnswer> HttpJson::post_json(const std::string& path, const json& body,
                                       Deadline deadline) const {
  // The text may hold bytes that are not UTF-8, for which dump would throw by default.
  return parsed(post(path, body.dump(-1, ' ', false, json::error_handler_t::replace), deadline));
}

}  // namespace ringside::bridge
