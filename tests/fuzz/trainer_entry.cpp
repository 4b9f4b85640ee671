// TrainerState under a script. Sessions are four worker ids with two incarnations each, one more
// than max_workers allows at a time.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/protocol/messages.h"
#include "rollout_bridge/trainer/trainer_state.h"
#include "tests/fuzz/entries.h"
#include "tests/rollout_bridge/samples.h"
#include "tests/support/hand_granted.h"

namespace ringside::bridge::fuzz {
namespace {

constexpr std::size_t kWorkers = 3;
constexpr int64_t kQueued = 8;
constexpr int32_t kGroupSize = 2;
constexpr std::size_t kMaxSteps = 200;

TrainerOptions options(const std::filesystem::path& directory, const test::HandGrants& grants) {
  TrainerOptions out;
  out.run_id = "run";
  out.trainer_term = 1;
  out.journal.directory = directory;
  out.journal.fsync = FsyncPolicy::kOff;
  out.max_queued_rollouts = kQueued;
  out.max_workers = kWorkers;
  out.policy = grants.policy();
  return out;
}

// Bytes of the input one after another; zeros behind its end.
class Script {
 public:
  explicit Script(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool done() const { return bytes_.empty(); }
  uint8_t next() {
    if (done()) {
      return 0;
    }
    const uint8_t out = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return out;
  }
  // Small, and now and then negative or huge.
  int64_t number() {
    const uint8_t b = next();
    if (b < 0xf0) {
      return b & 15;
    }
    constexpr int64_t kOdd[] = {-1, INT64_MIN, INT64_MAX, int64_t{1} << 62, 1 << 20, 4096, -2, 300};
    return kOdd[b & 7];
  }
  std::span<const uint8_t> take(std::size_t count) {
    const auto out = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(out.size());
    return out;
  }

 private:
  std::span<const uint8_t> bytes_;
};

class Drive {
 public:
  explicit Drive(std::span<const uint8_t> bytes)
      : script_(bytes), state_(options(dir_.path(), grants_), "tcp://127.0.0.1:1") {
    publish();
  }
  void run() {
    for (std::size_t i = 0; i < kMaxSteps && !script_.done(); ++i) {
      step();
      check();
    }
  }

 private:
  void step() {
    const uint8_t op = script_.next();
    switch (op >> 5) {
      case 0:
        return owner(op);
      case 1:
        now_ += std::chrono::milliseconds(script_.next() * 50);
        return state_.tick(now_);
      case 2:
        return raw(op);
      default:
        return typed(op);
    }
  }

  void owner(uint8_t op) {
    switch (op & 7) {
      case 0:
        return publish();
      case 1:
        return take();
      case 2:
        return checkpoint();
      case 3:
        return state_.on_unreachable(identity(op >> 3));
      case 4:
        return state_.end("over");
      case 5:
        return drain();
      default:
        return grant();
    }
  }

  // A group that was taken or is in a checkpoint is not granted again within one start.
  void grant() {
    const int64_t group = script_.next() & 15;
    const int64_t min_version = script_.next() & 3;
    if (granted_.insert(group).second) {
      state_.open_steps(1, grants_.add({{group, kGroupSize, min_version}}));
    }
  }

  void checkpoint() {
    checkpoint_ = std::min(grants_.steps(), checkpoint_ + (script_.next() & 3));
    state_.checkpointed(checkpoint_);
  }

  void publish() {
    ++version_;
    snapshot_ = make_snapshot("run", 1, version_, test::make_tensors(version_, 8));
    state_.publish(snapshot_);
  }

  void take() {
    state_.collect();
    if (step_ > grants_.steps()) {
      return;
    }
    const auto messages = state_.take(step_);
    const auto batch = read_batch(messages.value_or(std::vector<FlatRollout>()));
    require(batch.ok());
    std::set<std::string> images;
    for (const Image& image : batch.value().images) {
      require(image_hash(image.head.height, image.head.width, image.rgb.bytes) == image.head.hash);
      require(images.insert(image.head.hash).second);
    }
    for (const Rollout& rollout : batch.value().rollouts) {
      require(validate(rollout, {}).ok());
      require(taken_.emplace(rollout.group_id, rollout.sample_index).second);
      for (const ConversationImage& image : rollout.images) {
        require(images.contains(image.hash));
      }
    }
    step_ += messages ? 1 : 0;
  }

  static std::string identity(int which) {
    return "w" + std::to_string(which & 3) + "/" + std::to_string(1 + (which >> 2 & 1));
  }

  void send(const std::string& from, std::span<const uint8_t> flat) {
    const uint64_t before = rejected();
    const auto message = parse_flat(std::as_bytes(flat), {});
    state_.on_message(from, "", message, now_);
    if (!message) {
      require(rejected() == before + 1);
    }
  }

  void raw(uint8_t op) { send(identity(op), script_.take(script_.next() * 4)); }

  void typed(uint8_t op) {
    const std::string from = identity(script_.next());
    const auto session = state_.sessions().find(from);
    const auto type = static_cast<MessageType>((op & 31) % 19);
    Header header{type, "run", 1, from.substr(0, 2), static_cast<uint64_t>(from[3] - '0'), 1};
    if (session != state_.sessions().end()) {
      header.seq = session->second.received_seq + 1;
    }
    if (type == MessageType::kHello) {
      header.seq = 1;
    }
    if (op >= 0xf0) {
      header.seq = static_cast<uint64_t>(script_.number());
    }
    const Payload payload = body(type);
    send(from, flatten(pack_header(header, payload), payload));
  }

  std::string root(int64_t version) {
    return version == version_ ? snapshot_->manifest.root_hash : "other";
  }

  Payload body(MessageType type) {
    const int64_t version = version_ - script_.next() % 3;
    switch (type) {
      case MessageType::kHello:
        return make_payload(type,
                            HelloBody{script_.number(), 1, version, root(version), "fuzz", -1});
      case MessageType::kRollout:
        return rollout();
      case MessageType::kImage:
        return image();
      case MessageType::kReady:
        return make_payload(type, ReadyBody{version});
      case MessageType::kHeartbeat:
        return make_payload(type, HeartbeatBody{script_.next() % 2 ? "paused" : "ready", version,
                                                script_.number(), script_.number(), -1});
      case MessageType::kStaged:
        return make_payload(type,
                            StagedBody{version, root(version), "overwrite", script_.number()});
      case MessageType::kStageFailed:
        return make_payload(type, StageFailedBody{version, "d"});
      case MessageType::kCommitted:
        return make_payload(type, WeightsBody{version, root(version)});
      case MessageType::kChunkRequest:
        return make_payload(type, ChunkBody{version, 0, 0, 1, -1});
      default:
        return make_payload(type, EndBody{"e"});
    }
  }

  Image picture() { return test::make_picture(2, 3, script_.next() & 3); }

  Payload image() {
    Image image = picture();
    if (script_.next() == 0xff) {
      image.rgb = picture().rgb;  // perhaps another's
    }
    return encode_image(image);
  }

  Payload rollout() {
    const int64_t group = script_.next() & 15;
    const uint8_t how = script_.next();
    Rollout r = test::make_rollout(group, how & 1, kGroupSize, how >> 1 & 7);
    if ((how & 0x10) != 0) {
      r.finish_reason = FinishReason::kAborted;
    }
    if ((how & 8) != 0) {
      r = test::with_pictures(std::move(r), {picture(), picture()});
    }
    Payload payload = encode_rollout(r);
    if ((how & 0xe0) != 0xe0) {
      return payload;
    }
    const auto odd = [&] { return static_cast<int32_t>(script_.number()); };
    r.attempt = odd();
    r.group_id = script_.number();
    r.group_size = odd();
    r.sample_index = odd();
    r.trainer_term = script_.number();
    payload.body = make_payload(payload.type, r).body;
    return payload;
  }

  uint64_t rejected() {
    uint64_t sum = 0;
    const BridgeCounters counters = state_.counters();
    for (const uint64_t count : counters.rejected) {
      sum += count;
    }
    return sum;
  }

  // Its number in the session.
  static uint64_t check_message(const Outgoing& out) {
    const auto flat = flatten(out.header, out.payload);
    const auto message = parse_flat(std::as_bytes(std::span(flat)), {});
    require(message.ok());
    return message.value().header().seq;
  }

  // What is to be sent parses; a session's messages are numbered to sent_seq without a gap.
  void drain() {
    for (const auto& [identity, out] : state_.strays()) {
      check_message(out);
    }
    state_.strays().clear();
    for (auto& [identity, session] : state_.sessions()) {
      std::vector<uint64_t> numbers;
      for (const Outgoing& out : session.outbox) {
        numbers.push_back(check_message(out));
      }
      std::erase(numbers, 0U);  // BYE has no number
      const uint64_t before = session.sent_seq - numbers.size();
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        require(numbers[i] == before + i + 1);
      }
      session.outbox.clear();
    }
  }

  void check() {
    require(state_.sessions().size() <= kWorkers);
    require(state_.strays().size() <= 256);
    std::set<std::string> ids;
    int64_t in_flight = 0;
    for (const WorkerStatus& worker : state_.workers()) {
      require(ids.insert(worker.worker_id).second);  // one session a worker id
      require(worker.in_flight_samples >= 0 && worker.version <= version_);
      in_flight += worker.in_flight_samples;
    }
    require(in_flight <= kQueued);
    const BridgeCounters c = state_.counters();
    require(c.accepted + c.duplicate + c.requeued + c.busy <= c.received);
  }

  Script script_;
  test::TempDir dir_;
  test::HandGrants grants_{kGroupSize};
  TrainerState state_;
  Clock::time_point now_{};
  int64_t version_ = -1;
  std::shared_ptr<const WeightSnapshot> snapshot_;
  int64_t step_ = 1;        // to be taken
  int64_t checkpoint_ = 0;  // last step in a checkpoint
  std::set<int64_t> granted_;
  std::set<std::pair<int64_t, int32_t>> taken_;
};

}  // namespace

void trainer(std::span<const uint8_t> bytes) { Drive(bytes).run(); }

}  // namespace ringside::bridge::fuzz
