#include "rollout_bridge/servers/vllm_token_route.h"

#include <bit>
#include <cstring>
#include <msgpack.hpp>
#include <span>
#include <utility>

#include "rollout_bridge/base/base64.h"
#include "rollout_bridge/servers/answer.h"
#include "rollout_bridge/servers/vllm_choice.h"

namespace ringside::bridge {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are sent as they lie in memory");

constexpr int8_t kRawView = 3;  // CUSTOM_TYPE_RAW_VIEW

using Packer = msgpack::packer<msgpack::sbuffer>;

void pack_text(Packer& packer, const char* text) {
  const auto size = static_cast<uint32_t>(std::strlen(text));
  packer.pack_str(size);
  packer.pack_str_body(text, size);
}

// [dtype, shape, bytes], under the key "data".
template <class T>
void pack_tensor(Packer& packer, const char* dtype, const std::vector<int64_t>& shape,
                 std::span<const T> values) {
  pack_text(packer, "data");
  packer.pack_array(3);
  pack_text(packer, dtype);
  packer.pack(shape);
  packer.pack_ext(values.size_bytes(), kRawView);
  packer.pack_ext_body(reinterpret_cast<const char*>(values.data()),
                       static_cast<uint32_t>(values.size_bytes()));
}

// How vLLM joins the items of a batch: this one is a stack.
void pack_grid(Packer& packer, const RequestImage& image) {
  const int64_t grid[] = {1, image.grid_height, image.grid_width};
  pack_text(packer, "image_grid_thw");
  packer.pack_map(2);
  pack_tensor(packer, "int64", {3}, std::span<const int64_t>(grid));
  pack_text(packer, "field");
  packer.pack_array(2);
  pack_text(packer, "batched");
  packer.pack_map(1);
  pack_text(packer, "keep_on_cpu");
  packer.pack_true();
}

// And this one puts rows one after another: those of [0, patches) are the image's.
void pack_patches(Packer& packer, const RequestImage& image) {
  const int64_t patches = image.grid_height * image.grid_width;
  const auto numbers = static_cast<int64_t>(image.patches->size());
  pack_text(packer, "pixel_values");
  packer.pack_map(2);
  pack_tensor(packer, "float32", {patches, numbers / patches},
              std::span<const float>(*image.patches));
  pack_text(packer, "field");
  packer.pack_array(2);
  pack_text(packer, "flat");
  packer.pack_map(3);
  pack_text(packer, "keep_on_cpu");
  packer.pack_false();
  pack_text(packer, "slices");
  packer.pack_array(1);
  packer.pack_array(1);
  packer.pack_array(3);
  packer.pack(int64_t{0});
  packer.pack(patches);
  packer.pack_nil();
  pack_text(packer, "dim");
  packer.pack(0);
}

nlohmann::json features(const GenerateRequest& request) {
  auto hashes = nlohmann::json::array();
  auto places = nlohmann::json::array();
  auto items = nlohmann::json::array();
  for (const RequestImage& image : request.images) {
    hashes.push_back(image.id + "-" + request.cache_salt);
    places.push_back({{"offset", image.begin}, {"length", image.tokens}});
    // An item that is left out must be in the server's cache: it stops when it is not.
    items.push_back(base64(vllm_image_item(image)));
  }
  return {{"mm_hashes", {{"image", std::move(hashes)}}},
          {"mm_placeholders", {{"image", std::move(places)}}},
          {"kwargs_data", {{"image", std::move(items)}}}};
}

// logprobs.content, per token {"token": "token_id:N", "logprob": ...}.
Result<std::vector<float>> read_content(const nlohmann::json& choice,
                                        const std::vector<int64_t>& ids) {
  const nlohmann::json* logprobs = member(choice, "logprobs");
  const nlohmann::json* content = logprobs == nullptr ? nullptr : member(*logprobs, "content");
  if (content == nullptr || !content->is_array() || content->size() != ids.size()) {
    return Error{Reason::kMalformed, "not one entry of logprobs.content for each of " +
                                         std::to_string(ids.size()) + " token ids"};
  }
  std::vector<float> values;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const nlohmann::json& entry = (*content)[i];
    if (text_member(entry, "token") != "token_id:" + std::to_string(ids[i])) {
      return Error{Reason::kMalformed, "the tokens of logprobs.content are not those of token_ids"};
    }
    const nlohmann::json* value = member(entry, "logprob");
    const auto number = read_logprob(value == nullptr ? nlohmann::json() : *value,
                                     "logprobs.content[" + std::to_string(i) + "].logprob");
    if (!number) {
      return number.error();
    }
    values.push_back(number.value());
  }
  return values;
}

}  // namespace

std::vector<uint8_t> vllm_image_item(const RequestImage& image) {
  msgpack::sbuffer buffer;
  Packer packer(buffer);
  packer.pack_map(2);
  pack_grid(packer, image);
  pack_patches(packer, image);
  const auto* bytes = reinterpret_cast<const uint8_t*>(buffer.data());
  return {bytes, bytes + buffer.size()};
}

nlohmann::json vllm_token_request(const GenerateRequest& request, const std::string& model) {
  nlohmann::json body{{"model", model},
                      {"request_id", request.request_id},
                      {"token_ids", request.prompt_ids},
                      {"sampling_params", vllm_sampling(request)},
                      {"stream", false},
                      {"cache_salt", request.cache_salt}};
  if (!request.images.empty()) {
    body["features"] = features(request);
  }
  return body;
}

Result<GenerateResult> read_vllm_token_choice(const nlohmann::json& choice,
                                              const GenerateRequest& request, int64_t vocab_size) {
  GenerateResult result;
  const auto finish = vllm_finish(text_member(choice, "finish_reason").value_or(""));
  if (!finish) {
    return Error{Reason::kMalformed, "no finish_reason that is known"};
  }
  result.finish_reason = *finish;
  const nlohmann::json* ids = member(choice, "token_ids");
  if (ids == nullptr) {
    return Error{Reason::kMalformed, "no token_ids"};
  }
  auto read = read_ids(*ids, "token_ids", vocab_size);
  if (!read) {
    return read.error();
  }
  result.completion_ids = std::move(read).value();
  if (!result.completion_ids.empty()) {
    auto logprobs = read_content(choice, result.completion_ids);
    if (!logprobs) {
      return logprobs.error();
    }
    result.logprobs = std::move(logprobs).value();
  }
  for (const Status& status :
       {read_vllm_routes(choice, request, result), check_result(result, request)}) {
    if (!status) {
      return status.error();
    }
  }
  return result;
}

}  // namespace ringside::bridge
