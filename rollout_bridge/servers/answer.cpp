#include "rollout_bridge/servers/answer.h"

#include <charconv>
#include <cmath>

namespace ringside::bridge {
namespace {

using nlohmann::json;

// Of a side of an image; bounds the product of two sides.
constexpr int64_t kMostPatches = 1 << 20;

Error invalid(const std::string& detail) { return Error{Reason::kInvalidField, detail}; }
Error malformed(const std::string& detail) { return Error{Reason::kMalformed, detail}; }

std::string element(const std::string& name, std::size_t i) {
  return name + "[" + std::to_string(i) + "]";
}

// Applies `read` to every element of an array.
template <class T, class Read>
Result<std::vector<T>> read_array(const json& value, const std::string& name, const Read& read) {
  if (!value.is_array()) {
    return malformed(name + " is no array");
  }
  std::vector<T> items;
  items.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Result<T> item = read(value[i], element(name, i));
    if (!item) {
      return item.error();
    }
    items.push_back(item.value());
  }
  return items;
}

Status check_spans(const GenerateResult& result) {
  if (result.versions.empty()) {
    return Success{};
  }
  int64_t next = 0;
  for (const LabelSpan& span : result.versions) {
    if (span.begin != next || span.end < span.begin) {
      return invalid("a span of weights is [" + std::to_string(span.begin) + ", " +
                     std::to_string(span.end) + ") where one beginning at " + std::to_string(next) +
                     " was expected");
    }
    next = span.end;
  }
  const auto count = static_cast<int64_t>(result.completion_ids.size());
  if (next == count) {
    return Success{};
  }
  return invalid("the spans of weights end at " + std::to_string(next) + " of " +
                 std::to_string(count) + " tokens");
}

Status check_image(const RequestImage& image, const std::string& name, int64_t from,
                   int64_t prompt) {
  if (image.id.empty()) {
    return invalid(name + ".id is empty");
  }
  if (image.begin < from || image.tokens < 1 || image.tokens > prompt - image.begin) {
    return invalid(name + " has " + std::to_string(image.tokens) + " tokens from " +
                   std::to_string(image.begin) + "; expected 1 or more within [" +
                   std::to_string(from) + ", " + std::to_string(prompt) + ")");
  }
  const auto numbers = image.patches ? image.patches->size() : std::size_t{0};
  const bool grid = image.grid_height >= 1 && image.grid_width >= 1 &&
                    image.grid_height <= kMostPatches && image.grid_width <= kMostPatches;
  if (!grid || numbers == 0 ||
      numbers % static_cast<std::size_t>(image.grid_height * image.grid_width) != 0) {
    return invalid(name + " has " + std::to_string(numbers) + " numbers for " +
                   std::to_string(image.grid_height) + " x " + std::to_string(image.grid_width) +
                   " patches; expected rows of equal length");
  }
  return Success{};
}

// Images follow each other in the prompt and do not overlap.
Status check_images(const GenerateRequest& request) {
  int64_t from = 0;
  for (std::size_t i = 0; i < request.images.size(); ++i) {
    const RequestImage& image = request.images[i];
    const Status status = check_image(image, element("images", i), from,
                                      static_cast<int64_t>(request.prompt_ids.size()));
    if (!status) {
      return status;
    }
    from = image.begin + image.tokens;
  }
  return Success{};
}

}  // namespace

const json* member(const json& object, const char* key) {
  if (!object.is_object()) {
    return nullptr;
  }
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> text_member(const json& object, const char* key) {
  const json* value = member(object, key);
  if (value == nullptr || !value->is_string()) {
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::optional<int64_t> version_of_label(const std::string& label) {
  int64_t version = 0;
  const char* end = label.data() + label.size();
  const auto [stop, error] = std::from_chars(label.data(), end, version);
  // Accepts only text that std::to_string produces, so label and version correspond one to one.
  if (error != std::errc{} || stop != end || version < 0) {
    return std::nullopt;
  }
  return std::to_string(version) == label ? std::optional(version) : std::nullopt;
}

Result<int64_t> read_id(const json& value, const std::string& name, int64_t limit) {
  if (!value.is_number_integer()) {
    return malformed(name + " is no whole number");
  }
  // Reads unsigned numbers as unsigned: 2^63 and above would become negative, which is refused as
  // well.
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() < static_cast<uint64_t>(limit)
                        : value.get<int64_t>() >= 0 && value.get<int64_t>() < limit;
  if (fits) {
    return value.get<int64_t>();
  }
  return invalid(name + " is " + value.dump() + "; expected a token id in [0, " +
                 std::to_string(limit) + ")");
}

Result<std::vector<int64_t>> read_ids(const json& value, const std::string& name, int64_t limit) {
  return read_array<int64_t>(value, name, [limit](const json& item, const std::string& at) {
    return read_id(item, at, limit);
  });
}

Result<float> read_logprob(const json& value, const std::string& name) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (number >= kLowestLogprob && number <= kMaxLogprob) {
    return static_cast<float>(number);
  }
  return invalid(name + (value.is_number() ? " is " + std::to_string(number) : " is no number") +
                 "; expected a log-prob in [" + std::to_string(kLowestLogprob) + ", 0]");
}

Result<std::vector<float>> read_logprobs(const json& value, const std::string& name) {
  return read_array<float>(value, name, read_logprob);
}

Status check_result(const GenerateResult& result, const GenerateRequest& request) {
  const std::size_t ids = result.completion_ids.size();
  const std::size_t logprobs = result.logprobs.size();
  if (result.logprobs_complete ? logprobs != ids : logprobs != 0) {
    return malformed(std::to_string(logprobs) + " log-probs for " + std::to_string(ids) +
                     " token ids");
  }
  if (static_cast<int64_t>(ids) > request.max_tokens) {
    return invalid(std::to_string(ids) + " token ids; at most " +
                   std::to_string(request.max_tokens) + " were asked for");
  }
  const bool cut = result.finish_reason == FinishReason::kAborted ||
                   result.finish_reason == FinishReason::kError;
  if (ids == 0 && !cut) {
    return invalid(std::string("no token id although it finished with ") +
                   finish_reason_name(result.finish_reason));
  }
  return check_spans(result);
}

Status check_settings(const SamplingSettings& settings) {
  const auto refuse = [](const char* name, double value, const char* expected) {
    return invalid(std::string(name) + " is " + std::to_string(value) + "; expected " + expected);
  };
  if (!(settings.temperature > 0) || !std::isfinite(settings.temperature)) {
    return refuse("temperature", settings.temperature, "more than 0");
  }
  if (!(settings.top_p > 0 && settings.top_p <= 1)) {
    return refuse("top_p", settings.top_p, "a value in (0, 1]");
  }
  if (settings.top_k < 0) {
    return invalid("top_k is negative; expected 0 (off) or more");
  }
  if (settings.min_p != 0) {
    return refuse("min_p", settings.min_p, "0: a rollout cannot state it");
  }
  if (settings.repetition_penalty != 1) {
    return refuse("repetition_penalty", settings.repetition_penalty,
                  "1: a rollout cannot state it");
  }
  if (settings.presence_penalty != 0) {
    return refuse("presence_penalty", settings.presence_penalty, "0: a rollout cannot state it");
  }
  if (settings.frequency_penalty != 0) {
    return refuse("frequency_penalty", settings.frequency_penalty, "0: a rollout cannot state it");
  }
  return Success{};
}

Status check_request(const GenerateRequest& request, int64_t vocab_size) {
  if (request.prompt_ids.empty()) {
    return invalid("prompt_ids is empty");
  }
  for (const auto* ids : {&request.prompt_ids, &request.stop_ids}) {
    for (const int64_t id : *ids) {
      if (id >= 0 && id < vocab_size) {
        continue;
      }
      return invalid(std::string(ids == &request.prompt_ids ? "prompt_ids" : "stop_ids") +
                     " holds " + std::to_string(id) + "; expected ids in [0, " +
                     std::to_string(vocab_size) + ")");
    }
  }
  if (request.max_tokens < 1) {
    return invalid("max_tokens is " + std::to_string(request.max_tokens) + "; expected 1 or more");
  }
  if (request.request_id.empty()) {
    return invalid("request_id is empty");
  }
  if (request.cache_salt.empty()) {
    return invalid("cache_salt is empty; expected a weight version");
  }
  const Status images = check_images(request);
  return images ? check_settings(request.sampling) : images;
}

}  // namespace ringside::bridge
