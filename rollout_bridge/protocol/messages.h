// Bodies of all messages, as msgpack packs them. Field names are the wire names. The defaults are
// values that no valid message holds, so a missing field fails the check of its value.
#pragma once

#include <cstdint>
#include <map>
#include <msgpack.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/settings.h"

namespace ringside::bridge {

// Wire names of the types of schema.h that messages carry as they are: calls visit(name, field) for
// each field. `value` may be const.
template <class Value, class Visit>
  requires std::is_same_v<std::remove_const_t<Value>, Grant>
void visit_fields(Value& value, Visit visit) {
  visit("group_id", value.group_id);
  visit("group_size", value.group_size);
  visit("min_version", value.min_version);
  visit("attempt", value.attempt);
  visit("sample_indices", value.sample_indices);
  visit("held_out", value.held_out);
}
template <class Value, class Visit>
  requires std::is_same_v<std::remove_const_t<Value>, Withdrawal>
void visit_fields(Value& value, Visit visit) {
  visit("group_id", value.group_id);
  visit("sample_indices", value.sample_indices);
}
template <class Value, class Visit>
  requires std::is_same_v<std::remove_const_t<Value>, TensorEntry>
void visit_fields(Value& value, Visit visit) {
  visit("name", value.name);
  visit("dtype", value.dtype);
  visit("shape", value.shape);
  visit("offset", value.offset);
  visit("bytes", value.bytes);
  visit("xxh3", value.xxh3);
  visit("encoding", value.encoding);
  visit("changed", value.changed);
  visit("payload_bytes", value.payload_bytes);
}

template <class Value>
concept HasVisitedFields =
    requires(Value& value) { visit_fields(value, [](const char*, const auto&) {}); };

}  // namespace ringside::bridge

namespace msgpack {
// How msgpack reads and writes the types that have visit_fields().
MSGPACK_API_VERSION_NAMESPACE(MSGPACK_DEFAULT_API_NS) {
  namespace adaptor {

  // A map, as MSGPACK_DEFINE_MAP writes it.
  template <ringside::bridge::HasVisitedFields Value>
  struct pack<Value> {
    template <class Stream>
    packer<Stream>& operator()(packer<Stream>& out, const Value& value) const {
      uint32_t count = 0;
      visit_fields(value, [&](const char*, const auto&) { ++count; });
      out.pack_map(count);
      visit_fields(value, [&](std::string_view name, const auto& field) {
        out.pack(name);
        out.pack(field);
      });
      return out;
    }
  };

  // As MSGPACK_DEFINE_MAP does, without building a std::map for each of a model's many tensors.
  template <ringside::bridge::HasVisitedFields Value>
  struct convert<Value> {
    const msgpack::object& operator()(const msgpack::object& from, Value& value) const {
      if (from.type != msgpack::type::MAP) {
        throw msgpack::type_error();
      }
      for (const msgpack::object_kv& item : std::span(from.via.map.ptr, from.via.map.size)) {
        const auto key = item.key.as<std::string_view>();
        visit_fields(value, [&](const char* name, auto& field) {
          if (key == name) {
            item.val.convert(field);
          }
        });
      }
      return from;
    }
  };

  }  // namespace adaptor
}
}  // namespace msgpack

namespace ringside::bridge {

// Settings in HELLO and WELCOME. An absent or nil key is "not stated".
struct SettingsBody : Settings {
  MSGPACK_DEFINE_MAP(temperature, top_p, top_k, vocab_size, max_positions, max_prompt_tokens,
                     max_completion_tokens, stop_ids, seed, reward_names, reward_options, prompts,
                     tokenizer, weights, held_out);
};

struct HelloBody {
  int64_t capacity_samples = 0;  // samples the worker wants in flight at once
  int64_t installed_term = -1;   // installed weights; -1: none of this trainer's
  int64_t installed_version = -1;
  std::string installed_root;
  std::string client;          // name and version of the software; informative
  int64_t pending = -1;        // unacknowledged rollouts; -1: not stated
  SettingsBody settings = {};  // the worker's own
  MSGPACK_DEFINE_MAP(capacity_samples, installed_term, installed_version, installed_root, client,
                     pending, settings);
};

struct WelcomeBody {
  std::string weights_address;
  int64_t version = -1;  // newest published, -1: none yet
  std::string root_hash;
  int64_t heartbeat_ms = 0;
  int64_t timeout_ms = 0;      // silence after which either side ends the session
  int64_t window_bytes = 0;    // rollout bytes that may be unacknowledged; later messages change it
  int64_t chunk_bytes = 0;     // largest CHUNK the trainer serves
  SettingsBody settings = {};  // what the trainer expects of its workers
  MSGPACK_DEFINE_MAP(weights_address, version, root_hash, heartbeat_ms, timeout_ms, window_bytes,
                     chunk_bytes, settings);
};

struct ReadyBody {
  int64_t version = -1;
  MSGPACK_DEFINE_MAP(version);
};

struct CreditBody {
  std::vector<Grant> groups;          // granted samples; may be empty
  int64_t window_bytes = -1;          // new window; -1: unchanged
  std::vector<Withdrawal> withdrawn;  // granted before, need not be made any more
  MSGPACK_DEFINE_MAP(groups, window_bytes, withdrawn);
};

struct RolloutBody {
  std::string rollout_id;
  int32_t attempt = -1;
  int64_t group_id = -1;
  int32_t group_size = 0;
  int32_t sample_index = -1;
  std::string prompt_id;
  double temperature = 0;
  double top_p = 0;
  int32_t top_k = -1;
  int64_t trainer_term = -1;
  std::string finish_reason;
  std::vector<std::pair<std::string, double>> rewards;  // [[name, value], ...]
  std::string failure;
  MSGPACK_DEFINE_MAP(rollout_id, attempt, group_id, group_size, sample_index, prompt_id,
                     temperature, top_p, top_k, trainer_term, finish_reason, rewards, failure);
};

struct AckBody {
  std::string rollout_id;
  std::string status;  // ACCEPTED, DUPLICATE, REQUEUED, BUSY, REJECTED, STALE
  std::string reason;  // a reason name when REJECTED or STALE
  std::string detail;
  int64_t window_bytes = -1;  // new window; -1: unchanged
  MSGPACK_DEFINE_MAP(rollout_id, status, reason, detail, window_bytes);
};

struct HeartbeatBody {
  std::string state;  // join, sync, ready, paused, quarantined, bye
  int64_t version = -1;
  int64_t queue_depth = 0;      // samples granted and not yet sent
  int64_t progress_age_ms = 0;  // since the last call by the worker's own code
  int64_t pending = -1;         // unacknowledged rollouts; -1: not stated
  MSGPACK_DEFINE_MAP(state, version, queue_depth, progress_age_ms, pending);
};

// Shared memory in which a process of the same machine finds the tensors, one after another without
// gaps.
struct SharedBody {
  std::string host;  // kernel boot and PID namespace; "": no shared memory
  int64_t pid = -1;
  int64_t fd = -1;
  uint64_t bytes = 0;
  MSGPACK_DEFINE_MAP(host, pid, fd, bytes);
};

// WEIGHTS_OFFER, with the frame "manifest" and optionally "payloads".
struct OfferBody {
  int64_t version = -1;
  std::string root_hash;
  SharedBody shared;
  MSGPACK_DEFINE_MAP(version, root_hash, shared);
};

// COMMIT and COMMITTED.
struct WeightsBody {
  int64_t version = -1;
  std::string root_hash;
  MSGPACK_DEFINE_MAP(version, root_hash);
};

// STAGED.
struct StagedBody {
  int64_t version = -1;
  std::string root_hash;
  // "overwrite" when tensors were made from the base version, "shared" when they were read from
  // shared memory, otherwise "dense".
  std::string encoding;
  int64_t refetched = 0;  // tensors fetched dense after a bad overwrite
  MSGPACK_DEFINE_MAP(version, root_hash, encoding, refetched);
};

struct StageFailedBody {
  int64_t version = -1;
  std::string detail;
  MSGPACK_DEFINE_MAP(version, detail);
};

// CHUNK_REQUEST; CHUNK repeats it and adds frame "data".
struct ChunkBody {
  int64_t version = -1;
  uint64_t tensor = 0;  // index into the manifest's list
  uint64_t offset = 0;  // bytes into the tensor or payload
  uint64_t bytes = 0;
  int64_t base_version = -1;  // base of the tensor's overwrite payload; -1: the tensor itself
  uint64_t tensors = 1;       // above 1: the whole payloads of that many tensors, one after another
  MSGPACK_DEFINE_MAP(version, tensor, offset, bytes, base_version, tensors);
};

struct EndBody {  // END and BYE
  std::string reason;
  MSGPACK_DEFINE_MAP(reason);
};

struct ErrorBody {
  std::string reason;  // a reason name
  std::string detail;
  bool fatal = false;    // true: do not reconnect with the same settings
  int64_t version = -1;  // of the CHUNK_REQUEST this answers
  MSGPACK_DEFINE_MAP(reason, detail, fatal, version);
};

struct ManifestBody {
  std::string run_id;
  int64_t trainer_term = -1;
  int64_t version = -1;
  int64_t base_version = -1;  // -1: none
  std::string encoding;
  std::vector<TensorEntry> tensors;
  std::string root_hash;
  MSGPACK_DEFINE_MAP(run_id, trainer_term, version, base_version, encoding, tensors, root_hash);
};

}  // namespace ringside::bridge
