// Reactors over the callback API. Each reads or writes lent memory only between Start and the
// moment it enters its outcome; every length from the daemon is checked before a byte is copied.
#include "client/src/grpc_calls.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "client/src/status_map.h"

namespace crumb::client {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;

bool MeansLost(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE || SessionIsLost(status);
}

// WHY: gRPC ends a call at its deadline by itself and answers for the daemon. Taken for the
// daemon's word, that closed the circuit whenever it was seen before this side's own look at the
// clock.
bool EndedHere(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

BlockResult CheckedResult(int number) {
  if (number < 0 || number >= kBlockResultCount) return BlockResult::kInvalid;
  return static_cast<BlockResult>(number);
}

template <typename Item>
WireBlockReply ToReply(const Item& item) {
  WireBlockReply reply;
  reply.result = CheckedResult(item.result());
  reply.tier = static_cast<crumb::Tier>(item.tier() & 0x7);
  reply.precision = static_cast<crumb::Precision>(item.precision() & 0x3);
  return reply;
}

void FillName(const Digest& digest, uint32_t part, v1::BlockName* out) {
  out->set_digest(digest.bytes.data(), digest.bytes.size());
  out->set_part(part);
}

class GetCall final : public grpc::ClientReadReactor<v1::GetChunk> {
 public:
  GetCall(const CallEnv& env, std::shared_ptr<const PlaneRequest> request, uint32_t block)
      : queue_(env.queue), request_(std::move(request)), block_(block) {
    const WireBlock& wire = request_->blocks[block_];
    context_.set_deadline(env.deadline);
    env.channel->Authorize(&context_);
    message_.set_session(env.session);
    message_.set_layout_handle(request_->layout_handle);
    FillName(wire.digest, wire.part, message_.mutable_block());
    message_.set_form(static_cast<v1::Form>(request_->form));
    // A waiting get ends with its wait, as it does over UCX.
    message_.set_deadline_ms(request_->wait_ms != 0 ? request_->wait_ms : request_->deadline_ms);
    message_.set_wait_ms(request_->wait_ms);
    queue_->Enter(&context_, request_->id);
    env.stub->async()->Get(&context_, &message_, this);
    StartRead(&chunk_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (!Consume()) {
      bad_ = true;
      context_.TryCancel();
      return;
    }
    chunk_.Clear();
    StartRead(&chunk_);
  }

  void OnDone(const grpc::Status& status) override {
    CallDone done;
    done.request = request_->id;
    done.block = block_;
    done.lost = !bad_ && MeansLost(status);
    done.unheard = !bad_ && EndedHere(status);
    done.note = bad_ ? "the stream broke the protocol" : status.error_message();
    done.replies.push_back(Outcome(status));
    const std::shared_ptr<CallQueue> queue = queue_;
    queue->Retire(&context_);
    delete this;
    queue->Leave(std::move(done));
  }

 private:
  ValuePlace Place(uint64_t bytes) const { return request_->PlaceOf(block_, bytes); }

  // False: the stream breaks its own rules.
  bool Consume() {
    if (!seen_header_) {
      if (!chunk_.has_header()) return false;
      seen_header_ = true;
      header_ = chunk_.header();
      reply_ = ToReply(header_);
      if (reply_.result == BlockResult::kOk && !PrepareTarget()) return false;
    } else if (chunk_.has_header()) {
      return false;
    }
    const std::string& data = chunk_.data();
    if (data.empty()) return true;
    if (reply_.result != BlockResult::kOk) return false;
    if (data.size() > header_.value_bytes() - received_) return false;
    std::memcpy(target_.data() + received_, data.data(), data.size());
    received_ += data.size();
    return true;
  }

  bool PrepareTarget() {
    const uint64_t bytes = header_.value_bytes();
    if (bytes > kRawPageBytesMax * 2 || !request_->memory->Fits(Place(bytes))) return false;
    if (request_->memory->contiguous()) {
      target_ = request_->memory->View(Place(bytes));
    } else {
      scratch_.resize(bytes);
      target_ = {reinterpret_cast<uint8_t*>(scratch_.data()), scratch_.size()};
    }
    return true;
  }

  WireBlockReply Outcome(const grpc::Status& status) {
    WireBlockReply failed;
    failed.result = bad_ ? BlockResult::kCorrupt : ResultOf(status);
    if (bad_ || !status.ok()) return failed;
    if (!seen_header_) {
      failed.result = BlockResult::kCorrupt;
      return failed;
    }
    if (reply_.result != BlockResult::kOk) return reply_;
    if (received_ != header_.value_bytes()) {
      failed.result = BlockResult::kCorrupt;
      return failed;
    }
    if (!request_->memory->contiguous())
      request_->memory->Scatter(Place(received_), target_, &segments_);
    reply_.value_bytes = static_cast<uint32_t>(received_);
    reply_.lossy_depth = static_cast<uint8_t>(std::min<uint32_t>(header_.lossy_depth(), 255));
    reply_.checksum = header_.checksum();
    return reply_;
  }

  std::shared_ptr<CallQueue> queue_;
  std::shared_ptr<const PlaneRequest> request_;
  uint32_t block_;
  grpc::ClientContext context_;
  v1::GetRequest message_;
  v1::GetChunk chunk_;
  v1::GetHeader header_;
  WireBlockReply reply_;
  MutableBytes target_;
  std::string scratch_;
  LentMemory::Scratch segments_;
  uint64_t received_ = 0;
  bool seen_header_ = false;
  bool bad_ = false;
};

class PutCall final : public grpc::ClientWriteReactor<v1::PutChunk> {
 public:
  PutCall(const CallEnv& env, std::shared_ptr<const PlaneRequest> request, uint32_t block)
      : queue_(env.queue), request_(std::move(request)), block_(block) {
    context_.set_deadline(env.deadline);
    env.channel->Authorize(&context_);
    const ValuePlace place = request_->PlaceOf(block_, request_->raw_bytes[block_]);
    if (request_->memory->contiguous()) {
      value_ = request_->memory->View(place);
    } else {
      scratch_.resize(place.bytes);
      MutableBytes out(reinterpret_cast<uint8_t*>(scratch_.data()), scratch_.size());
      LentMemory::Scratch segments;
      request_->memory->Gather(place, out, &segments);
      value_ = out;
    }
    FillHeader(env.session, chunk_.mutable_header());
    queue_->Enter(&context_, request_->id);
    env.stub->async()->Put(&context_, &answer_, this);
    WriteNext();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    // Not ok: the daemon ended the call early; OnDone brings its answer.
    if (!ok || sent_ == value_.size()) return;
    chunk_.Clear();
    WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    CallDone done;
    done.request = request_->id;
    done.block = block_;
    done.lost = MeansLost(status);
    done.unheard = EndedHere(status);
    WireBlockReply reply = status.ok() ? ToReply(answer_) : WireBlockReply();
    if (!status.ok()) reply.result = ResultOf(status);
    done.note = status.ok() ? answer_.message() : status.error_message();
    done.replies.push_back(reply);
    const std::shared_ptr<CallQueue> queue = queue_;
    queue->Retire(&context_);
    delete this;
    queue->Leave(std::move(done));
  }

 private:
  void FillHeader(uint64_t session, v1::PutHeader* header) const {
    const WireBlock& wire = request_->blocks[block_];
    header->set_session(session);
    header->set_layout_handle(request_->layout_handle);
    FillName(wire.digest, wire.part, header->mutable_block());
    if (wire.parent != Digest{}) FillName(wire.parent, wire.part, header->mutable_parent());
    if (wire.token_start != 0xffffffffu) header->set_token_start(wire.token_start);
    header->set_token_count(wire.token_count);
    header->set_provenance(static_cast<v1::ProvenanceKind>(wire.provenance));
    header->set_form(static_cast<v1::Form>(request_->form));
    header->set_value_bytes(value_.size());
    header->set_durable((request_->flags & kWireFlagDurable) != 0);
    header->set_deadline_ms(request_->deadline_ms);
  }

  void WriteNext() {
    const uint64_t bytes = std::min<uint64_t>(kChunkBytes, value_.size() - sent_);
    chunk_.set_data(value_.data() + sent_, bytes);
    sent_ += bytes;
    if (sent_ == value_.size()) {
      StartWriteLast(&chunk_, grpc::WriteOptions());
    } else {
      StartWrite(&chunk_);
    }
  }

  std::shared_ptr<CallQueue> queue_;
  std::shared_ptr<const PlaneRequest> request_;
  uint32_t block_;
  grpc::ClientContext context_;
  v1::PutChunk chunk_;
  v1::PutReply answer_;
  std::string scratch_;
  Bytes value_;
  uint64_t sent_ = 0;
};

// One unary call that answers every block.
template <typename Request, typename Reply>
struct KeysCall {
  std::shared_ptr<CallQueue> queue;
  std::shared_ptr<const PlaneRequest> request;
  grpc::ClientContext context;
  Request message;
  Reply answer;

  KeysCall(const CallEnv& env, std::shared_ptr<const PlaneRequest> for_request)
      : queue(env.queue), request(std::move(for_request)) {
    context.set_deadline(env.deadline);
    env.channel->Authorize(&context);
    message.set_session(env.session);
    message.set_layout_handle(request->layout_handle);
    for (const WireBlock& block : request->blocks) {
      FillName(block.digest, block.part, message.add_blocks());
    }
  }

  // Callback of the call; ends its life.
  void Finish(const grpc::Status& status, std::vector<WireBlockReply> replies) {
    CallDone done;
    done.request = request->id;
    done.replies = std::move(replies);
    if (!status.ok()) {
      done.replies = FailedReplies(request->blocks.size(), ResultOf(status));
      done.lost = MeansLost(status);
      done.unheard = EndedHere(status);
    }
    const std::shared_ptr<CallQueue> to = queue;
    to->Retire(&context);
    delete this;
    to->Leave(std::move(done));
  }
};

std::vector<WireBlockReply> ItemReplies(
    const google::protobuf::RepeatedPtrField<v1::LookupItem>& items) {
  std::vector<WireBlockReply> replies;
  for (const v1::LookupItem& item : items) {
    replies.push_back(ToReply(item));
    replies.back().lossy_depth = static_cast<uint8_t>(std::min<uint32_t>(item.lossy_depth(), 255));
    replies.back().checksum = item.raw_tail_tokens();
  }
  return replies;
}

void StartLookup(const CallEnv& env, std::shared_ptr<const PlaneRequest> request) {
  auto* call = new KeysCall<v1::LookupRequest, v1::LookupReply>(env, std::move(request));
  call->message.set_stop_at_gap((call->request->flags & kWireFlagStopAtGap) != 0);
  call->queue->Enter(&call->context, call->request->id);
  env.stub->async()->Lookup(&call->context, &call->message, &call->answer,
                            [call](const grpc::Status& status) {
                              call->Finish(status, ItemReplies(call->answer.items()));
                            });
}

void StartPrefetch(const CallEnv& env, std::shared_ptr<const PlaneRequest> request) {
  auto* call = new KeysCall<v1::PrefetchRequest, v1::PrefetchReply>(env, std::move(request));
  call->message.set_deadline_ms(call->request->deadline_ms);
  call->queue->Enter(&call->context, call->request->id);
  env.stub->async()->Prefetch(&call->context, &call->message, &call->answer,
                              [call](const grpc::Status& status) {
                                call->Finish(status, ItemReplies(call->answer.items()));
                              });
}

void StartDelete(const CallEnv& env, std::shared_ptr<const PlaneRequest> request) {
  auto* call = new KeysCall<v1::DeleteRequest, v1::DeleteReply>(env, std::move(request));
  call->message.set_deadline_ms(call->request->deadline_ms);
  call->queue->Enter(&call->context, call->request->id);
  env.stub->async()->Delete(&call->context, &call->message, &call->answer,
                            [call](const grpc::Status& status) {
                              std::vector<WireBlockReply> replies;
                              for (int result : call->answer.results()) {
                                replies.emplace_back().result = CheckedResult(result);
                              }
                              call->Finish(status, std::move(replies));
                            });
}

}  // namespace

CallQueue::CallQueue() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { CRUMB_CHECK(fd_ >= 0); }
CallQueue::~CallQueue() { ::close(fd_); }

void CallQueue::Enter(grpc::ClientContext* context, uint64_t request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  live_.emplace(context, request);
  ++active_;
}

void CallQueue::Retire(grpc::ClientContext* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  live_.erase(context);
}

void CallQueue::Leave(CallDone done) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Push(std::move(done));
  if (--active_ == 0) idle_.notify_all();
}

void CallQueue::Post(CallDone done) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Push(std::move(done));
}

void CallQueue::Cancel(uint64_t request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [context, of] : live_) {
    if (of == request) context->TryCancel();
  }
}

void CallQueue::Push(CallDone done) {
  const bool was_empty = done_.empty();
  done_.push_back(std::move(done));
  if (!was_empty) return;
  const uint64_t one = 1;
  CRUMB_CHECK(::write(fd_, &one, sizeof(one)) == sizeof(one));
}

void CallQueue::Take(std::vector<CallDone>* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (done_.empty()) return;
  uint64_t count = 0;
  CRUMB_CHECK(::read(fd_, &count, sizeof(count)) == sizeof(count));
  out->swap(done_);
  done_.clear();
}

bool CallQueue::empty() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_.empty();
}

size_t CallQueue::active() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return active_;
}

void CallQueue::CancelAllAndWait() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (const auto& [context, of] : live_) context->TryCancel();
  idle_.wait(lock, [this] { return active_ == 0; });
}

std::vector<WireBlockReply> FailedReplies(size_t count, BlockResult result) {
  WireBlockReply reply;
  reply.result = result;
  return std::vector<WireBlockReply>(count, reply);
}

void StartPutCall(const CallEnv& env, std::shared_ptr<const PlaneRequest> request, uint32_t block) {
  new PutCall(env, std::move(request), block);  // deletes itself in OnDone
}

void StartGetCall(const CallEnv& env, std::shared_ptr<const PlaneRequest> request, uint32_t block) {
  new GetCall(env, std::move(request), block);  // deletes itself in OnDone
}

void StartKeysCall(const CallEnv& env, std::shared_ptr<const PlaneRequest> request) {
  if (request->type == WireType::kLookup) {
    StartLookup(env, std::move(request));
  } else if (request->type == WireType::kPrefetch) {
    StartPrefetch(env, std::move(request));
  } else {
    StartDelete(env, std::move(request));
  }
}

}  // namespace crumb::client
