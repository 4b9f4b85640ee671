// Guards: elements that no rank writes or that two write; a checkpoint that loads at another number
// of ranks with other values; a file that was cut, changed, lost or exchanged and is loaded all the
// same; a save that training waits for or whose failure nobody hears of; the best checkpoint
// pruned.
#include "rl/trainer/checkpoint.h"

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <random>

#include "engine/io/hf_directory.h"
#include "rl/checkpoint/checkpoint_reader.h"
#include "rl/trainer/background_save.h"
#include "sp/mesh/rank_work.h"
#include "tests/support/catch.h"
#include "tests/support/checkpoints.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

using namespace ringside;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

engine::ModelRunner make_runner(uint64_t seed, at::ScalarType dtype = at::kFloat) {
  auto decoder =
      std::make_unique<engine::Decoder>(test::random_decoder(test::tiny_config(), dtype, seed));
  return {std::make_unique<engine::LanguageModel>(std::move(decoder)), sp::single_rank_groups(),
          engine::AdamWOptions{}};
}

// A runner whose moments are not zero.
engine::ModelRunner stepped_runner(uint64_t seed, at::ScalarType dtype = at::kFloat) {
  auto runner = make_runner(seed, dtype);
  for (engine::ParamUnit* unit : runner.model().units()) {
    unit->grad().copy_(
        at::sin(at::arange(unit->flat().numel(), unit->flat().options().requires_grad(false)) *
                static_cast<double>(seed)));
  }
  runner.step(1e-2, 0);
  return runner;
}

bool same_state(const engine::ModelRunner& a, const engine::ModelRunner& b) {
  const auto left = a.state_slices(), right = b.state_slices();
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].name != right[i].name || !at::equal(left[i].values, right[i].values)) {
      return false;
    }
  }
  return left.size() == right.size();
}

rl::CheckpointManifest manifest_of(int64_t step) {
  rl::CheckpointManifest manifest;
  manifest.state = {step, step, step, 7, "run"};
  return manifest;
}

// Loads the checkpoint as a rank that holds everything.
void load(const fs::path& dir, const engine::ModelRunner& runner) {
  const rl::CheckpointReader reader(dir);
  reader.verify(0, 1);
  reader.fill("policy", runner.state_slices());
}

// Holds threads back until opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    if (!opened_.wait_for(lock, std::chrono::seconds(60), [this] { return open_; })) {
      throw std::runtime_error("the gate was never opened");
    }
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

}  // namespace

TEST_CASE("shares of slices are disjoint, complete and of floor or ceil size") {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<engine::NamedSlice> slices;
    int64_t total = 0;
    for (int i = 0; i < 6; ++i) {
      const auto numel = static_cast<int64_t>(random() % 9);
      const auto begin = static_cast<int64_t>(random() % 5);
      slices.push_back({std::to_string(i), {40}, begin, at::arange(total, total + numel)});
      total += numel;
    }
    const auto writers = static_cast<int64_t>(1 + random() % 7);
    int64_t next = 0;
    for (int64_t writer = 0; writer < writers; ++writer) {
      int64_t size = 0;
      for (const engine::NamedSlice& part : engine::share_of(slices, writer, writers)) {
        const engine::NamedSlice& from = slices[std::stoul(part.name)];
        CHECK(part.shape == from.shape);
        CHECK(part.values.numel() > 0);
        for (int64_t i = 0; i < part.values.numel(); ++i) {
          CHECK(part.values[i].item<int64_t>() == next++);
          CHECK(at::equal(part.values[i], from.values[part.begin - from.begin + i]));
        }
        size += part.values.numel();
      }
      CHECK((size == total / writers || size == total / writers + 1));
    }
    CHECK(next == total);
  }
  CHECK_THROWS_AS(engine::share_of({}, 2, 2), c10::Error);
}

TEST_CASE("parts of any number of ranks fill slices that are cut anywhere, to the bit") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const int64_t writers = GENERATE(1, 3, 4);
  const test::TemporaryDirectory dir;
  const auto policy = stepped_runner(1, dtype);
  test::save_checkpoint(dir.path(), policy, manifest_of(1), writers);
  const rl::CheckpointReader reader(dir.path());
  for (const int64_t readers : {1, 2, 5, 7}) {
    const auto restored = make_runner(9, dtype);
    for (int64_t rank = 0; rank < readers; ++rank) {
      reader.verify(rank, readers);
      reader.fill("policy", engine::share_of(restored.state_slices(), rank, readers));
    }
    CHECK(same_state(policy, restored));
  }
  CHECK(reader.manifest().state.run_id == "run");
  CHECK(reader.manifest().optimizer_steps.at("policy") == 1);
}

TEST_CASE("a part that was cut, changed, lost or exchanged is refused by its name") {
  const test::TemporaryDirectory folder;
  const auto policy = stepped_runner(1);
  const fs::path dir = folder.path() / "step-000002", other = folder.path() / "step-000004";
  test::save_checkpoint(dir, policy, manifest_of(2), 3);
  const auto restored = make_runner(9);
  const std::string name = rl::part_name(1, 3);
  const std::string whole = test::read_file(dir / name);
  const auto refusal = [&](const std::string& content) {
    test::write_file(dir / name, content);
    try {
      load(dir, restored);
    } catch (const std::runtime_error& error) {
      test::write_file(dir / name, whole);
      return std::string(error.what());
    }
    return std::string("loaded");
  };
  CHECK(refusal(whole) == "loaded");
  const std::string path = (dir / name).string();
  CHECK_THAT(refusal(whole.substr(0, whole.size() - 1)), Contains(path) && Contains("bytes"));
  CHECK_THAT(refusal(""), Contains(path) && Contains("has 0 bytes"));
  for (const std::size_t at : {whole.size() - 1, whole.size() / 2, std::size_t{9}}) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    CHECK_THAT(refusal(changed), Contains(path));
  }
  test::save_checkpoint(other, policy, manifest_of(4), 3);  // equal values, so equal sizes
  CHECK_THAT(refusal(test::read_file(other / name)), Contains(path) && Contains("of step 4"));
  test::save_checkpoint(other, stepped_runner(2), manifest_of(2), 3);
  CHECK_THAT(refusal(test::read_file(other / name)), Contains(path) && Contains("hash"));
  CHECK_THAT(refusal(test::read_file(dir / rl::part_name(0, 3))), Contains(path));
  fs::remove(dir / name);
  CHECK_THROWS_WITH(load(dir, restored), Contains(path) && Contains("missing"));
}

TEST_CASE("a manifest that is cut or lies is refused by its name") {
  const test::TemporaryDirectory dir;
  const auto restored = make_runner(9);
  test::save_checkpoint(dir.path(), stepped_runner(1), manifest_of(2), 2);
  const fs::path path = dir.path() / "manifest.json";
  const std::string whole = test::read_file(path);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    test::write_file(path, text);
    CHECK_THROWS_WITH(load(dir.path(), restored), Contains(dir.path().string()));
  };
  with("\"parts\": [", "\"pieces\": [");
  with("part-00001-of-00002", "part-00000-of-00002");
  with("ringside checkpoint 1", "another 2");
  with("\"step\": 2", "\"step\": 3");
  for (const std::size_t size : {std::size_t{0}, std::size_t{40}, whole.size() - 3}) {
    test::write_file(path, whole.substr(0, size));
    CHECK_THROWS_WITH(load(dir.path(), restored), Contains(path.string()));
  }
  fs::remove(path);
  CHECK_THROWS_WITH(load(dir.path(), restored), Contains("no complete checkpoint"));
}

TEST_CASE("a model that the checkpoint does not hold, or not whole, is refused by the tensor") {
  const test::TemporaryDirectory dir;
  const auto policy = stepped_runner(1);
  test::save_checkpoint(dir.path(), policy, manifest_of(2), 2);
  const rl::CheckpointReader reader(dir.path());
  CHECK_THROWS_WITH(reader.fill("critic", policy.state_slices()),
                    Contains("lacks tensor critic/model.embed_tokens.weight"));
  auto slices = policy.state_slices();
  slices[0].shape = {16, 19};
  CHECK_THROWS_WITH(reader.fill("policy", slices),
                    Contains("policy/model.embed_tokens.weight has shape [19, 16]"));
  // A manifest without the second part: the hashes are right, elements are missing.
  rl::CheckpointManifest half = reader.manifest();
  half.parts = {rl::write_part(dir.path(), {2, 0, 1},
                               engine::share_of(test::named_slices("policy", policy), 0, 3))};
  rl::write_manifest(dir.path(), half);
  CHECK_THROWS_WITH(load(dir.path(), policy), Contains("lacks"));
}

TEST_CASE("an exported checkpoint is the Hugging Face directory of the model") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const test::TemporaryDirectory dir, saved;
  const auto policy = stepped_runner(1, dtype);
  test::save_checkpoint(dir.path() / "step-000001", policy, manifest_of(1), 3);
  rl::export_checkpoint(dir.path() / "step-000001", dir.path() / "out");
  engine::save_decoder(policy.decoder(), saved.path(), dtype);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(saved.path())) {
    CHECK(test::read_file(entry.path()) ==
          test::read_file(dir.path() / "out" / entry.path().filename()));
    ++files;
  }
  CHECK(files == 3);
  CHECK_THROWS_WITH(rl::export_checkpoint(dir.path() / "step-000001", dir.path() / "out"),
                    Contains("exists"));
  fs::resize_file(dir.path() / "step-000001" / rl::part_name(2, 3), 100);
  CHECK_THROWS_WITH(rl::export_checkpoint(dir.path() / "step-000001", dir.path() / "other"),
                    Contains("part-00002"));
  CHECK_FALSE(fs::exists(dir.path() / "other"));
}

TEST_CASE("an exported checkpoint has the layers that predict further tokens of the first model") {
  engine::ModelConfig config = test::hybrid_config(/*experts=*/false);
  config.on_disk.further = {1, "mtp.", {{"mtp_num_hidden_layers", "1"}}};
  const test::TemporaryDirectory began, dir;
  engine::save_decoder(test::random_decoder(config, at::kFloat, 1), began.path(), at::kFloat);
  std::vector<engine::TensorToWrite> tensors;
  const engine::SafetensorsFile file(began.path() / "model.safetensors");
  for (std::size_t i = 0; i < file.entries().size(); ++i) {
    tensors.push_back({file.entries()[i].name, file.tensor(i).clone(), at::kFloat});
  }
  const at::Tensor further = at::randn({16, 32});
  tensors.push_back({"mtp.fc.weight", further, at::kBFloat16});
  engine::write_safetensors(began.path() / "model.safetensors", tensors);
  const engine::ModelRunner policy(
      std::make_unique<engine::LanguageModel>(
          std::make_unique<engine::Decoder>(test::random_decoder(config, at::kFloat, /*seed=*/2))),
      sp::single_rank_groups(), engine::AdamWOptions{});
  const fs::path checkpoint = dir.path() / "step-000001";
  test::save_checkpoint(checkpoint, policy, manifest_of(1), 2);
  rl::write_model_description(checkpoint, policy.model(), began.path());
  rl::export_checkpoint(checkpoint, dir.path() / "out");
  const engine::WeightFiles files(dir.path() / "out");
  CHECK(files.read("mtp.fc.weight").equal(further.to(at::kBFloat16)));
  CHECK(engine::load_model_config(dir.path() / "out").on_disk.further == config.on_disk.further);
  fs::remove(began.path() / "model.safetensors");
  CHECK_THROWS_WITH(rl::export_checkpoint(checkpoint, dir.path() / "other"),
                    Contains("predict further tokens") && Contains(began.path().string()));
}

TEST_CASE("the newest complete checkpoints are kept and, if asked for, the best") {
  const test::TemporaryDirectory dir;
  const auto policy = make_runner(1);
  CHECK_FALSE(rl::latest_checkpoint(dir.path()).has_value());
  const auto save = [&](int64_t step, std::optional<double> loss) {
    auto manifest = manifest_of(step);
    if (loss) {
      manifest.evaluation = {"eval_loss", *loss};
    }
    test::save_checkpoint(rl::checkpoint_path(dir.path(), step), policy, manifest);
  };
  save(1, 3.0);
  save(2, 1.0);
  save(3, 2.0);
  save(4, std::nullopt);
  fs::create_directories(rl::checkpoint_path(dir.path(), 9));  // never completed
  fs::create_directories(dir.path() / "checkpoints/step-000008.tmp-1");
  CHECK(rl::latest_checkpoint(dir.path()) == rl::checkpoint_path(dir.path(), 4));
  CHECK(rl::best_checkpoint(dir.path(), "eval_loss")->dir == rl::checkpoint_path(dir.path(), 2));
  // Values of another metric do not compare.
  CHECK_FALSE(rl::best_checkpoint(dir.path(), "eval/hard/loss").has_value());
  const auto has = [&](int64_t step) { return fs::exists(rl::checkpoint_path(dir.path(), step)); };
  rl::prune_checkpoints(dir.path(), 0, "eval_loss");  // 0 keeps all
  CHECK(has(1));
  rl::prune_checkpoints(dir.path(), 1, "eval_loss");
  CHECK_FALSE(has(1));
  CHECK(has(2));
  CHECK_FALSE(has(3));
  CHECK(has(4));
  rl::prune_checkpoints(dir.path(), 1, "");
  CHECK_FALSE(has(2));
  CHECK(has(4));
  rl::recover_checkpoints(dir.path());
  CHECK_FALSE(fs::exists(dir.path() / "checkpoints/step-000008.tmp-1"));
}

// What is left where a filesystem cannot exchange two directories in one step.
TEST_CASE("a replacement that was interrupted is undone, and what it left is removed") {
  const test::TemporaryDirectory dir;
  const auto policy = make_runner(1);
  for (const int64_t step : {2, 3}) {
    test::save_checkpoint(rl::checkpoint_path(dir.path(), step), policy, manifest_of(step));
  }
  const fs::path checkpoints = dir.path() / "checkpoints";
  fs::copy(checkpoints / "step-000002", checkpoints / "step-000002.old-7");  // complete: of no use
  fs::rename(checkpoints / "step-000003", checkpoints / "step-000003.old-7");
  fs::create_directories(dir.path() / "checkpoint-final.old-7");
  fs::create_directories(dir.path() / "checkpoint-final.tmp-7");
  rl::write_final_state(dir.path() / "checkpoint-final.old-7", {3, 3, 3, 7, "run"});
  rl::recover_checkpoints(dir.path());
  CHECK(rl::latest_checkpoint(dir.path()) == rl::checkpoint_path(dir.path(), 3));
  CHECK(rl::final_step(dir.path()) == 3);
  CHECK_FALSE(fs::exists(dir.path() / "checkpoint-final.tmp-7"));
  std::size_t left = 0;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    left += entry.exists() ? 1 : 0;
  }
  CHECK(left == 2);
}

TEST_CASE("steps go on while a rank writes slowly, and the checkpoint appears when all are done") {
  const test::TemporaryDirectory dir;
  const fs::path target = rl::checkpoint_path(dir.path(), 1);
  Gate gate;
  test::run_ranks({1, 1, 3}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto world = comms.control(sp::axes::kLoss);
    const auto policy = stepped_runner(1);
    rl::BackgroundSave save(world, std::chrono::milliseconds(100), [&](int64_t) {
      if (mesh.rank() == 1) {
        gate.pass();
      }
    });
    const auto step_end = [&] {
      const auto status = save.status();
      at::Tensor word = at::tensor({status.working, status.failed}, at::kLong);
      world->all_reduce_max(word, "step end");
      return save.advance({word[0].item<int64_t>(), word[1].item<int64_t>()});
    };
    const auto before = policy.state_slices()[0].values.clone();
    rl::BackgroundSave::Request request;
    request.dir = target;
    request.manifest = manifest_of(1);
    request.slices = engine::share_of(test::named_slices("policy", policy), mesh.rank(), 3);
    save.start(std::move(request), 42);
    for (engine::NamedSlice& slice : policy.state_slices()) {
      slice.values.zero_();  // trained on
    }
    for (int step = 0; step < 20; ++step) {
      CHECK_FALSE(step_end());
      CHECK_FALSE(fs::exists(target));
    }
    if (mesh.rank() == 0) {
      gate.open();
    }
    int steps = 0;
    while (!step_end()) {
      REQUIRE(++steps < 10000);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(save.is_idle());
    CHECK(rl::latest_checkpoint(dir.path()) == target);
    const auto restored = make_runner(9);
    load(target, restored);
    CHECK(at::equal(restored.state_slices()[0].values, before));
    CHECK(save.figures().waiting == 0);
  });
}

TEST_CASE("a rank that cannot write its part ends the run on all ranks at the next step") {
  const test::TemporaryDirectory dir;
  std::vector<std::string> errors(3);
  const bool waits = GENERATE(false, true);
  test::run_ranks({1, 1, 3}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const auto world = comms.control(sp::axes::kLoss);
    rl::BackgroundSave save(world, std::chrono::milliseconds(100), [&](int64_t step) {
      if (mesh.rank() > 0) {
        throw std::runtime_error("disk of step " + std::to_string(step));
      }
    });
    rl::BackgroundSave::Request request;
    request.dir = rl::checkpoint_path(dir.path(), 1);
    request.manifest = manifest_of(1);
    save.start(std::move(request), 42);
    try {
      for (;;) {
        if (waits) {
          save.finish();
        }
        const auto status = save.status();
        at::Tensor word = at::tensor({status.working, status.failed}, at::kLong);
        world->all_reduce_max(word, "step end");
        save.advance({word[0].item<int64_t>(), word[1].item<int64_t>()});
      }
    } catch (const std::runtime_error& error) {
      errors[mesh.rank()] = error.what();
    }
  });
  // On a busy machine the failure of rank 2 can be known a step before that of rank 1.
  const std::vector<std::string> rank_1{"rank 1 has failed", "disk of step 1", "rank 1 has failed"};
  const std::vector<std::string> rank_2{"rank 2 has failed", "rank 2 has failed", "disk of step 1"};
  CHECK((errors == rank_1 || (!waits && errors == rank_2)));
  CHECK_FALSE(rl::latest_checkpoint(dir.path()).has_value());
}
