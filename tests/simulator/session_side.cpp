#include "tests/simulator/session_side.h"

#include <algorithm>
#include <stdexcept>

#include "rl/gateway/openai_api.h"
#include "tests/rl/gateway/character_tokenizer.h"
#include "tests/simulator/weights.h"
#include "tests/support/temporary_directory.h"

namespace ringside::simulator {
namespace {

using nlohmann::ordered_json;

constexpr milliseconds kInstallTime{30};

engine::Tokenizer load_characters() {
  const test::TemporaryDirectory folder;
  const auto file = folder.path() / "tokenizer.json";
  test::write_file(file, test::character_tokenizer());
  return engine::Tokenizer::load(file);
}

rl::Config chat_config() {
  rl::Config config;
  config.data.chat_template = rl::ChatTemplate::kChatml;
  return config;
}

}  // namespace

SessionTexts::SessionTexts()
    : tokenizer(load_characters()), chat(rl::ChatFormat(chat_config()), tokenizer) {}

std::string SimSessionModel::install(
    const std::shared_ptr<const bridge::WeightSnapshot>& snapshot) {
  if (!running_.empty()) {
    throw Breach("weights are installed while requests run");
  }
  world_.judge.installed(*snapshot);
  trainer_term_ = snapshot->manifest.trainer_term;
  version_ = snapshot->manifest.version;
  content_ = content_of(*snapshot);
  has_restarted_ = false;
  if (std::exchange(damages_, false)) {
    content_ += 1'000'000;
  }
  busy_ += kInstallTime;
  return root_of(content_);
}

void SimSessionModel::submit(std::vector<std::shared_ptr<rl::WaitingRequest>> requests) {
  for (auto& request : requests) {
    const Span takes = world_.random.between(plan_.sample_time / 2, plan_.sample_time * 2);
    running_.push_back({std::move(request), world_.events.now() + takes});
  }
}

bool SimSessionModel::work() {
  if (has_restarted_ && !running_.empty()) {
    throw std::runtime_error("the server is not the one that weights were loaded into");
  }
  if (running_.empty()) {
    return false;
  }
  std::vector<Running> done;
  if (plan_.with_server) {
    const auto goes_on = [&](const Running& r) { return r.done > world_.events.now(); };
    const auto first = std::stable_partition(running_.begin(), running_.end(), goes_on);
    done.assign(std::make_move_iterator(first), std::make_move_iterator(running_.end()));
    running_.erase(first, running_.end());
  } else {  // the batch keeps the loop until it is done
    done = std::exchange(running_, {});
    busy_ += world_.random.between(plan_.sample_time / 2, plan_.sample_time * 2);
  }
  for (const Running& one : done) {
    answer(*one.request);
  }
  return !done.empty();
}

// A few letters, often the same as before, and the end marker or none.
void SimSessionModel::answer(rl::WaitingRequest& waiting) {
  Random& random = world_.random;
  if (random.chance(plan_.failures)) {
    world_.faults.count("request that cannot be sampled");
    waiting.fail(std::make_exception_ptr(std::runtime_error("out of memory")));
    return;
  }
  GivenAnswer given;
  given.stopped = true;
  const bool few = random.chance(0.3);
  for (int64_t left = random.between(0, few ? 2 : 6); left > 0; --left) {
    given.ids.push_back(few ? 'a' : random.chance(0.2) ? test::kTokenAb : random.between('a', 'e'));
  }
  given.ids.push_back(test::kTokenEnd);
  if (std::ssize(given.ids) > waiting.request().max_tokens) {
    given.ids.resize(static_cast<std::size_t>(waiting.request().max_tokens));
    given.stopped = false;
  }
  for (std::size_t i = 0; i < given.ids.size(); ++i) {
    given.logprobs.push_back(-static_cast<float>(random.between(1, 1 << 20)) / (1 << 18));
  }
  given.version = version_;
  given.trainer_term = trainer_term_;
  given.content = content_;
  judge_.sampled(waiting.request().seed, given);
  waiting.answer(
      {{std::move(given.ids), std::move(given.logprobs), version_, trainer_term_}, given.stopped});
}

std::shared_ptr<rl::Session> SimSessionMaker::session_of(const bridge::GrantedSample& sample) {
  const std::string id = std::to_string(sample.group_id) + "-" +
                         std::to_string(sample.sample_index) + "-" + process_ + "-" +
                         std::to_string(opened_++);
  const rl::SessionLimits limits{.max_turns = plan_.max_turns,
                                 .max_new_tokens = plan_.max_new_tokens,
                                 .max_tokens = 0,
                                 .vocab_size = test::kCharacterTokens};
  auto session = std::make_shared<rl::Session>(id, sample, ordered_json{{"prompt", "q"}}, limits,
                                               world_.random.next(), sampling_of(sample));
  judge_.opened(process_, *session, plan_.max_turns, plan_.timeout, expected_of(sample));
  world_.trace(worker_id_ + ": opens session " + id);
  return session;
}

rl::StatedSampling SimSessionMaker::sampling_of(const bridge::GrantedSample& sample) {
  return world_.recipe ? world_.recipe->job(sample).sampling : rl::StatedSampling{};
}

// By the account of what is true.
rl::StatedSampling SimSessionMaker::expected_of(const bridge::GrantedSample& sample) const {
  return !world_.recipe         ? rl::StatedSampling{}
         : sample.held_out >= 0 ? world_.recipe->judge().held_out_sampling()
                                : world_.recipe->judge().sampling_of(sample.sample_index);
}

bridge::Rollout SimSessionMaker::rollout_of(const rl::Session& session, int64_t version) {
  const bridge::GrantedSample& sample = session.sample();
  bridge::Rollout r;
  if (world_.recipe) {
    r = rl::failed_rollout(worker_id_, world_.recipe->job(sample), {}, version);
  } else {
    r.rollout_id = std::to_string(sample.group_id) + "/" + std::to_string(sample.sample_index) +
                   "/v" + std::to_string(version) + "/" + std::to_string(sample.attempt) + "/" +
                   worker_id_;
    r.attempt = sample.attempt;
    r.group_id = sample.group_id;
    r.group_size = sample.group_size;
    r.sample_index = sample.sample_index;
  }
  session.write(r);
  if (world_.recipe) {
    world_.recipe->judge().made(r, {});
  }
  judge_.made(session, r);
  world_.trace(worker_id_ + ": session " + session.id() + " is a rollout" +
               (r.failure.empty() ? "" : ", failed: " + r.failure));
  return r;
}

void SimSessionMaker::check_harness() {
  if (harness_has_ended_) {
    throw std::runtime_error("the harness has ended");
  }
}

void SimHttp::arrive(ClientRequest request, Respond respond) {
  queue_.emplace_back(std::move(request), std::move(respond));
  serve_queue();
}

void SimHttp::serve_queue() {
  while (!queue_.empty() && has_thread()) {
    auto [request, respond] = std::move(queue_.front());
    queue_.pop_front();
    serve(std::move(request), respond);
  }
}

void SimHttp::serve(ClientRequest request, const Respond& respond) {
  switch (request.route) {
    case Route::kClaim:
      return claim(request, respond);
    case Route::kReward:
      return reward(request, respond);
    case Route::kChat:
    case Route::kText:
      return chat(request, respond);
  }
}

void SimHttp::claim(const ClientRequest& request, const Respond& respond) {
  if (try_claim(respond)) {
    return;
  }
  const seconds wait(request.body.at("wait_s").get<int64_t>());
  claims_.push_back({world_.events.now() + wait, respond});
}

bool SimHttp::try_claim(const Respond& respond) {
  if (gateway_.desk().unclaimed_sessions() == 0) {
    return false;  // without the real time that a wait takes
  }
  const auto session = gateway_.desk().claim(milliseconds(0));
  if (session == nullptr) {
    return false;
  }
  judge_.claimed(process_, session->id());
  respond({200, rl::Gateway::claimed(*session)});
  return true;
}

void SimHttp::reward(const ClientRequest& request, const Respond& respond) {
  int status = 200;
  try {
    rl::Gateway::end(*gateway_.desk().find(request.session), request.body);
  } catch (const rl::RequestRefused& refused) {
    status = refused.status();
  }
  judge_.ended(process_, request.session, request.body, status);
  respond({status});
}

void SimHttp::chat(const ClientRequest& request, const Respond& respond) {
  const rl::ModelRequest asked = request.route == Route::kChat
                                     ? rl::read_openai_chat(request.body)
                                     : rl::read_openai_completion(request.body);
  auto chat = std::make_shared<Chat>();
  try {
    chat->session = gateway_.desk().find(request.session);
    chat->pending.emplace(gateway_.begin(chat->session, asked));
    chat->answers = gateway_.desk().submit(chat->pending->requests(), nullptr);
  } catch (const rl::RequestRefused& refused) {
    judge_.refused(process_, request.session, asked.count, refused.status());
    return respond({refused.status()});
  }
  judge_.began(process_, request.session, *chat->pending);
  chat->respond = respond;
  chats_.push_back(std::move(chat));
}

bool SimHttp::Chat::are_sampled() const {
  return std::ranges::all_of(answers, [](const auto& answer) {
    return answer.wait_for(milliseconds(0)) == std::future_status::ready;
  });
}

void SimHttp::after_turn(Span busy) {
  for (const auto& chat : chats_) {
    if (chat->is_due || !chat->are_sampled()) {
      continue;
    }
    chat->is_due = true;
    const Span wakes = busy + world_.random.between(Span(0), Span(milliseconds(20)));
    world_.events.after(wakes, [this, chat, alive = std::weak_ptr(alive_)] {
      if (!alive.expired() && std::ranges::find(chats_, chat) != chats_.end()) {
        std::erase(chats_, chat);
        finish(*chat);
        serve_queue();
      }
    });
  }
  while (!claims_.empty() && try_claim(claims_.front().respond)) {
    claims_.pop_front();
  }
  std::erase_if(claims_, [&](const Claim& claim) {
    const bool is_over = world_.events.now() >= claim.until;
    if (is_over) {
      claim.respond({204});
    }
    return is_over;
  });
  serve_queue();
}

void SimHttp::finish(Chat& chat) {
  const std::vector<rl::TokenRequest>& requests = chat.pending->requests();
  const rl::ModelRequest& asked = chat.pending->asked();
  const std::string& session = chat.session->id();
  try {
    const rl::ModelReplies replies =
        chat.pending->record(rl::SessionDesk::wait(std::move(chat.answers)));
    judge_.answered(session, requests, replies);
    const bool is_chat = !asked.asked.empty();
    chat.respond({200, is_chat ? rl::openai_chat_answer(asked, replies)
                               : rl::openai_completion_answer(asked, replies)});
  } catch (const rl::RequestRefused& refused) {
    if (refused.status() != 410) {
      judge_.failed(session, requests, refused.status());
    }
    chat.respond({refused.status()});
  }
}

void SimHttp::finish_all() {
  for (const auto& chat : std::exchange(chats_, {})) {
    if (!chat->are_sampled()) {
      throw Breach("a request of session " + chat->session->id() +
                   " waits for ever after the end of the run");
    }
    finish(*chat);
  }
  for (const Claim& claim : std::exchange(claims_, {})) {
    claim.respond({410});
  }
}

std::size_t SimHttp::sampling() const {
  std::size_t samples = 0;
  for (const auto& chat : chats_) {
    samples += chat->pending->requests().size();
  }
  return samples;
}

std::optional<bridge::WorkerEvent> WatchedLink::next_event() {
  auto event = link_.next_event();
  if (event && std::holds_alternative<bridge::Connected>(*event)) {
    judge_.connected(process_);
  }
  if (const auto* granted = event ? std::get_if<bridge::Granted>(&*event) : nullptr) {
    judge_.granted(process_, *granted);
  }
  return event;
}

bridge::Status WatchedLink::send(const bridge::Rollout& rollout) {
  const bridge::Status status = link_.send(rollout);
  if (status) {
    judge_.sent(process_, rollout);
  }
  return status;
}

SessionSide::SessionSide(World& world, SessionJudge& judge, SessionTexts& texts,
                         const SessionPlan& plan, bridge::TrainerLink& link,
                         const std::string& worker_id, uint64_t life)
    : judge_(judge),
      plan_(plan),
      process_(worker_id + "." + std::to_string(life)),
      link_(link, judge, process_),
      model_(world, judge, plan),
      maker_(world, judge, plan, worker_id, process_),
      desk_(std::chrono::duration_cast<milliseconds>(plan.timeout),
            [&world] { return world.events.now(); }),
      gateway_(desk_, texts.chat, "none"),
      http_(world, judge, gateway_, process_, plan.threads) {
  const rl::WorkerSettings settings{worker_id, {}, [] { return false; }};
  loop_ = std::make_unique<rl::SessionLoop>(link_, desk_, model_, maker_,
                                            static_cast<std::size_t>(plan.capacity), settings,
                                            [&world] { return world.events.now(); });
}

SessionSide::~SessionSide() { judge_.died(process_); }

milliseconds SessionSide::turn() {
  const milliseconds wait = loop_->turn();
  const Span took = model_.take_busy();
  busy_ += took;
  judge_.turned(process_, desk_, plan_.capacity);
  if (model_.running() > http_.sampling()) {
    throw Breach("the model is given requests that nobody waits for");
  }
  http_.after_turn(took);
  return wait;
}

void SessionSide::leave() {
  loop_.reset();  // closes the desk
  http_.finish_all();
}

}  // namespace ringside::simulator
