#include "engine/runner/pipeline_run.h"

#include <ATen/ATen.h>

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace ringside::engine {
namespace {

using sp::PassKind;
using sp::StageRun;
using sp::StageTransfer;

// Sends to a rank in one direction that need not have ended. More would keep more buffers.
constexpr std::size_t kSendsUnderWay = 2;

// What a run of `to_stage` takes: hidden states from the stage before it, or their gradient from
// the stage behind it.
struct Content {
  int64_t from_stage = 0;
  int64_t to_stage = 0;
  int64_t input = 0;
  auto operator<=>(const Content&) const = default;
};

Content content_of(const StageTransfer& transfer) {
  return {transfer.from_stage, transfer.to_stage, transfer.input};
}

class Run {
 public:
  Run(const sp::PipelineShape& shape, sp::Communicator& line, StageWork& work)
      : shape_(shape), line_(line), work_(work) {}

  // Executes the events in order, adjacent transfers in one call.
  void execute(std::span<const sp::PipelineEvent> events) {
    std::vector<StageTransfer> adjacent;
    for (const sp::PipelineEvent& event : events) {
      if (const auto* transfer = std::get_if<StageTransfer>(&event)) {
        adjacent.push_back(*transfer);
        continue;
      }
      start(std::exchange(adjacent, {}));
      run(std::get<StageRun>(event));
    }
    start(adjacent);
    for (auto& [direction, sends] : sends_) {
      for (const auto& send : sends) {
        send->wait();
      }
    }
    TORCH_CHECK(made_.empty() && arrived_.empty() && arriving_.empty(), "pipeline: the plan sends ",
                made_.size() + arrived_.size() + arriving_.size(), " messages to no run");
  }

 private:
  bool is_mine(int64_t stage) const { return shape_.rank_of(stage) == line_.rank(); }

  void start(const std::vector<StageTransfer>& transfers) {
    std::vector<sp::PointToPoint> ends;
    for (const StageTransfer& transfer : transfers) {
      const bool sends = is_mine(transfer.from_stage);
      at::Tensor content = sends ? take_made(content_of(transfer)) : work_.message(transfer.input);
      ends.push_back({sends ? sp::PointToPoint::Kind::kSend : sp::PointToPoint::Kind::kReceive,
                      std::move(content),
                      shape_.rank_of(sends ? transfer.to_stage : transfer.from_stage)});
    }
    auto started = line_.start_transfers(ends, kPipelineTag);
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const Content content = content_of(transfers[i]);
      if (ends[i].kind == sp::PointToPoint::Kind::kReceive) {
        arriving_.emplace(content, Arriving{ends[i].tensor, std::move(started[i])});
        continue;
      }
      auto& sends = sends_[{ends[i].peer, content.to_stage > content.from_stage}];
      sends.push_back(std::move(started[i]));
      if (sends.size() > kSendsUnderWay) {
        sends.front()->wait();
        sends.pop_front();
      }
    }
  }

  // What a run has made for a transfer.
  at::Tensor take_made(const Content& content) {
    const auto made = made_.extract(content);
    TORCH_CHECK(made, "pipeline: the plan sends what stage ", content.from_stage,
                " makes of input ", content.input, ", which it has not run");
    return made.mapped();
  }

  // What a run needs from another one.
  at::Tensor take(const Content& content) {
    if (const auto here = arrived_.extract(content)) {
      return here.mapped();
    }
    auto coming = arriving_.extract(content);
    TORCH_CHECK(coming, "pipeline: stage ", content.to_stage, " needs what stage ",
                content.from_stage, " makes of input ", content.input,
                ", but the plan has not sent it");
    coming.mapped().transfer->wait();
    return coming.mapped().tensor;
  }

  // Keeps what a run has made for a run of this rank or for a transfer.
  void keep(const Content& content, at::Tensor made) {
    (is_mine(content.to_stage) ? arrived_ : made_).emplace(content, std::move(made));
  }

  void run(const StageRun& run) {
    const int64_t stage = run.stage, input = run.input, last = shape_.stages() - 1;
    if (run.kind == PassKind::kForward) {
      const at::Tensor received = stage > 0 ? take({stage - 1, stage, input}) : at::Tensor();
      at::Tensor made = work_.forward(stage, input, received);
      if (stage < last) {
        keep({stage, stage + 1, input}, std::move(made));
      }
      return;
    }
    if (run.kind == PassKind::kWeightGradient) {
      work_.weight_gradient(stage, input);
      return;
    }
    const at::Tensor gradient = stage < last ? take({stage + 1, stage, input}) : at::Tensor();
    at::Tensor made = run.kind == PassKind::kBackward
                          ? work_.backward(stage, input, gradient)
                          : work_.input_gradient(stage, input, gradient);
    if (stage > 0) {
      keep({stage, stage - 1, input}, std::move(made));
    }
  }

  struct Arriving {
    at::Tensor tensor;
    std::unique_ptr<sp::Transfer> transfer;
  };

  const sp::PipelineShape& shape_;
  sp::Communicator& line_;
  StageWork& work_;
  std::map<Content, at::Tensor> made_;     // to be sent
  std::map<Content, at::Tensor> arrived_;  // from another stage of this rank
  std::map<Content, Arriving> arriving_;
  // By receiver and direction; true: of hidden states.
  std::map<std::pair<int64_t, bool>, std::deque<std::unique_ptr<sp::Transfer>>> sends_;
};

}  // namespace

void run_pipeline(const sp::PipelinePlan& plan, const sp::PipelineShape& shape,
                  sp::Communicator& line, StageWork& work) {
  TORCH_CHECK(plan.ranks() == line.size(), "pipeline: a plan for ", plan.ranks(), " ranks on ",
              line.size());
  Run(shape, line, work).execute(plan.events(line.rank()));
}

}  // namespace ringside::engine
