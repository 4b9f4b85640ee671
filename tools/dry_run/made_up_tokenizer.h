// Tokenizer of a dry run, for a recipe whose model is not there: one token a byte.
#pragma once

#include <string>

#include "tools/dry_run/small_model.h"

namespace ringside::tools {

// The text of a tokenizer.json: 256 bytes and the markers of the chat templates.
std::string made_up_tokenizer();

// The text of its tokenizer_config.json, with a chat template (ChatML).
std::string made_up_tokenizer_config();

// Ids of the tokens that a model's config.json names.
MadeUpIds made_up_ids();

}  // namespace ringside::tools
