#include "rl/data/chat_format.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "rl/data/prompt_messages.h"
#include "rl/data/text_data.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using Catch::Contains;
using json = nlohmann::ordered_json;

// A model directory with a template.
class Model {
 public:
  explicit Model(const std::string& text) {
    write("tokenizer_config.json",
          json{{"chat_template", text}, {"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}}
              .dump());
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((directory_.path() / name).parent_path());
    test::write_file(directory_.path() / name, text);
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }
  Config config() const {
    Config config;
    config.model.path = directory_.path().string();
    config.data.chat_template = ChatTemplate::kModel;
    return config;
  }
  std::string prompt(const json& messages, const json& tools = nullptr) const {
    return ChatFormat(config()).prompt({messages, tools});
  }

 private:
  test::TemporaryDirectory directory_;
};

// Sets an environment variable while it lives.
class Environment {
 public:
  Environment(const char* name, const std::string& value)
      : name_(name), before_(std::getenv(name) != nullptr ? std::getenv(name) : "") {
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { ::setenv(name_, before_.c_str(), 1); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::string before_;
};

const json kUser = json::array({{{"role", "user"}, {"content", "hi"}}});
constexpr const char* kSimple =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

TEST_CASE("a prompt of messages is rendered by the template of the model directory") {
  const Model model(kSimple);
  CHECK(model.prompt(kUser) == "<s>[user] hi</s>\n[assistant]");
}

TEST_CASE("chat_template.jinja comes before tokenizer_config.json, and tool_use serves tools") {
  Model model("old");
  model.write("chat_template.jinja", "new {{ colour }}");
  model.write("additional_chat_templates/tool_use.jinja", "tools {{ tools[0].name }}");
  Config config = model.config();
  config.data.template_options = R"({"colour": "green"})";
  CHECK(ChatFormat(config).prompt({kUser, nullptr}) == "new green");
  CHECK(model.prompt(kUser, json::array({{{"name", "f"}}})) == "tools f");
  Model named("x");
  named.write("tokenizer_config.json",
              R"({"chat_template": [{"name": "default", "template": "plain"},)"
              R"( {"name": "tool_use", "template": "with"}]})");
  CHECK(named.prompt(kUser) == "plain");
  CHECK(named.prompt(kUser, json::array()) == "with");
}

TEST_CASE("a template that refuses a conversation is a problem of its line, and the others go on") {
  Model model(
      "{% for m in messages %}\n"
      "{% if m.role != 'user' %}{{ raise_exception('only users here') }}{% endif %}\n"
      "{{ m.content + '!' }}{% endfor %}");
  model.write("data.jsonl",
              "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"
              "{\"prompt\": [{\"role\": \"system\", \"content\": \"a\"}]}\n"
              "{\"prompt\": [{\"role\": \"user\", \"content\": null}]}\n"
              "{\"prompt\": [{\"role\": \"user\", \"content\": \"b\"}]}\n");
  const PromptFile data = scan_prompts(model.path("data.jsonl"), model.config());
  REQUIRE(data.items.size() == 2);
  CHECK(data.items[1].prompt == "b!");
  REQUIRE(data.problems.size() == 2);
  CHECK_THAT(data.problems[0], Contains("data.jsonl:2: ") && Contains("only users here") &&
                                   Contains("line 2 of the template"));
  CHECK_THAT(data.problems[1], Contains("data.jsonl:3: ") && Contains("TypeError"));
}

TEST_CASE("a recipe adds a system message and a suffix to every prompt") {
  Model model(kSimple);
  model.write("data.jsonl",
              "{\"prompt\": \"text\"}\n"
              "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"
              "{\"prompt\": [{\"role\": \"system\", \"content\": \"own\"},"
              " {\"role\": \"user\", \"content\": \"b\"}]}\n");
  Config config = model.config();
  config.data.prompt_suffix = " Think.";
  const auto raw = read_prompts(model.path("data.jsonl"), config);
  CHECK(raw[0].prompt == "text Think.");
  CHECK_FALSE(raw[0].is_chat);
  CHECK(raw[1].prompt == "<s>[user] a Think.</s>\n[assistant]");
  config.data.system_prompt = "Be brief.";
  CHECK_THROWS_WITH(read_prompts(model.path("data.jsonl"), config),
                    Contains("data.jsonl:1: ") && Contains("expected messages, or "
                                                           "data.text_prompts user"));
  config.data.text_prompts = TextPrompts::kUser;
  const auto chats = read_prompts(model.path("data.jsonl"), config);
  CHECK(chats[0].prompt == "<s>[system] Be brief.</s>\n[user] text Think.</s>\n[assistant]");
  CHECK(chats[0].is_chat);
  CHECK(chats[1].prompt == "<s>[system] Be brief.</s>\n[user] a Think.</s>\n[assistant]");
  CHECK(chats[2].prompt == "<s>[system] own</s>\n[user] b Think.</s>\n[assistant]");
}

TEST_CASE("a suffix is one more part of a message of parts") {
  DataConfig config;
  config.prompt_suffix = "!";
  json messages = json::array(
      {{{"role", "user"}, {"content", json::array({{{"type", "text"}, {"text", "hi"}}})}}});
  messages = prompt_messages(messages, config);
  CHECK(messages[0]["content"][1] == json{{"type", "text"}, {"text", "!"}});
  CHECK_THROWS_WITH(prompt_messages(json::array({{{"role", "tool"}, {"content", "4"}}}), config),
                    Contains("the last message is of role \"tool\""));
}

TEST_CASE("a prompt that ends with the assistant is refused") {
  Model model(kSimple);
  model.write("data.jsonl",
              "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"},"
              " {\"role\": \"assistant\", \"content\": \"b\"}]}\n");
  const PromptFile data = scan_prompts(model.path("data.jsonl"), model.config());
  REQUIRE(data.problems.size() == 1);
  CHECK_THAT(data.problems[0], Contains("data.jsonl:1: the last message is the assistant's"));
}

TEST_CASE("a template that ignores the messages is refused, and one option that it does not read") {
  Model model("{{ bos_token }}always the same{% if thinking %}!{% endif %}");
  model.write("data.jsonl",
              "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"
              "{\"prompt\": [{\"role\": \"user\", \"content\": \"b\"}]}\n");
  const PromptFile data = scan_prompts(model.path("data.jsonl"), model.config());
  REQUIRE(data.problems.size() == 1);
  CHECK_THAT(data.problems[0],
             Contains("data.jsonl:2: ") && Contains("does not read the messages"));
  Config options = model.config();
  options.data.template_options = R"({"thinkin": false})";
  CHECK_THROWS_WITH(scan_prompts(model.path("data.jsonl"), options),
                    Contains("names thinkin, which the template does not read; it reads thinking"));
  model.write("one.jsonl", "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
  CHECK(scan_prompts(model.path("one.jsonl"), model.config()).problems.empty());
}

TEST_CASE("a template cannot reach what lies outside of its messages") {
  CHECK_THROWS_WITH(Model("{{ ''.__class__.__mro__[1].__subclasses__() }}").prompt(kUser),
                    Contains("SecurityError"));
  CHECK_THROWS_WITH(Model("{% set _ = messages.append(1) %}").prompt(kUser),
                    Contains("SecurityError"));
}

TEST_CASE("a template that cannot be used for any conversation is one error") {
  Model none("x");
  none.write("tokenizer_config.json", "{}");
  CHECK_THROWS_AS(none.prompt(kUser), ChatUnavailable);
  CHECK_THROWS_WITH(none.prompt(kUser), Contains("has no default chat template"));
  CHECK_THROWS_WITH(Model("{% if %}").prompt(kUser),
                    Contains("TemplateSyntaxError") && Contains("line 1"));
  Model model(kSimple);
  model.write("data.jsonl",
              "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}\n{\"prompt\": \"text\"}\n");
  Config options = model.config();
  options.data.template_options = "thinking";
  CHECK_THROWS_AS(scan_prompts(model.path("data.jsonl"), options), ChatUnavailable);
  // Without python3, and with one that has no Jinja2.
  model.write("bin/nothing", "");
  {
    const Environment path("PATH", model.path("bin"));
    if (!std::filesystem::exists("/usr/bin/python3")) {
      CHECK_THROWS_WITH(model.prompt(kUser), Contains("cannot start python3"));
    }
  }
  model.write("bin/jinja2/__init__.py", "raise ImportError('hidden')");
  const Environment hidden("PYTHONPATH", model.path("bin"));
  CHECK_THROWS_AS(model.prompt(kUser), ChatUnavailable);
  CHECK_THROWS_WITH(model.prompt(kUser),
                    Contains("has no Jinja2; install Debian's python3-jinja2"));
  Config plain = model.config();
  model.write("text.jsonl", "{\"prompt\": \"text\"}\n");
  CHECK(scan_prompts(model.path("text.jsonl"), plain).items.size() == 1);  // starts nothing
}

TEST_CASE("a conversation that takes too long is an error, and the next one is rendered") {
  const Model model(
      "{% if messages[0].content == 'loop' %}{% for i in range(99999) %}"
      "{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok");
  ChatFormat chat(model.config(), /*timeout_s=*/2.0);
  json loop = kUser;
  loop[0]["content"] = "loop";
  CHECK(chat.prompt({kUser, nullptr}) == "ok");
  CHECK_THROWS_WITH(chat.prompt({loop, nullptr}), Contains("no answer within 2 s"));
  CHECK(chat.prompt({kUser, nullptr}) == "ok");
}

TEST_CASE("what the assistant says is found in templates without marks, or refused") {
  const json chat = json::array({{{"role", "user"}, {"content", "a"}},
                                 {{"role", "assistant"}, {"content", "b\xC3\xA9"}},
                                 {{"role", "user"}, {"content", "c"}},
                                 {{"role", "assistant"}, {"content", "d"}}});
  const auto learned = [&](const char* text) {
    const RenderedChat rendered = ChatFormat(Model(text).config()).render({chat, nullptr});
    std::vector<std::string> parts;
    for (const auto& [begin, end] : rendered.learned) {
      parts.push_back(rendered.text.substr(begin, end - begin));
    }
    return parts;
  };
  CHECK(learned(kSimple) == std::vector<std::string>{" b\xC3\xA9</s>", " d</s>"});
  CHECK(learned(
            "{% for m in messages %}{% if m.role == 'assistant' %}é{% generation %}"
            "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}") ==
        std::vector<std::string>{"b\xC3\xA9", "d"});
  CHECK_THROWS_WITH(
      learned("{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}"),
      Contains("message 2 is rendered in another way"));
}

}  // namespace
}  // namespace ringside::rl
