#include "rollout_bridge/weights/wire_fetcher.h"

namespace ringside::bridge {
namespace {

constexpr std::size_t kHeaderSlack = 64 * 1024;

}  // namespace

WireFetcher::WireFetcher(zmq::context_t& context, Options options)
    : context_(context), options_(std::move(options)) {}

bool WireFetcher::begin(const WeightSession& session, const OfferBody&, const Manifest&) {
  session_ = session;
  if (!socket_) {
    socket_ = connect_dealer(context_, session_.address, "",
                             {.max_frame_bytes = options_.limits.max_chunk_bytes + kHeaderSlack},
                             options_.backoff_max, options_.curve ? &*options_.curve : nullptr);
  }
  return true;
}

std::optional<zmq::pollitem_t> WireFetcher::pollitem() {
  if (!socket_) {
    return std::nullopt;
  }
  const auto events = static_cast<short>(full_ ? ZMQ_POLLIN | ZMQ_POLLOUT : ZMQ_POLLIN);
  return zmq::pollitem_t{socket_->handle(), 0, events, 0};
}

// Takes one message, then requests more at once, so that the network does not idle.
Result<FetchState> WireFetcher::fetch(WeightReceiver& receiver,
                                      WeightReceiver::Clock::time_point now) {
  const bool received = receive(*socket_, false, options_.limits, incoming_);
  if (received) {
    const auto answer = incoming_.parse(options_.limits);
    if (Status s = accept_answer(receiver, answer, session_.header.trainer_term); !s) {
      return s.error();
    }
  }
  request(receiver, now);
  return received ? FetchState::kMoved : FetchState::kWaiting;
}

// Keeps the receiver's window full.
void WireFetcher::request(WeightReceiver& receiver, WeightReceiver::Clock::time_point now) {
  full_ = false;
  for (const ChunkBody& chunk : receiver.requests(now)) {
    const Payload payload = make_payload(MessageType::kChunkRequest, chunk);
    if (send(*socket_, nullptr, pack_header(session_.header, payload), payload) !=
        SendResult::kSent) {
      receiver.unsent(chunk);
      full_ = true;
    }
  }
}

Status accept_answer(WeightReceiver& receiver, const Result<Message>& answer,
                     int64_t trainer_term) {
  if (!answer) {
    return Success{};
  }
  const Message& message = answer.value();
  if (message.header().type == MessageType::kError) {
    const auto body = message.body<ErrorBody>();
    // The answer may be to a request for an earlier version.
    const bool gone = body && reason_from_name(body.value().reason) == Reason::kGone &&
                      body.value().version == receiver.manifest().version;
    return gone ? Status(Error{Reason::kGone, "gone"}) : Status(Success{});
  }
  const auto body = message.body<ChunkBody>();
  const int frame = message.find("data");
  if (message.header().type != MessageType::kChunk || !body || frame < 0 ||
      message.header().trainer_term != trainer_term) {
    return Success{};
  }
  return receiver.accept(body.value(), message.frame(frame));
}

}  // namespace ringside::bridge
