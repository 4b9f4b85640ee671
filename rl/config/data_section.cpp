#include "rl/config/data_files.h"
#include "rl/config/sections.h"
#include "rl/config/task.h"

namespace ringside::rl {
namespace {

void add_preferences(FieldList& fields, DataConfig& data) {
  fields.path("data.preferences", data.preferences,
              "{\"prompt\", \"chosen\", \"rejected\"} objects in the same forms, texts or lists "
              "of messages, for algorithm.task: dpo and reward_model; without a prompt, chosen and "
              "rejected are whole and begin alike",
              absolute_data_files);
  fields.path("data.preferences_eval", data.preferences_eval,
              "held-out pairs in the form of data.preferences; eval_loss is computed on them every "
              "eval.every steps",
              absolute_data_files);
  fields.text("data.chosen_key", data.chosen_key,
              "dpo, reward_model: field that holds the better completion");
  fields.text("data.rejected_key", data.rejected_key,
              "dpo, reward_model: field that holds the worse completion");
}

}  // namespace

namespace {

void add_curriculum(FieldList& fields, CurriculumConfig& curriculum) {
  fields.choice(
      "data.curriculum.mode", curriculum.mode, {kCurriculumModes.begin(), kCurriculumModes.end()},
      "none = each prompt once a pass, pools = by the mean reward of its last group, before "
      "algorithm.reward: some of each step from those that are easy and hard, the others "
      "in the data's order from the rest and those not measured yet");
  fields.real("data.curriculum.easy_above", curriculum.easy_above, {},
              "a prompt is easy at or above this mean reward");
  fields.real("data.curriculum.hard_below", curriculum.hard_below, {},
              "a prompt is hard at or below this mean reward");
  fields.real("data.curriculum.easy_share", curriculum.easy_share, between(0, 1),
              "share of the steps' prompts that is drawn from the easy ones");
  fields.real("data.curriculum.hard_share", curriculum.hard_share, between(0, 1),
              "share of the steps' prompts that is drawn from the hard ones");
}

// Members of a record that choose something (record_choices.h).
void add_choices(FieldList& fields, DataConfig& data) {
  fields.text("data.source_key", data.source_key,
              "field that names a record's source, which chooses its teacher with "
              "algorithm.distillation.teachers");
  fields.text("data.adapter_key", data.adapter_key,
              "field that names the adapter that a prompt is for, one of lora.adapters");
}

}  // namespace

void add_data_section(FieldList& fields, DataConfig& data) {
  fields.path(
      "data.train", data.train,
      "JSONL, JSON or Parquet of training prompts: {\"prompt\", \"answer\"} objects. A file, a "
      "pattern (parts/*.jsonl), or several with weights: [{path: a.jsonl, weight: 2}, b.jsonl]",
      absolute_data_files);
  fields.path("data.eval", data.eval, "held-out prompts, in the same form", absolute_data_files);
  fields.path("data.sft", data.sft,
              "{\"prompt\", \"completion\"} or {\"messages\"} objects in the same forms, for "
              "algorithm.task: sft",
              absolute_data_files);
  fields.path("data.sft_eval", data.sft_eval,
              "held-out documents in the form of data.sft; eval_loss is computed on them every "
              "eval.every steps",
              absolute_data_files);
  add_preferences(fields, data);
  fields.integer("data.max_length", data.max_length, at_least(0),
                 "sft, dpo, reward_model: longest document, in tokens; data.on_overlong says what "
                 "happens to longer ones; 0 = train.tokens_per_micro_batch");
  fields.text("data.prompt_key", data.prompt_key, "field that holds the prompt");
  fields.text("data.answer_key", data.answer_key,
              "field that holds the answer that the reward compares with");
  fields.text("data.answer_after", data.answer_after,
              "the answer is what follows the last occurrence of this text in its field: \"####\" "
              "(GSM8K); \"\" = the whole field");
  add_choices(fields, data);
  fields.text(
      "data.image_key", data.image_key,
      "field that holds a prompt's images: paths below the file's folder, data URIs, or in "
      "Parquet bytes; one or a list. The model then has its vision tower; \"\" = text alone");
  fields.integer("data.max_image_pixels", data.max_image_pixels, at_least(0),
                 "images are resized to at most this many pixels; 0 = as the model's processor "
                 "says (preprocessor_config.json)");
  fields.text("data.completion_key", data.completion_key, "sft: field that holds the completion");
  fields.text(
      "data.messages_key", data.messages_key,
      "sft: field that holds a conversation; where it is there, it is what is learned from");
  fields.choice("data.chat_template", data.chat_template,
                "how chat messages become text: model = the model's own template (needs python3 "
                "and Jinja2), chatml (Qwen), llama3; none = messages are an error");
  fields.text("data.template_options", data.template_options,
              "model: more variables of the template, as JSON: {\"enable_thinking\": false}");
  fields.choice("data.text_prompts", data.text_prompts,
                "prompts that are text and no list of messages: raw = they go to the model as they "
                "are, user = each is the message of a user, rendered by chat_template");
  fields.text("data.system_prompt", data.system_prompt,
              "system message of every prompt that has none of its own; needs chat_template");
  fields.text("data.prompt_suffix", data.prompt_suffix,
              "text after every prompt, or after its last user's message: \"\\nPut the answer in "
              "\\\\boxed{}.\"");
  fields.choice("data.add_special_tokens", data.add_special_tokens,
                "what the tokenizer puts before a text (<bos>; post_processor in tokenizer.json) "
                "also stands before prompts that are text: auto = unless they begin with it, true, "
                "false. Rendered messages have what their template writes");
  fields.choice(
      "data.on_overlong", data.on_overlong,
      "what to do with prompts above rollout.max_prompt_tokens: error, drop = leave them "
      "out, truncate = keep the last tokens. For sft, dpo and reward_model: documents above "
      "data.max_length, of which a pair has two; truncate keeps the first tokens");
  fields.flag("data.shuffle", data.shuffle,
              "use a new order in each pass over the data; it depends on seed alone");
  add_curriculum(fields, data.curriculum);
  fields.may_change_on_resume("data.eval");
  fields.may_change_on_resume("data.sft_eval");
  fields.may_change_on_resume("data.preferences_eval");
  fields.often_set("data", {"train", "eval", "sft", "preferences", "prompt_key", "answer_key",
                            "chat_template", "text_prompts", "on_overlong"});
}

// What inference servers cannot do for prompts with images.
void check_served_images(const Config& c, std::vector<Mistake>& mistakes) {
  if (c.data.image_key.empty() || !samples_completions(c)) {
    return;
  }
  const RolloutServer server = c.rollout.server;
  if (server != RolloutServer::kEmbedded && server != RolloutServer::kVllm) {
    mistakes.push_back({"rollout.server", "is " + std::string(to_string(server)) +
                                              ", but data.image_key is set, and images can be "
                                              "sent to vllm alone; expected embedded or vllm"});
  }
  const ServerWeights weights = c.rollout.server_options.weights;
  if (server == RolloutServer::kVllm && c.model.vision != VisionPart::kTrained &&
      (weights == ServerWeights::kPull || weights == ServerWeights::kEngine)) {
    mistakes.push_back({"rollout.server_options.weights",
                        "is " + std::string(to_string(weights)) + ", but with model.vision " +
                            std::string(to_string(c.model.vision)) +
                            " not all of the model is published, and what a server fetches must "
                            "be whole; expected auto or disk, or model.vision trained"});
  }
}

void check_curriculum(const Config& c, std::vector<Mistake>& mistakes) {
  const CurriculumConfig& curriculum = c.data.curriculum;
  if (curriculum.mode == "none") {
    return;
  }
  if (curriculum.hard_below >= curriculum.easy_above) {
    mistakes.push_back({"data.curriculum.hard_below", "is " + text_of(curriculum.hard_below) +
                                                          ", but data.curriculum.easy_above is " +
                                                          text_of(curriculum.easy_above) +
                                                          "; expected less than that"});
  }
  if (curriculum.easy_share + curriculum.hard_share > 1.0) {
    mistakes.push_back(
        {"data.curriculum.hard_share", "is " + text_of(curriculum.hard_share) +
                                           " beside easy_share " + text_of(curriculum.easy_share) +
                                           ", together above 1; expected at most 1"});
  }
  if (c.algorithm.dynamic_sampling == DynamicSampling::kRefill) {
    mistakes.push_back({"data.curriculum.mode",
                        "is " + curriculum.mode +
                            ", but algorithm.dynamic_sampling refill chooses the prompts of a step "
                            "too; expected none, or dynamic_sampling none or drop"});
  }
}

void check_data_section(const Config& c, std::vector<Mistake>& mistakes) {
  check_curriculum(c, mistakes);
  if (!c.data.template_options.empty() && c.data.chat_template != ChatTemplate::kModel) {
    mistakes.push_back(
        {"data.template_options",
         "is " + c.data.template_options + ", but data.chat_template is " +
             std::string(to_string(c.data.chat_template)) +
             ", which has no variables; expected data.chat_template model, or \"\""});
  }
  if (c.data.max_image_pixels > 0 && c.data.image_key.empty()) {
    mistakes.push_back(
        {"data.max_image_pixels", "is " + std::to_string(c.data.max_image_pixels) +
                                      ", but data.image_key is not set: no prompt has an image"});
  }
  if (!c.data.image_key.empty() && learns_preferences(c)) {
    mistakes.push_back({"data.image_key", "is " + c.data.image_key + ", but algorithm.task " +
                                              std::string(to_string(c.algorithm.task)) +
                                              " reads pairs of text alone; expected \"\""});
  }
  check_served_images(c, mistakes);
  if (c.data.chat_template != ChatTemplate::kNone) {
    return;
  }
  const std::string expected =
      ", but data.chat_template is none; expected data.chat_template model, chatml or llama3";
  if (c.data.text_prompts == TextPrompts::kUser) {
    mistakes.push_back({"data.text_prompts", "is user" + expected});
  }
  if (!c.data.system_prompt.empty()) {
    mistakes.push_back({"data.system_prompt", "is set" + expected});
  }
}

}  // namespace ringside::rl
