// Weights on their way from the device to the host while training goes on.
#include <ATen/ATen.h>

#include "engine/device/download.h"
#include "engine/device/side_stream.h"
#include "engine/device/upload.h"
#include "engine/optim/adamw.h"
#include "rl/publish/weight_snapshot.h"
#include "rollout_bridge/weights/snapshot.h"
#include "tests/support/catch.h"
#include "tests/support/standin/standin.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

engine::Decoder decoder_on(c10::Device device) {
  engine::Decoder decoder(test::tiny_config(), engine::ComputeContext(at::kFloat, device));
  decoder.init_random(5, 0.2);
  return decoder;
}

void train_once(engine::Decoder& decoder, engine::AdamW& optimizer) {
  for (engine::ParamUnit* unit : decoder.units()) {
    unit->grad().fill_(0.5);
  }
  optimizer.step(1e-2);
}

}  // namespace

TEST_CASE("weights are copied from the device while the next step is under way") {
  const auto expected = rl::snapshot_weights(decoder_on(at::kCPU), at::kBFloat16, "run", 1, 1);
  standin::Scope scope;
  auto decoder = decoder_on(standin::device());
  engine::AdamW optimizer(decoder.units(), {});
  const auto stream = engine::make_side_stream(standin::device());
  bridge::SharedBlocks blocks;
  for (const bool shared : {false, true}) {
    CAPTURE(shared);
    const auto block =
        shared ? blocks.take(engine::WeightView(decoder).bytes(at::kBFloat16)) : nullptr;
    scope.reset_counts();
    std::optional<rl::WeightCopy> copy;
    engine::export_weights(decoder, [&](engine::UnitExport& units) {
      copy.emplace(units, at::kBFloat16, block, stream);
    });
    if (!shared) {
      train_once(decoder, optimizer);  // must wait for the copy, on the device
    }
    CHECK(standin::Counts::sum(scope.counts().host_syncs) == 0);
    auto buffers = copy->take();
    if (!shared) {
      CHECK(bridge::make_snapshot("run", 1, 1, buffers)->manifest.root_hash ==
            expected->manifest.root_hash);
    } else {
      CHECK(buffers.front().data.bytes.data() == block->bytes().data());
      CHECK(bridge::root_hash_of(buffers) ==
            bridge::root_hash_of(rl::copy_weights(decoder, at::kBFloat16)));
    }
  }
  CHECK(scope.text() == "");
}

TEST_CASE("a block of another size than the weights is refused before anything is copied") {
  standin::Scope scope;
  const auto decoder = decoder_on(standin::device());
  const auto stream = engine::make_side_stream(standin::device());
  const std::size_t bytes = engine::WeightView(decoder).bytes(at::kBFloat16);
  bridge::SharedBlocks blocks;
  for (const std::size_t size : {bytes - 2, bytes + 2}) {
    CAPTURE(size);
    const auto copy = [&](engine::UnitExport& units) {
      rl::WeightCopy(units, at::kBFloat16, blocks.take(size), stream);
    };
    CHECK_THROWS_WITH(engine::export_weights(decoder, copy),
                      Catch::Contains("for a block of " + std::to_string(size)));
  }
}

TEST_CASE("planted: an optimizer step that does not wait for the copy of its weights is reported") {
  standin::Scope scope;
  auto decoder = decoder_on(standin::device());
  engine::AdamW optimizer(decoder.units(), {});
  engine::Download download(engine::make_side_stream(standin::device()));
  const at::Tensor& flat = decoder.units()[1]->flat();
  at::Tensor host = at::empty({flat.numel()}, at::TensorOptions().pinned_memory(true));
  download.add(flat.detach(), host);
  download.finish();  // the unit is not told
  train_once(decoder, optimizer);
  CHECK_THAT(scope.text(), Catch::Contains("_fused_adamw_"));
}

TEST_CASE("inputs go up as one block, on a stream that the computation waits for") {
  standin::Scope scope;
  const auto stream = engine::make_side_stream(standin::device());
  const std::vector<at::Tensor> host{at::arange(5), at::Tensor(), at::ones({3}, at::kDouble),
                                     at::zeros({0}, at::kLong), at::full({2, 2}, 7, at::kInt)};
  engine::Upload upload(host, standin::device(), stream);
  const auto here = upload.take();
  REQUIRE(here.size() == host.size());
  for (std::size_t i = 0; i < host.size(); ++i) {
    CAPTURE(i);
    REQUIRE(here[i].defined() == host[i].defined());
    if (here[i].defined()) {
      CHECK(here[i].device() == standin::device());
      CHECK(here[i].scalar_type() == host[i].scalar_type());
      CHECK(at::equal((here[i] + 0).cpu(), host[i] + 0));
    }
  }
  CHECK(scope.counts().uploads == 1);
  CHECK(scope.counts().blocking_uploads.empty());
  CHECK(scope.text() == "");
  const std::vector<at::Tensor> strided{at::ones({4, 4}).t()};
  CHECK_THROWS_AS(engine::Upload(strided, standin::device(), stream), c10::Error);
}
