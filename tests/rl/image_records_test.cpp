// Guards: images of another record, in another order or of a file outside of the data's folder, and
// prompts whose placeholders are not their images.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rl/data/image_prompts.h"
#include "rl/data/prompt_set.h"
#include "rl/data/record_images.h"
#include "rl/data/record_pixels.h"
#include "rl/data/sft_file.h"
#include "rl/data/text_data.h"
#include "rollout_bridge/base/base64.h"
#include "tests/support/letter_tokenizer.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Json = nlohmann::ordered_json;

// A folder with data/a.png (10 rows of 14 pixels), data/more/b.jpg (14 rows of 10: turned by EXIF),
// and outside.png beside data.
class ImageFolder {
 public:
  ImageFolder() {
    fs::create_directories(path("data/more"));
    fs::create_directories(path("model"));
    fs::copy(sample("rgb.png"), path("data/a.png"));
    fs::copy(sample("exif_6.jpg"), path("data/more/b.jpg"));
    fs::copy(sample("rgb.png"), path("outside.png"));
    fs::create_symlink(path("outside.png"), path("data/link.png"));
    fs::create_symlink(path("data/a.png"), path("data/link_below.png"));
    // Token "z" (27) stands for an image. 4 x 4 pixels a patch, 8 x 8 a token.
    test::write_file(path("model/config.json"),
                     R"({"model_type": "qwen3_vl", "image_token_id": 27})");
    test::write_file(path("model/preprocessor_config.json"),
                     R"({"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 4096}})");
    test::write_file(path("model/tokenizer.json"), test::letter_tokenizer());
    config_.model.path = path("model");
    config_.data.image_key = "images";
    config_.rollout.max_prompt_tokens = 64;
  }
  static fs::path sample(const std::string& name) {
    return fs::path(RINGSIDE_FUZZ_CORPUS) / "image" / name;
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }
  Config& config() { return config_; }
  std::string data(const std::vector<Json>& records) const {
    std::string text;
    for (const Json& record : records) {
      text += record.dump() + "\n";
    }
    test::write_file(path("data/train.jsonl"), text);
    return path("data/train.jsonl");
  }
  // The images of the only record, or what is wrong with it.
  std::string images(const Json& record) {
    const PromptFile file = scan_prompts(data({record}), config_);
    std::string text;
    for (const std::string& problem : file.problems) {
      text += problem;
    }
    for (const Prompt& prompt : file.items) {
      for (const PromptImage& image : prompt.images) {
        text += image.name + " " + std::to_string(image.size.height) + "x" +
                std::to_string(image.size.width) + ";";
      }
    }
    return text;
  }
  PromptSet set(const std::vector<Json>& records) {
    return scan_prompt_set(data(records), config_,
                           engine::Tokenizer::load(path("model/tokenizer.json")));
  }

 private:
  test::TemporaryDirectory directory_;
  Config config_;
};

Json text_record(const Json& images) { return {{"prompt", "az"}, {"images", images}}; }

std::string data_uri(const std::string& name) {
  std::ifstream file(ImageFolder::sample(name), std::ios::binary);
  const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  return "data:image/png;base64," + bridge::base64(bytes);
}

TEST_CASE("a record's images are paths below its folder and data URIs, one or a list") {
  ImageFolder folder;
  CHECK(folder.images(text_record("a.png")) == "a.png 10x14;");
  CHECK(folder.images(text_record("file://" + folder.path("data/a.png"))) ==
        folder.path("data/a.png") + " 10x14;");
  CHECK(folder.images(text_record({"more/b.jpg", "a.png"})) == "more/b.jpg 14x10;a.png 10x14;");
  CHECK(folder.images(text_record(Json::array({Json{{"path", "./a.png"}}}))) == "./a.png 10x14;");
  CHECK(folder.images(text_record(data_uri("lossy.webp"))) == "a data URI of 152 bytes 10x14;");
  CHECK(folder.images(text_record("link_below.png")) == "link_below.png 10x14;");
  CHECK(folder.images(text_record(nullptr)).empty());
  CHECK(folder.images({{"prompt", "a"}}).empty());
}

TEST_CASE("no path leaves the data's folder, and no URL is fetched") {
  ImageFolder folder;
  for (const auto& [image, word] : std::vector<std::pair<std::string, std::string>>{
           {"../outside.png", "has a \"..\""},
           {"more/../a.png", "has a \"..\""},
           {"link.png", "is not below the data's folder"},
           {folder.path("outside.png"), "is not below the data's folder"},
           {"file://" + folder.path("outside.png"), "is not below the data's folder"},
           {"/dev/zero", "is not below the data's folder"},
           {"https://example.com/a.png", "is a URL"},
           {"more", "is no file"},
           {"none.png", "cannot be opened"},
           {"data:image/png,abc", "no data URI of base64"},
           {"data:image/png;base64,@@", "no data URI of base64"},
           {"train.jsonl", "neither JPEG, PNG nor WebP"}}) {
    INFO(image);
    const std::string problem = folder.images(text_record(image));
    CHECK_THAT(problem, Contains(word));
    CHECK_THAT(problem, Contains("train.jsonl:1: "));
  }
  CHECK_THAT(folder.images(text_record(5)), Contains("an image is a number"));
}

Json part(const char* type) { return {{"type", type}}; }
Json message_record(const Json& content, const Json& images) {
  return {{"prompt", {{{"role", "user"}, {"content", content}}}}, {"images", images}};
}

TEST_CASE("parts of messages take their own image, or the next of the record's list") {
  ImageFolder folder;
  folder.config().data.chat_template = ChatTemplate::kModel;
  test::write_file(folder.path("model/tokenizer_config.json"), R"({"chat_template":
      "{% for m in messages %}{% for p in m.content %}{{ p.text or (p | length) ~ 'z' }}{% endfor %}{% endfor %}"})");
  const Json text = {{"type", "text"}, {"text", "a"}, {"image", nullptr}};
  Json own = part("image");
  own["image"] = data_uri("lossy.webp");
  const Json url = {{"type", "image_url"}, {"image_url", {{"url", "more/b.jpg"}}}};
  const Json content = {url, text, part("image"), own, part("image")};
  CHECK(folder.images(message_record(content, {"a.png", "more/b.jpg"})) ==
        "more/b.jpg 14x10;a.png 10x14;a data URI of 152 bytes 10x14;more/b.jpg 14x10;");
  // Templates see that there is an image, and nothing of where it is.
  const auto prompts =
      scan_prompts(folder.data({message_record(content, {"a.png", "a.png"})}), folder.config());
  REQUIRE(prompts.items.size() == 1);
  CHECK(prompts.items[0].prompt == "1za1z1z1z");

  CHECK_THAT(folder.images(message_record({text, part("image")}, Json::array())),
             Contains("train.jsonl:1: has 0 images under \"images\" (data.image_key), and its "
                      "messages have 1 part"));
  CHECK_THAT(folder.images(message_record(Json::array({part("image")}), {"a.png", "a.png"})),
             Contains("has 2 images"));
  CHECK_THAT(folder.images(message_record(Json::array({part("video")}), "a.png")),
             Contains("a video"));
  folder.config().data.image_key = "";
  CHECK_THAT(folder.images(message_record(Json::array({own}), nullptr)),
             Contains("data.image_key is not set"));
}

TEST_CASE("each placeholder becomes its image's tokens, and lengths count them") {
  ImageFolder folder;
  // 10 x 14 pixels become 8 x 16 (ties to even): 1 x 2 tokens; 14 x 10: 16 x 8, 2 x 1.
  const PromptSet set = folder.set({{{"prompt", "azzb"}, {"images", {"a.png", "more/b.jpg"}}}});
  CHECK(set.problems.empty());
  REQUIRE(set.images);
  CHECK(set.longest == 6);
  const std::vector<int64_t> ids = {2, 27, 27, 3};
  const ExpandedPrompt expanded = expand_placeholders(ids, set.prompts.at(0).images, *set.images);
  CHECK(expanded.ids == std::vector<int64_t>{2, 27, 27, 27, 27, 3});
  REQUIRE(expanded.images.size() == 2);
  CHECK(expanded.images[0].begin == 1);
  CHECK(expanded.images[0].grid == engine::PatchGrid{1, 2, 4});
  CHECK(expanded.images[1].begin == 3);
  CHECK(expanded.images[1].grid == engine::PatchGrid{1, 4, 2});
}

TEST_CASE("a prompt whose placeholders and images differ is refused by file and line") {
  ImageFolder folder;
  const Json good = {{"prompt", "az"}, {"images", "a.png"}};
  for (const Json& bad : {Json{{"prompt", "azz"}, {"images", "a.png"}},
                          Json{{"prompt", "a"}, {"images", "a.png"}}, Json{{"prompt", "az"}}}) {
    INFO(bad.dump());
    const PromptSet set = folder.set({good, bad});
    REQUIRE(set.problems.size() == 1);
    CHECK_THAT(set.problems[0], Contains("train.jsonl:2: the prompt has ") &&
                                    Contains("the placeholder of an image"));
  }
}

TEST_CASE("a prompt with images has the ids of their tokens, and is not cut") {
  ImageFolder folder;
  const Json good = {{"prompt", "az"}, {"images", "a.png"}};
  folder.config().rollout.max_prompt_tokens = 2;
  folder.config().data.on_overlong = OnOverlong::kTruncate;
  CHECK_THAT(folder.set({good}).problems.at(0), Contains("cannot be truncated"));
  folder.config().rollout.max_prompt_tokens = 3;
  const PromptSet set = folder.set({good});
  CHECK(set.problems.empty());
  const auto tokenizer = engine::Tokenizer::load(folder.path("model/tokenizer.json"));
  const auto ids = prompt_ids(set.prompts.at(0), prompt_rules(folder.config()), tokenizer);
  CHECK(ids == std::vector<int64_t>{tokenizer.encode("a")[0], 27, 27});
  const auto spans = expanded_spans(ids, set.prompts[0].images, *set.images);
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].begin == 1);
  CHECK(spans[0].grid == engine::PatchGrid{1, 2, 4});
  const auto spans_of = [&](std::vector<int64_t> other) {
    return expanded_spans(other, set.prompts[0].images, *set.images);
  };
  CHECK_THROWS_WITH(spans_of({1, 27, 2}), Contains("2 tokens, of which the ids have 1"));
  CHECK_THROWS_WITH(spans_of({1, 27, 27, 27}), Contains("token 3 is the placeholder"));
  folder.config().rollout.max_prompt_tokens = 2;
  CHECK_THROWS_WITH(prompt_ids(set.prompts.at(0), prompt_rules(folder.config()), tokenizer),
                    Contains("has 3 tokens"));
  const Json example = {
      {"messages", {{{"role", "user"}, {"content", Json::array({part("image")})}}}}};
  folder.config().data.chat_template = ChatTemplate::kModel;
  folder.config().data.image_key = "";
  CHECK_THROWS_WITH(parse_sft_example(example, "sft.jsonl:1", folder.config().data),
                    Contains("sft.jsonl:1: a message has an image"));
}

TEST_CASE("the limit on pixels and the model's type are heeded") {
  ImageFolder folder;
  CHECK(image_tokens({100, 100}, read_image_rules(folder.config())).tokens == 64);
  const std::string before = read_image_rules(folder.config()).fingerprint();
  folder.config().data.max_image_pixels = 1024;
  CHECK(image_tokens({100, 100}, read_image_rules(folder.config())).tokens == 16);
  CHECK(read_image_rules(folder.config()).fingerprint() != before);
  folder.config().data.max_image_pixels = 63;
  CHECK_THROWS_WITH(read_image_rules(folder.config()), Contains("min_pixels, 64"));
  test::write_file(folder.path("model/config.json"), R"({"model_type": "qwen3"})");
  CHECK_THROWS_WITH(read_image_rules(folder.config()), Contains("model_type"));
}

TEST_CASE("images in Parquet are bytes, or {bytes, path} as Hugging Face writes them, or lists") {
  ImageFolder folder;
  const std::string file = RINGSIDE_GOLDENS "/parquet/images.parquet";
  const auto hash = [&](const std::string& key) {
    folder.config().data.image_key = key;
    std::string text;
    for (const Prompt& prompt : scan_prompts(file, folder.config()).items) {
      for (const PromptImage& image : prompt.images) {
        text += std::to_string(image.size.height) + "x" + std::to_string(image.size.width) + " ";
      }
      text += "|";
    }
    return text;
  };
  CHECK(hash("plain") == "10x14 |14x10 ||");
  CHECK(hash("image") == "10x14 |14x10 ||");
  CHECK(hash("images") == "10x14 14x10 ||14x10 |");
  CHECK(hash("absent") == "|||");
  folder.config().data.image_key = "number";
  CHECK_THAT(scan_prompts(file, folder.config()).problems.at(0),
             Contains("images.parquet: row 1: column number: is of type int64"));
}

TEST_CASE("pixels of a prompt's image are those of its file, read when they are asked for") {
  ImageFolder folder;
  const PromptSet set = folder.set({text_record("a.png"), text_record("more/b.jpg")});
  const auto pixels = prompt_pixels(folder.path("data/train.jsonl"), folder.config().data,
                                    set.prompts, *set.images);
  const PromptImage& second = set.prompts[1].images[0];
  const auto image = (*pixels)(second.hash);
  CHECK(image->grid == image_tokens(second.size, *set.images).grid);
  CHECK((*pixels)(second.hash) == image);
  CHECK_THROWS_WITH((*pixels)("f00"), "no record of the data has the image f00");

  test::write_file(folder.path("data/a.png"), "another file");
  CHECK_THROWS_WITH((*pixels)(set.prompts[0].images[0].hash), Contains("train.jsonl:1: "));
  fs::copy(ImageFolder::sample("exif_6.jpg"), folder.path("data/a.png"),
           fs::copy_options::overwrite_existing);
  CHECK_THROWS_WITH((*pixels)(set.prompts[0].images[0].hash),
                    Contains("train.jsonl:1: ") && Contains("is not there any more"));
}

// "0z1 |z 8x16 |..." of a document: its ids, learned ones after a bar; then its images.
std::string describe(const TokenizedExample& example) {
  std::string text;
  for (std::size_t i = 0; i < example.ids.size(); ++i) {
    text += (example.learned[i] ? "|" : "") + std::to_string(example.ids[i]) + " ";
  }
  for (const PlacedImage& image : example.images) {
    text += "[" + std::to_string(image.span.begin) + ": " + std::to_string(image.span.grid.height) +
            " x " + std::to_string(image.span.grid.width) + "]";
  }
  return text;
}

TEST_CASE("documents of fine-tuning have the images of their prompts, and learn none of them") {
  ImageFolder folder;
  folder.config().data.max_length = 64;
  const auto tokenizer = engine::Tokenizer::load(folder.path("model/tokenizer.json"));
  const auto read = [&](const std::vector<Json>& records) {
    return std::make_unique<SftFile>(folder.data(records), folder.config(), tokenizer,
                                     std::vector<int64_t>{1});
  };
  const auto file = read({{{"prompt", "azb"}, {"completion", "c"}, {"images", "a.png"}},
                          {{"prompt", "ab"}, {"completion", "c"}}});
  const TokenizedExample with_image = *file->read(0).example;
  const int64_t a = tokenizer.encode("a")[0], b = tokenizer.encode("b")[0];
  const int64_t c = tokenizer.encode("c")[0], z = tokenizer.encode("z")[0];
  const auto text = [](int64_t id) { return std::to_string(id) + " "; };
  // 10 rows of 14 pixels become 8 x 16, which are 2 x 4 patches and 2 tokens.
  CHECK(describe(with_image) ==
        text(a) + text(z) + text(z) + text(b) + "|" + text(c) + "|1 " + "[1: 2 x 4]");
  CHECK(describe(*file->read(1).example) == text(a) + text(b) + "|" + text(c) + "|1 ");
  CHECK((*file->pixels())(with_image.images[0].hash)->grid == with_image.images[0].span.grid);

  // All documents of such a file have the fields of images.
  for (int64_t i = 0; i < 2; ++i) {
    const sp::Document document = make_sft_document(*file->read(i).example, file->image_merge());
    CHECK(document.fields.size() == 3);
    CHECK(document.images.size() == static_cast<std::size_t>(i == 0 ? 1 : 0));
  }

  const auto refused = [&](const Json& record) { return read({record})->read(0); };
  CHECK_THROWS_WITH(
      refused({{"prompt", "az"}, {"completion", "zc"}, {"images", {"a.png", "a.png"}}}),
      Contains("train.jsonl:1: ") && Contains("the placeholder of an image in a completion"));
  CHECK_THROWS_WITH(refused({{"prompt", "a"}, {"completion", "c"}, {"images", "a.png"}}),
                    Contains("train.jsonl:1: ") && Contains("1 image, and its text 0"));
  folder.config().data.max_length = 4;
  folder.config().data.on_overlong = OnOverlong::kTruncate;
  CHECK_THROWS_WITH(refused({{"prompt", "azb"}, {"completion", "c"}, {"images", "a.png"}}),
                    Contains("a document with images cannot be truncated"));
  folder.config().data.image_key = "";
  CHECK_THROWS_WITH(
      refused({{"messages",
                {{{"role", "user"}, {"content", {{{"type", "image"}, {"image", "a.png"}}}}}}}}),
      Contains("train.jsonl:1: "));
}

}  // namespace
}  // namespace ringside::rl
