// The token behind each token of a document, for layers that predict further tokens: what they read
// beside a token's hidden state. It comes with the document, because shards cut it anywhere.
// Torch-free.
#pragma once

#include "sp/batch/document.h"

namespace ringside::sp {

// int64 [1]: the id behind the token. Documents share a prefix only as far as they share this, too:
// where they part, the last common token has another one in each.
inline constexpr const char* kNextIdField = "next_id";

// Adds kNextIdField to a document. That of the last token is 0: no loss entry depends on it.
void add_next_ids(Document& document);

}  // namespace ringside::sp
