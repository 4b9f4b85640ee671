// Guards images of conversations on their way to the trainer: what they are known by, what a
// rollout may say of them, that the journal has each once and before the rollouts that name it, and
// that the trainer asks for those that it does not have.
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <limits>

#include "rollout_bridge/trainer/journal.h"
#include "rollout_bridge/trainer/waiting_images.h"
#include "tests/rollout_bridge/direct_trainer.h"
#include "tests/rollout_bridge/direct_worker.h"

namespace ringside::bridge {
namespace {

using namespace test;
using Catch::Matchers::Contains;

Message parsed(const Payload& payload, std::string& header) {
  header = pack_header({payload.type, "run", 1, "w", 1, 1}, payload);
  std::vector<Frame> frames = {std::as_bytes(std::span(header))};
  for (const Buffer& buffer : payload.buffers) {
    frames.push_back(buffer.bytes);
  }
  return parse_message(frames, {}).value();
}

FlatImage flat(const Image& image) {
  const Payload payload = encode_image(image);
  return flatten(pack_header(Header{}, payload), payload);
}

TEST_CASE("an image is known by its size and pixels", "[images]") {
  // xxhash.xxh3_128_hexdigest(b"2 x 1:" + bytes(range(6))) of Python's xxhash
  std::vector<uint8_t> rgb = {0, 1, 2, 3, 4, 5};
  const Image image = make_image(2, 1, Buffer::own(rgb));
  CHECK(image.head.hash == "45728117b94ef3c03a00ab4e97a1595b");
  CHECK(make_image(1, 2, Buffer::own(rgb)).head.hash != image.head.hash);
  CHECK_THROWS_WITH(make_image(2, 2, Buffer::own(rgb)), Contains("2 x 2 pixels with 6 bytes"));
  CHECK(is_image_hash(image.head.hash));
  CHECK_FALSE(is_image_hash(std::string(32, '0')));
  CHECK_FALSE(is_image_hash(std::string(32, 'A')));
  CHECK_FALSE(is_image_hash(image.head.hash.substr(1)));
}

TEST_CASE("an IMAGE comes back with its pixels, and damage is refused", "[images]") {
  const Image image = make_picture(4, 6, 1);
  std::string header;
  const Message message = parsed(encode_image(image), header);
  CHECK(read_image_head(message).value() == image.head);
  const Image back = decode_image(message).value();
  CHECK(std::ranges::equal(back.rgb.bytes, image.rgb.bytes));

  const auto refusal = [&](const Payload& payload) {
    const Message bad = parsed(payload, header);
    const auto head = read_image_head(bad);
    REQUIRE_FALSE(head.ok());
    return std::pair(head.error().reason, head.error().detail);
  };
  Image other = image;
  other.rgb = make_picture(4, 6, 2).rgb;
  CHECK(refusal(encode_image(other)).first == Reason::kChecksum);
  Payload flat_shape = encode_image(image);
  flat_shape.specs[0].shape = {24, 3};
  CHECK(refusal(flat_shape).first == Reason::kFrames);
  Payload none = encode_image(image);
  none.specs[0].name = "grey";
  CHECK(refusal(none).second == "IMAGE lacks frame 'rgb'");
  Image nameless = image;
  nameless.head.hash = "nonsense";
  CHECK(refusal(encode_image(nameless)).first == Reason::kInvalidField);
  Limits small;
  small.max_image_bytes = 71;
  const Message whole = parsed(encode_image(image), header);
  CHECK(read_image_head(whole, small).error().reason == Reason::kLimit);
  CHECK(read_image_head(parsed(make_payload(MessageType::kBye, EndBody{""}), header))
            .error()
            .reason == Reason::kMalformed);
}

TEST_CASE("a rollout brings its images' places over the wire", "[images]") {
  const Image first = make_picture(2, 3, 1), second = make_picture(5, 1, 2);
  const Rollout r = with_pictures(make_rollout(3, 1, 2, 2), {first, second, first});
  REQUIRE(validate(r).ok());
  CHECK(distinct_images(r) == std::vector<ImageHead>{first.head, second.head});
  std::string header;
  const Rollout back = decode_rollout(parsed(encode_rollout(r), header)).value();
  CHECK(back == r);
  CHECK(back.images.at(2).hash == first.head.hash);
  CHECK(back.images.at(0).rgb.bytes.empty());
  CHECK(wire_bytes(r) == encode_rollout(r).buffer_bytes());
  Payload unequal = encode_rollout(r);
  for (FrameSpec& spec : unequal.specs) {
    if (spec.name == "image_spans") {
      spec.name = "unknown";
    }
  }
  CHECK(decode_rollout(parsed(unequal, header)).error().detail ==
        "ROLLOUT lacks frame 'image_spans'");
}

TEST_CASE("a rollout's images have places of their own that nobody sampled", "[images]") {
  const Image picture = make_picture(2, 3, 1);
  const Rollout good = with_pictures(make_rollout(3, 1, 2, 2), {picture, picture});
  const auto refusal = [](const Rollout& r, const Limits& limits = {}) {
    const Status s = validate(r, limits);
    REQUIRE_FALSE(s.ok());
    return s.error().detail;
  };
  Rollout r = good;
  r.images[1].begin = r.images[0].end - 1;
  CHECK_THAT(refusal(r), Contains("images[1]: tokens [") && Contains("must begin at"));
  r = good;
  r.images[1].end = static_cast<int64_t>(r.completion_ids.size()) + 1;
  CHECK_THAT(refusal(r), Contains("images[1]: tokens ["));
  r = good;
  r.images[0].end = r.images[0].begin;
  CHECK_THAT(refusal(r), Contains("not be empty"));
  r = good;
  r.images[0].begin = -1;
  CHECK_THAT(refusal(r), Contains("images[0]: tokens [-1"));
  r = good;
  r.loss_mask[static_cast<std::size_t>(r.images[0].begin)] = 1;
  CHECK_THAT(refusal(r), Contains("must have loss_mask 0"));
  r = good;
  r.loss_mask.clear();
  CHECK_THAT(refusal(r), Contains("must have loss_mask 0"));
  r = good;
  r.images[1].height = 3;
  r.images[1].width = 2;
  CHECK_THAT(refusal(r), Contains("is there with two sizes"));
  r = good;
  r.images[0].height = std::numeric_limits<int64_t>::max();
  CHECK_THAT(refusal(r), Contains("expected sides of 1 to 65536"));
  r = good;
  r.images[0].hash.clear();
  CHECK_THAT(refusal(r), Contains("expected 32 lower-case hex digits"));
  r = good;
  r.branches = {{r.images[0].begin + 1, 0}};
  CHECK_THAT(refusal(r), Contains("branches[0] cuts the tokens of an image"));
  r.branches = {{r.images[0].end, r.images[0].begin + 1}};
  CHECK_THAT(refusal(r), Contains("branches[0] cuts the tokens of an image"));
  r.branches = {{r.images[0].begin, 0}, {r.images[0].end, r.images[0].begin}};
  CHECK(validate(r).ok());
  Limits small;
  small.max_images = 1;
  CHECK_THAT(refusal(good, small), Contains("images has 2 entries, limit 1"));
  small = {};
  small.max_rollout_image_bytes = 17;
  CHECK_THAT(refusal(good, small), Contains("18 bytes together, limit 17"));
  small.max_rollout_image_bytes = 18;  // the image counts once
  CHECK(validate(good, small).ok());
}

// --- the journal

Journal::Options journal_options(const TempDir& dir) {
  Journal::Options options;
  options.directory = dir.path();
  options.run_id = "run";
  options.fsync = FsyncPolicy::kOff;
  return options;
}

Status append(Journal& journal, const Rollout& r, const std::vector<Image>& images) {
  std::vector<Journal::NamedImage> named;
  for (const Image& image : images) {
    named.push_back({image.head.hash, std::make_shared<const FlatImage>(flat(image))});
  }
  return journal.append(r.group_id, flatten_rollout(r), named);
}

TEST_CASE("the journal has an image once, for as long as a rollout needs it", "[images][journal]") {
  const TempDir dir;
  const Image shared = make_picture(40, 40, 1), own = make_picture(60, 60, 2);
  const Rollout first = with_pictures(make_rollout(1, 0, 1), {shared, own});
  const Rollout second = with_pictures(make_rollout(2, 0, 1), {shared});
  Journal::Options options = journal_options(dir);
  options.compact_bytes = 100;
  {
    Journal journal(options);
    REQUIRE(append(journal, first, {shared, own}).ok());
    const uint64_t before = journal.file_bytes();
    REQUIRE(append(journal, second, {shared}).ok());
    CHECK(journal.file_bytes() - before < 4800);  // without the image's 4800 bytes
    CHECK(journal.read_image(shared.head.hash) == flat(shared));
  }
  Journal journal(options);
  CHECK(journal.take_replayed().size() == 2);
  CHECK(journal.read_image(own.head.hash) == flat(own));
  journal.consume(std::vector<int64_t>{1});  // and is rewritten
  CHECK_FALSE(journal.has_image(own.head.hash));
  CHECK(journal.read_image(shared.head.hash) == flat(shared));
  journal.consume(std::vector<int64_t>{2});
  CHECK_FALSE(journal.has_image(shared.head.hash));
}

TEST_CASE("a rollout whose image does not fit is not in the journal", "[images][journal]") {
  const TempDir dir;
  const Image picture = make_picture(20, 20, 1);
  const Rollout r = with_pictures(make_rollout(1, 0, 1), {picture});
  Journal::Options options = journal_options(dir);
  options.max_bytes = 1400;
  {
    Journal journal(options);
    const uint64_t before = journal.file_bytes();
    const Status s = append(journal, r, {picture});
    REQUIRE_FALSE(s.ok());
    CHECK(s.error().reason == Reason::kBusy);
    CHECK(journal.file_bytes() == before);
    CHECK_FALSE(journal.has_image(picture.head.hash));
  }
  options.max_bytes = 4000;
  Journal journal(options);
  REQUIRE(append(journal, r, {picture}).ok());
  const std::vector<Journal::NamedImage> forgotten = {{make_picture(2, 2, 5).head.hash}};
  CHECK_THROWS_WITH(journal.append(2, flatten_rollout(r), forgotten),
                    Contains("neither here nor in the journal"));
}

TEST_CASE("a rollout without its image, and a damaged image, do not come back",
          "[images][journal]") {
  const TempDir dir;
  const Image picture = make_picture(20, 20, 1);
  const Rollout r = with_pictures(make_rollout(1, 0, 1), {picture});
  {
    Journal journal(journal_options(dir));
    REQUIRE(journal.append(r.group_id, flatten_rollout(r)).ok());  // as no trainer does
    REQUIRE(append(journal, with_pictures(make_rollout(2, 0, 1), {picture}), {picture}).ok());
  }
  {
    Journal journal(journal_options(dir));
    const auto replayed = journal.take_replayed();
    REQUIRE(replayed.size() == 1);
    CHECK(replayed[0].rollout.group_id == 2);
    CHECK_THAT(journal.unreadable(),
               Contains("names image " + picture.head.hash + ", which does not stand before it"));
    // Another program writes into the file while it is in use.
    std::fstream file(dir.path() / "journal.bin", std::ios::in | std::ios::out | std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    const auto* pixels = reinterpret_cast<const char*>(picture.rgb.bytes.data());
    const std::size_t at = text.find(std::string(pixels, picture.rgb.bytes.size()));
    REQUIRE(at != std::string::npos);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(text[at] ^ 1));
    file.close();
    CHECK_THROWS_WITH(journal.read_image(picture.head.hash), Contains("is not as it was written"));
  }
  Journal journal(journal_options(dir));
  CHECK(journal.take_replayed().empty());
  CHECK_FALSE(journal.has_image(picture.head.hash));
}

// --- images that wait

TEST_CASE("images that no rollout names are dropped where there is no room", "[images]") {
  const auto message = [](std::size_t bytes) { return FlatImage(bytes, 1); };
  const Clock::time_point start{}, soon = start + std::chrono::seconds(9),
                                   later = start + kKeptFromOthers;
  WaitingImages waiting({.worker_images = 3, .worker_bytes = 60, .total_bytes = 100});
  waiting.add("a", "1", message(10), start);
  waiting.add("a", "2", message(10), start);
  waiting.add("a", "3", message(10), start);
  CHECK(waiting.use("1"));
  waiting.add("a", "4", message(10), start);  // too many of this worker
  CHECK_FALSE(waiting.use("2"));
  CHECK(waiting.size() == 3);
  waiting.add("a", "5", message(45), start);  // too many bytes of this worker
  CHECK(waiting.bytes() == 55);
  CHECK(waiting.use("4"));
  waiting.add("b", "6", message(50), soon);  // too many bytes in all: it goes
  CHECK_FALSE(waiting.use("6"));
  waiting.add("b", "6", message(50), later);  // now "5" goes, used before "4"
  CHECK_FALSE(waiting.use("5"));
  CHECK(waiting.use("4"));
  CHECK(waiting.bytes() == 60);
  waiting.add("b", "4", message(7), later);  // it is here
  CHECK(waiting.bytes() == 60);
  waiting.remove("4");
  waiting.remove("6");
  CHECK(waiting.bytes() == 0);
  waiting.add("c", "7", message(500), later);  // larger than all the room: alone
  CHECK(waiting.use("7"));
  CHECK(waiting.dropped() == 5);
  CHECK_THROWS_WITH(WaitingImages({.worker_images = 1, .worker_bytes = 2, .total_bytes = 1}),
                    Contains("total_bytes 1"));
}

// --- the trainer

ImageAckBody say_image(DirectTrainer& trainer, const std::string& worker, const Image& image) {
  (void)trainer.bodies<ImageAckBody>(worker, MessageType::kImageAck);
  trainer.say(worker, encode_image(image));
  const auto acks = trainer.bodies<ImageAckBody>(worker, MessageType::kImageAck);
  return acks.empty() ? ImageAckBody{} : acks.back();
}

Rollout pictured(int64_t group, const std::vector<Image>& pictures) {
  return with_pictures(rollout_under(0, group, 0, 1), pictures);
}

TEST_CASE("the trainer asks for the images that it does not have", "[images]") {
  const TempDir dir;
  DirectTrainer trainer(trainer_options(dir, 1));
  trainer.publish(0);
  trainer.grant({{1, 1, 0}, {2, 1, 0}});
  trainer.bring_in("w", 0);
  const Image a = make_picture(3, 4, 1), b = make_picture(5, 6, 2);
  const Rollout first = pictured(1, {a, b, a});
  AckBody ack = trainer.deliver("w", first);
  CHECK(ack.status == "UNKNOWN_IMAGES");
  CHECK(ack.images == std::vector{a.head.hash, b.head.hash});
  CHECK(say_image(trainer, "w", b).status == "STORED");
  CHECK(trainer.state().counters().waiting_image_bytes > 90);
  ack = trainer.deliver("w", first);
  CHECK(ack.images == std::vector{a.head.hash});
  CHECK(say_image(trainer, "w", a).status == "STORED");
  CHECK(trainer.deliver("w", first).status == "ACCEPTED");
  CHECK(trainer.state().counters().waiting_image_bytes == 0);
  CHECK(trainer.deliver("w", pictured(2, {b})).status == "ACCEPTED");  // the journal has it
  CHECK(trainer.state().counters().unknown_images == 2);

  const auto step = read_batch(trainer.state().take(1).value()).value();
  REQUIRE(step.rollouts.size() == 1);
  REQUIRE(step.images.size() == 2);
  for (const Image& image : step.images) {
    const Image& sent = image.head == a.head ? a : b;
    CHECK(image.head == sent.head);
    CHECK(std::ranges::equal(image.rgb.bytes, sent.rgb.bytes));
  }
}

TEST_CASE("a restarted trainer has the images of what it accepted, and asks for others",
          "[images]") {
  const TempDir dir;
  const Image a = make_picture(3, 4, 1), b = make_picture(5, 6, 2);
  TrainerOptions options = trainer_options(dir, 1);
  {
    DirectTrainer trainer(options);
    trainer.publish(0);
    trainer.grant({{1, 1, 0}, {2, 1, 0}});
    trainer.bring_in("w", 0);
    say_image(trainer, "w", a);
    CHECK(trainer.deliver("w", pictured(1, {a})).status == "ACCEPTED");
    say_image(trainer, "w", b);
  }
  options.trainer_term = 2;
  options.newest_of_term = {{1, 100}};
  DirectTrainer trainer(options);
  trainer.publish(0);
  trainer.grant({{1, 1, 0}, {2, 1, 0}});
  trainer.hello("w");
  const AckBody ack = trainer.deliver("w", pictured(2, {a, b}));
  CHECK(ack.status == "UNKNOWN_IMAGES");
  CHECK(ack.images == std::vector{b.head.hash});
  say_image(trainer, "w", b);
  CHECK(trainer.deliver("w", pictured(2, {a, b})).status == "ACCEPTED");
  const auto step = read_batch(trainer.state().take(1).value()).value();
  REQUIRE(step.images.size() == 1);
  CHECK(step.images[0].head == a.head);
}

TEST_CASE("images that are not what they say are refused, and end in the worker's leave",
          "[images]") {
  const TempDir dir;
  DirectTrainer trainer(trainer_options(dir, 1));
  trainer.publish(0);
  trainer.bring_in("w", 0);
  Image lie = make_picture(3, 4, 1);
  const Image truth = lie;
  lie.rgb = make_picture(3, 4, 2).rgb;
  const ImageAckBody ack = say_image(trainer, "w", lie);
  CHECK(ack.status == "REFUSED");
  CHECK(ack.reason == "checksum");
  CHECK(ack.hash == truth.head.hash);
  CHECK(ack.window_bytes > 0);
  CHECK(trainer.rejected(Reason::kChecksum) == 1);
  CHECK(trainer.state().counters().waiting_image_bytes == 0);
  CHECK(say_image(trainer, "w", truth).status == "STORED");
  for (int i = 0; i < 15; ++i) {
    CHECK(trainer.state_of("w") == "ready");
    say_image(trainer, "w", lie);
  }
  CHECK(trainer.state_of("w").empty());
}

// --- the worker

using enum MessageType;
using Types = std::vector<MessageType>;

// All but heartbeats.
Types sent_by(DirectWorker& worker) {
  Types types = worker.sent();
  std::erase(types, kHeartbeat);
  return types;
}

void ask(DirectWorker& worker, const std::string& rollout_id, std::vector<std::string> hashes) {
  worker.say(
      make_payload(kAck, AckBody{rollout_id, "UNKNOWN_IMAGES", "", "", -1, std::move(hashes)}));
}
void image_ack(DirectWorker& worker, const std::string& hash) {
  worker.say(make_payload(kImageAck, ImageAckBody{hash, "STORED", "", ""}));
}

TEST_CASE("a worker sends an image once, and again when it is asked for", "[images][worker]") {
  DirectWorker worker;
  worker.join();
  (void)sent_by(worker);
  const Image a = make_picture(3, 4, 1), b = make_picture(5, 6, 2);
  const Rollout first = pictured(1, {a, b, a}), second = pictured(2, {a});
  REQUIRE(worker.state().send_rollout(first).ok());
  REQUIRE(worker.state().send_rollout(second).ok());
  CHECK(sent_by(worker) == Types{kImage, kImage, kRollout, kRollout});
  image_ack(worker, a.head.hash);
  image_ack(worker, b.head.hash);
  ask(worker, second.rollout_id, {a.head.hash});  // it was dropped
  CHECK(sent_by(worker) == Types{kImage, kRollout});
  image_ack(worker, a.head.hash);
  worker.cut();
  worker.join(2);  // the trainer has both, as far as the worker knows
  CHECK(sent_by(worker) == Types{kRollout, kRollout});
  ask(worker, first.rollout_id, {b.head.hash});
  CHECK(sent_by(worker) == Types{kImage, kRollout});
  worker.cut();  // b is not answered: it may be lost
  worker.join(2);
  CHECK(sent_by(worker) == Types{kImage, kRollout, kRollout});
  worker.ack(first.rollout_id, "ACCEPTED");
  worker.ack(second.rollout_id, "ACCEPTED");
  CHECK(worker.state().rollouts().size() == 0);
}

TEST_CASE("a worker that is asked again sends all images of the rollout, and takes its time",
          "[images][worker]") {
  DirectWorker worker;
  worker.join();
  (void)sent_by(worker);
  const Image a = make_picture(3, 4, 1), b = make_picture(4, 4, 2);
  const Rollout r = pictured(1, {a, b});
  REQUIRE(worker.state().send_rollout(r).ok());
  CHECK(sent_by(worker) == Types{kImage, kImage, kRollout});
  ask(worker, r.rollout_id, {b.head.hash});
  CHECK(sent_by(worker) == Types{kImage, kRollout});
  ask(worker, r.rollout_id, {b.head.hash});
  CHECK(sent_by(worker) == Types{kImage, kImage, kRollout});
  ask(worker, r.rollout_id, {a.head.hash});
  CHECK(sent_by(worker).empty());
  worker.advance(std::chrono::milliseconds(60));  // busy_retry is 50
  CHECK(sent_by(worker) == Types{kImage, kImage, kRollout});
}

TEST_CASE("images count in the worker's window", "[images][worker]") {
  DirectWorker worker;
  worker.join();
  (void)sent_by(worker);
  const Image a = make_picture(30, 40, 1), b = make_picture(30, 40, 2);  // 3600 bytes each
  REQUIRE(worker.state().send_rollout(pictured(1, {a, b})).ok());
  worker.say(make_payload(kCredit, CreditBody{{}, 5000, {}}));
  CHECK(sent_by(worker) == Types{kImage});
  image_ack(worker, a.head.hash);
  CHECK(sent_by(worker) == Types{kImage, kRollout});
  CHECK(sent_by(worker).empty());
}

TEST_CASE("a worker does not send a rollout whose pixels are missing or wrong",
          "[images][worker]") {
  DirectWorker worker;
  worker.join();
  Rollout r = pictured(1, {make_picture(3, 4, 1)});
  r.images[0].rgb = make_picture(3, 4, 2).rgb;
  CHECK(worker.state().send_rollout(r).error().reason == Reason::kChecksum);
  r.images[0].rgb = {};
  CHECK_THAT(worker.state().send_rollout(r).error().detail,
             Contains("has 0 bytes of pixels, expected 36"));
}

TEST_CASE("an evaluation's images stay at the worker", "[images][worker]") {
  DirectWorker worker;
  worker.join();
  (void)sent_by(worker);
  REQUIRE(worker.state().send_rollout(pictured(kFirstHeldOutGroup, {make_picture(3, 4, 1)})).ok());
  CHECK(sent_by(worker) == Types{kRollout});
}

// --- both, over sockets

TEST_CASE("a trainer has room for the images of one rollout at least", "[images][endpoint]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir, 1);
  options.images.worker_images = 1023;
  CHECK_THROWS_WITH(TestTrainer(options), Contains("room for one rollout: 1024 and"));
  options.images = {};
  options.images.worker_bytes = options.limits.max_rollout_image_bytes;
  CHECK_THROWS_WITH(TestTrainer(options), Contains("room for one rollout"));
}

TEST_CASE("a rollout with images reaches a trainer that restarts", "[images][endpoint]") {
  const TempDir dir;
  TrainerOptions options = trainer_options(dir, 1);
  options.rollout_address = "ipc://" + (dir.path() / "rollouts").string();
  const Image a = make_picture(40, 50, 1), b = make_picture(7, 9, 2);
  std::optional<TestTrainer> trainer(std::in_place, options);
  WorkerEndpoint worker(worker_options(options.rollout_address, "w"));
  const auto start = [&] {
    trainer->publish(make_snapshot("run", options.trainer_term, 0, make_tensors(0)));
    trainer->grant({{1, 1, 0}, {2, 1, 0}});
  };
  const auto install = [&] {
    bool installed = false;
    return eventually([&] {
      const auto event = worker.poll(std::chrono::milliseconds(10));
      const auto* ready = event ? std::get_if<WeightsReady>(&*event) : nullptr;
      installed =
          installed || (ready != nullptr &&
                        worker.commit_weights(0, root_hash_of(named(*ready->snapshot))).ok());
      return installed;
    });
  };
  start();
  REQUIRE(install());
  Rollout first = pictured(1, {a});
  first.trainer_term = -1;
  REQUIRE(eventually([&] { return trainer->workers().at(0).in_flight_samples == 2; }));
  REQUIRE(worker.send_rollout(first, kPatience).ok());
  REQUIRE(eventually([&] { return worker.pending() == 0; }));
  trainer.reset();
  options.trainer_term = 2;
  options.newest_of_term = {{1, 100}};
  trainer.emplace(options);
  start();
  REQUIRE(install());
  Rollout second = pictured(2, {a, b});
  second.trainer_term = -1;
  REQUIRE(eventually([&] { return trainer->workers().at(0).in_flight_samples == 1; }));
  REQUIRE(worker.send_rollout(second, kPatience).ok());
  REQUIRE(eventually([&] { return worker.pending() == 0; }));
  const auto one = read_batch(trainer->take(1, kPatience).value()).value();
  const auto two = read_batch(trainer->take(2, kPatience).value()).value();
  REQUIRE(one.images.size() == 1);
  CHECK(std::ranges::equal(one.images[0].rgb.bytes, a.rgb.bytes));
  CHECK(two.images.size() == 2);
  CHECK(trainer->counters().images == 1);  // b: it has a
}

}  // namespace
}  // namespace ringside::bridge
