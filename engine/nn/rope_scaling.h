// Scaling of rotary frequencies for long contexts, as config.json states it. Torch-free.
//
// Source: transformers 5, modeling_rope_utils.py. Names and defaults are those of its
// rope_parameters. An optional field that config.json left out stays empty, so that it is written
// back as it was read.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace ringside::engine {

// rope_type "linear": every frequency divided by `factor`.
struct LinearRope {
  double factor = 1.0;
  bool operator==(const LinearRope&) const = default;
};

// rope_type "dynamic" (NTK-aware): frequencies depend on the document's length above
// max_position_embeddings, and are the plain ones up to it. Longer documents are refused: a token's
// angles would depend on how far its document goes on, so documents could not share a prefix, and a
// sampler that keeps keys in a cache computes other angles than a forward over the whole document.
struct DynamicRope {
  double factor = 1.0;
  bool operator==(const DynamicRope&) const = default;
};

// rope_type "llama3": long wavelengths are scaled, short ones kept, those between interpolated.
struct Llama3Rope {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
  bool operator==(const Llama3Rope&) const = default;
};

// rope_type "yarn" (Peng et al. 2023): as llama3 with a linear ramp over the frequencies' index,
// and cos and sin times an attention factor. `factor` counts, also where the lengths in config.json
// imply another one; transformers 5 does the same and warns.
struct YarnRope {
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;
  std::optional<double> attention_factor;  // else from factor, mscale and mscale_all_dim
  std::optional<double> beta_fast;         // else 32
  std::optional<double> beta_slow;         // else 1
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  std::optional<bool> truncate;  // else true
  bool operator==(const YarnRope&) const = default;
};

// rope_type "longrope" (Ding et al. 2024): a divisor for each frequency, one list for short and one
// for long documents. transformers chooses by the longest sequence of a forward. Here a model has
// one list for all its documents, as in vLLM: the long one if it may be given documents above
// original_max_position_embeddings (RopeSettings::max_document_tokens).
struct LongRope {
  std::vector<double> short_factor;  // [D/2]
  std::vector<double> long_factor;   // [D/2]
  int64_t original_max_position_embeddings = 0;
  std::optional<double> factor;            // else from max_position_embeddings
  std::optional<double> attention_factor;  // else from factor
  bool operator==(const LongRope&) const = default;
};

// monostate = rope_type "default".
using RopeScaling =
    std::variant<std::monostate, LinearRope, DynamicRope, Llama3Rope, YarnRope, LongRope>;

// Which component of a position (time, height, width) turns which frequency, in models with images.
struct RopeSections {
  std::array<int64_t, 3> sizes = {};  // frequencies of each component
  // Components take turns from the lowest frequency index on, as long as height and width have any
  // left; time has the rest. Else the sections lie one behind the other.
  bool interleaved = false;
  bool operator==(const RopeSections&) const = default;
};

// What the frequencies of a model follow from.
struct RopeSettings {
  int64_t head_dim = 0;
  double theta = 10000.0;
  RopeScaling scaling;
  int64_t max_position_embeddings = 0;  // read by dynamic and longrope
  int64_t max_document_tokens = 0;      // longest document; 0 = max_position_embeddings
  // Of heads that are turned in part: all their components. Those behind the first head_dim have
  // frequency 0. 0: head_dim.
  int64_t whole_head_dim = 0;
};

}  // namespace ringside::engine
