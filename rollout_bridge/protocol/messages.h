// Bodies of all messages, as msgpack packs them: structs of their own here, or types of schema.h
// (packed_types.h). Field names are the wire names. The defaults of the structs are values that no
// valid message holds, so a missing field fails the check of its value.
#pragma once

#include <cstdint>
#include <msgpack.hpp>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/packed_types.h"
#include "rollout_bridge/protocol/settings.h"

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

struct AckBody {
  std::string rollout_id;
  std::string status;  // ACCEPTED, DUPLICATE, REQUEUED, BUSY, UNKNOWN_IMAGES, REJECTED, STALE
  std::string reason;  // a reason name when REJECTED or STALE
  std::string detail;
  int64_t window_bytes = -1;             // new window; -1: unchanged
  std::vector<std::string> images = {};  // UNKNOWN_IMAGES: hashes of those to be sent
  MSGPACK_DEFINE_MAP(rollout_id, status, reason, detail, window_bytes, images);
};

// IMAGE, with the frame "rgb".
struct ImageBody {
  std::string hash;
  MSGPACK_DEFINE_MAP(hash);
};

struct ImageAckBody {
  std::string hash;    // "" when it could not be read
  std::string status;  // STORED, REFUSED
  std::string reason;  // a reason name when REFUSED
  std::string detail;
  int64_t window_bytes = -1;  // new window; -1: unchanged
  MSGPACK_DEFINE_MAP(hash, status, reason, detail, window_bytes);
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

}  // namespace ringside::bridge
