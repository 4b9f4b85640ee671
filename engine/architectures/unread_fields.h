// Fields of config.json that no architecture reads: which of them change nothing, which are
// refused.
//
// transformers reads no field that a model_type's class does not have. So a name of bookkeeping
// changes nothing, and neither does a value that turns nothing on. Anything else may stand for a
// computation that is not done here.
#pragma once

#include "engine/json/json_object.h"

namespace ringside::engine {

// Judges the keys that nobody has read: passes over (JsonObject::pass_over) those that change
// nothing, and refuses the others (JsonObject::refuse). Call it after the last read.
void judge_unread_fields(const JsonObject& json);

// The same for config.json around a text_config: fields of vision and sound are passed over, too,
// and those that say again what text_config says.
void judge_unread_fields_around(const JsonObject& json, const JsonObject& text);

// Marks the fields of vision and sound as read, where config.json holds them beside the text's.
void pass_over_other_modalities(const JsonObject& json);

// Whether a value turns nothing on: null, false, 0, "", or a list or object without elements.
bool turns_nothing_on(const nlohmann::json& value);

}  // namespace ringside::engine
