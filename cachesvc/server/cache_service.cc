// Handlers of the Cache service.
#include "cachesvc/server/cache_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/server/codecs_call.h"
#include "cachesvc/server/get_call.h"
#include "cachesvc/server/put_call.h"
#include "cachesvc/server/rpc_convert.h"

namespace crumb {
namespace {

constexpr size_t kClientNameBytesMax = 256;
constexpr uint64_t kCallTimeoutUs = 10'000'000;

// A look-up or delete under way: one answer, from the shard.
class NamesCall final : public StreamCall {
 public:
  using Fill = std::function<void(BlockResult, absl::Span<const WireBlockReply>)>;
  NamesCall(RpcContext* context, grpc::ServerUnaryReactor* reactor, Fill fill)
      : context_(context), reactor_(reactor), fill_(std::move(fill)) {
    context_->in_flight.fetch_add(1, std::memory_order_relaxed);
  }
  ~NamesCall() override { context_->in_flight.fetch_sub(1, std::memory_order_relaxed); }

  void OnReplies(BlockResult result, absl::Span<const WireBlockReply> replies) override {
    fill_(result, replies);
    reactor_->Finish(grpc::Status::OK);
    delete this;
  }
  // Instead of OnReplies.
  void Refuse(const grpc::Status& status) {
    reactor_->Finish(status);
    delete this;
  }

 private:
  RpcContext* const context_;
  grpc::ServerUnaryReactor* const reactor_;
  const Fill fill_;
};

absl::StatusOr<PinRequest> PinFrom(const v1::PinRequest& in, const CallTarget& target,
                                   uint64_t ttl_us_max) {
  PinRequest pin{.layout_handle = target.layout->handle,
                 .session = target.session,
                 .digests = {},
                 .ttl_us = uint64_t{in.ttl_ms()} * 1000};
  if (pin.ttl_us > ttl_us_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("ttl_ms: ", in.ttl_ms(), "; at most ", ttl_us_max / 1000));
  }
  CRUMB_ASSIGN(const std::vector<WireBlock> blocks, BlocksFrom(in.blocks(), *target.layout));
  for (const WireBlock& block : blocks) pin.digests.push_back(block.digest);
  return pin;
}

}  // namespace

void CloseSession(RpcContext* context, SessionId session) {
  context->sessions.Remove(session);
  // WHY a second way: the mailbox may be full, and a session must not be lost in it.
  const auto close = [session](const ShardView& view) {
    view.streams.Close(session);
    view.engine.CloseSession(session);
  };
  if (context->shard.Post(close)) return;
  context->control.Post(
      [context, close] { context->shard.Call(close, kCallTimeoutUs).IgnoreError(); });
}

void CloseIdleSessions(RpcContext* context) {
  for (const SessionId session :
       context->sessions.IdleFor(context->config.limits.session_idle_us)) {
    auto connected = std::make_shared<bool>(true);
    const absl::Status asked = context->shard.Call(
        [session, connected](const ShardView& view) {
          *connected = view.engine.PeersOf(session) != 0;
        },
        kCallTimeoutUs);
    if (asked.ok() && !*connected) CloseSession(context, session);
  }
}

grpc::ServerUnaryReactor* CacheService::End(grpc::CallbackServerContext* call,
                                            const absl::Status& status) {
  if (!status.ok()) context_->refused.fetch_add(1, std::memory_order_relaxed);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* CacheService::Busy(grpc::ServerUnaryReactor* reactor) {
  context_->refused.fetch_add(1, std::memory_order_relaxed);
  reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, kBusyMessage});
  return reactor;
}

grpc::ServerUnaryReactor* CacheService::Hello(grpc::CallbackServerContext* call,
                                              const v1::HelloRequest* request,
                                              v1::HelloReply* reply) {
  if (context_->draining.load(std::memory_order_relaxed)) {
    return End(call, absl::UnavailableError(kDrainingMessage));
  }
  if (request->wire_version() != 0 && request->wire_version() != kWireVersion) {
    return End(call, absl::FailedPreconditionError(absl::StrCat(
                         "wire version ", request->wire_version(), ": this daemon speaks ",
                         kWireVersion, "; use a client of version ", context_->version)));
  }
  if (request->client().size() > kClientNameBytesMax) {
    return End(call, absl::InvalidArgumentError("client: longer than 256 bytes"));
  }
  const absl::StatusOr<SessionId> session =
      context_->sessions.Add(request->client(), kDefaultTenant);
  if (!session.ok()) return End(call, session.status());
  reply->set_session(session->value);
  reply->set_version(context_->version);
  reply->set_wire_version(kWireVersion);
  reply->set_page_format_version(kPageFormatVersion);
  reply->set_node(context_->config.node);
  reply->set_ucx(context_->ucx);
  reply->set_ucx_transports(context_->ucx_transports);
  reply->set_data_socket(context_->data_socket);
  reply->set_value_bytes_max(kRawPageBytesMax + kPageHeaderBytes);
  reply->set_blocks_per_request_max(kBlocksPerRequestMax);
  reply->set_codec_place(context_->codec_place);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool posted = context_->shard.Post([this, id = *session, reactor](const ShardView& view) {
    const absl::Status opened = view.engine.OpenSession(id, kDefaultTenant);
    if (opened.ok()) {
      view.streams.Open(id, kDefaultTenant);
    } else {
      context_->sessions.Remove(id);
    }
    reactor->Finish(ToGrpc(opened));
  });
  if (posted) return reactor;
  context_->sessions.Remove(*session);
  return Busy(reactor);
}

grpc::ServerUnaryReactor* CacheService::Goodbye(grpc::CallbackServerContext* call,
                                                const v1::GoodbyeRequest* request,
                                                v1::GoodbyeReply*) {
  const absl::StatusOr<std::string> known = context_->sessions.Use({request->session()});
  if (!known.ok()) return End(call, known.status());
  CloseSession(context_, {request->session()});
  return End(call, absl::OkStatus());
}

grpc::ServerUnaryReactor* CacheService::RegisterLayout(grpc::CallbackServerContext* call,
                                                       const v1::RegisterLayoutRequest* request,
                                                       v1::RegisterLayoutReply* reply) {
  const absl::StatusOr<std::string> tenant = context_->sessions.Use({request->session()});
  if (!tenant.ok()) return End(call, tenant.status());
  const absl::StatusOr<Identity> identity = FromProto(request->identity());
  if (!identity.ok()) return End(call, identity.status());
  Registrar::Request wanted{.tenant = *tenant,
                            .name = request->name(),
                            .identity = *identity,
                            .wish = {.codec = request->codec(),
                                     .rotation = request->rotation(),
                                     .effort = request->effort(),
                                     .metadata = request->metadata(),
                                     .keep_non_finite_raw = request->keep_non_finite_raw()}};
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool posted = context_->control.Post([this, reactor, reply, wanted = std::move(wanted)] {
    const auto bound = context_->registrar.Register(wanted);
    if (bound.ok()) {
      *reply->mutable_layout() = ToProto(**bound);
      if (!(*bound)->note.empty()) {
        context_->log.WriteLimited(LogLevel::kInfo, "codec", "codec chosen",
                                   {{"model", wanted.identity.model},
                                    {"codec", (*bound)->codec},
                                    {"why", (*bound)->note}});
      }
    } else {
      context_->refused.fetch_add(1, std::memory_order_relaxed);
    }
    reactor->Finish(ToGrpc(bound.status()));
  });
  return posted ? reactor : Busy(reactor);
}

grpc::ServerUnaryReactor* CacheService::ListLayouts(grpc::CallbackServerContext* call,
                                                    const v1::ListLayoutsRequest* request,
                                                    v1::ListLayoutsReply* reply) {
  const absl::StatusOr<std::string> tenant = context_->sessions.Use({request->session()});
  if (!tenant.ok()) return End(call, tenant.status());
  for (const std::shared_ptr<const BoundLayout>& layout : context_->layouts.List()) {
    if (layout->tenant == *tenant) *reply->add_layouts() = ToProto(*layout);
  }
  return End(call, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::CodecsChunk>* CacheService::GetCodecs(
    grpc::CallbackServerContext* call, const v1::GetCodecsRequest* request) {
  return StartGetCodecs(context_, call, *request);
}

grpc::ServerUnaryReactor* CacheService::RegisterRegions(grpc::CallbackServerContext* call,
                                                        const v1::RegisterRegionsRequest* request,
                                                        v1::RegisterRegionsReply*) {
  const absl::StatusOr<CallTarget> target =
      FindTarget(context_, request->session(), request->layout_handle());
  if (!target.ok()) return End(call, target.status());
  absl::StatusOr<RegionSetSpec> spec = FromProto(*request);
  if (!spec.ok()) return End(call, spec.status());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool posted = context_->shard.Post(
      [reactor, session = target->session, set = request->region_set(),
       handle = request->layout_handle(), spec = *std::move(spec)](const ShardView& view) {
        reactor->Finish(ToGrpc(view.engine.RegisterRegions(session, set, handle, spec)));
      });
  return posted ? reactor : Busy(reactor);
}

grpc::ServerUnaryReactor* CacheService::Connect(grpc::CallbackServerContext* call,
                                                const v1::ConnectRequest* request,
                                                v1::ConnectReply* reply) {
  const absl::StatusOr<std::string> tenant = context_->sessions.Use({request->session()});
  if (!tenant.ok()) return End(call, tenant.status());
  if (!context_->ucx) {
    return End(call, absl::UnimplementedError("UCX is off in this daemon: use the gRPC verbs"));
  }
  if (request->hello().empty() || request->hello().size() > kHelloBytesMax) {
    return End(call, absl::InvalidArgumentError(absl::StrCat("hello: ", request->hello().size(),
                                                             " bytes; 1 to ", kHelloBytesMax)));
  }
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool posted = context_->shard.Post([reactor, reply, session = SessionId{request->session()},
                                            hello = request->hello()](const ShardView& view) {
    uint64_t cookie = 0;
    const std::string mine = view.ucx->MakeHello(&cookie);
    const absl::StatusOr<PeerId> peer =
        view.ucx->Connect({reinterpret_cast<const uint8_t*>(hello.data()), hello.size()}, cookie);
    absl::Status status = peer.status();
    if (status.ok()) {
      status = view.engine.AttachPeer(session, view.ucx_transport, *peer);
      if (!status.ok()) view.ucx->ClosePeer(*peer);
    }
    if (status.ok()) reply->set_hello(mine);
    reactor->Finish(ToGrpc(status));
  });
  return posted ? reactor : Busy(reactor);
}

grpc::ServerReadReactor<v1::PutChunk>* CacheService::Put(grpc::CallbackServerContext* call,
                                                         v1::PutReply* reply) {
  return StartPut(context_, call, reply);
}

grpc::ServerWriteReactor<v1::GetChunk>* CacheService::Get(grpc::CallbackServerContext* call,
                                                          const v1::GetRequest* request) {
  return StartGet(context_, call, request);
}

namespace {

// Hands a look-up or delete to the shard. `call` deletes itself once answered.
void PostNames(RpcContext* context, StreamRequest request, NamesCall* call) {
  request.request_id = context->next_request.fetch_add(1, std::memory_order_relaxed);
  const bool posted =
      context->shard.Post([call, request = std::move(request)](const ShardView& view) {
        view.streams.Start(request, call);
      });
  if (posted) return;
  context->refused.fetch_add(1, std::memory_order_relaxed);
  call->Refuse({grpc::StatusCode::RESOURCE_EXHAUSTED, kBusyMessage});
}

void AddItem(const WireBlockReply& block, v1::LookupItem* item) {
  item->set_result(ToProto(block.result));
  item->set_tier(ToProto(block.tier));
  item->set_precision(ToProto(block.precision));
  item->set_lossy_depth(block.lossy_depth);
  if (block.result == BlockResult::kOk) {
    item->set_raw_tail_tokens(static_cast<uint32_t>(block.checksum));
  }
}

}  // namespace

grpc::ServerUnaryReactor* CacheService::Lookup(grpc::CallbackServerContext* call,
                                               const v1::LookupRequest* request,
                                               v1::LookupReply* reply) {
  const absl::StatusOr<CallTarget> target =
      FindTarget(context_, request->session(), request->layout_handle());
  if (!target.ok()) return End(call, target.status());
  absl::StatusOr<std::vector<WireBlock>> blocks = BlocksFrom(request->blocks(), *target->layout);
  if (!blocks.ok()) return End(call, blocks.status());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const auto count = static_cast<size_t>(request->blocks_size());
  auto* names =
      new NamesCall(context_, reactor,
                    [reply, count](BlockResult result, absl::Span<const WireBlockReply> replies) {
                      uint32_t prefix = 0;
                      for (size_t i = 0; i < count; ++i) {
                        const WireBlockReply block =
                            i < replies.size() ? replies[i] : WireBlockReply{.result = result};
                        AddItem(block, reply->add_items());
                        if (prefix == i && block.result == BlockResult::kOk) ++prefix;
                      }
                      reply->set_prefix(prefix);
                      if (prefix > 0) {
                        const int last = static_cast<int>(prefix) - 1;
                        reply->set_raw_tail_tokens(reply->items(last).raw_tail_tokens());
                      }
                    });
  PostNames(context_,
            {.session = target->session,
             .request_id = 0,
             .type = WireType::kLookup,
             .flags = request->stop_at_gap() ? kWireFlagStopAtGap : uint16_t{0},
             .layout_handle = target->layout->handle,
             .form = PageForm::kRaw,
             .deadline_us = 0,
             .blocks = *std::move(blocks),
             .slot_bytes = 0,
             .slot = 0},
            names);
  return reactor;
}

grpc::ServerUnaryReactor* CacheService::Delete(grpc::CallbackServerContext* call,
                                               const v1::DeleteRequest* request,
                                               v1::DeleteReply* reply) {
  const absl::StatusOr<CallTarget> target =
      FindTarget(context_, request->session(), request->layout_handle());
  if (!target.ok()) return End(call, target.status());
  absl::StatusOr<std::vector<WireBlock>> blocks = BlocksFrom(request->blocks(), *target->layout);
  if (!blocks.ok()) return End(call, blocks.status());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const auto count = static_cast<size_t>(request->blocks_size());
  auto* names = new NamesCall(
      context_, reactor,
      [reply, count](BlockResult result, absl::Span<const WireBlockReply> replies) {
        for (size_t i = 0; i < count; ++i) {
          reply->add_results(ToProto(i < replies.size() ? replies[i].result : result));
        }
      });
  PostNames(
      context_,
      {.session = target->session,
       .request_id = 0,
       .type = WireType::kDelete,
       .flags = 0,
       .layout_handle = target->layout->handle,
       .form = PageForm::kRaw,
       .deadline_us = DeadlineUs(request->deadline_ms(), context_->config.limits.deadline_us_max),
       .blocks = *std::move(blocks),
       .slot_bytes = 0,
       .slot = 0},
      names);
  return reactor;
}

grpc::ServerUnaryReactor* CacheService::Prefetch(grpc::CallbackServerContext* call,
                                                 const v1::PrefetchRequest* request,
                                                 v1::PrefetchReply* reply) {
  const absl::StatusOr<CallTarget> target =
      FindTarget(context_, request->session(), request->layout_handle());
  if (!target.ok()) return End(call, target.status());
  absl::StatusOr<std::vector<WireBlock>> blocks = BlocksFrom(request->blocks(), *target->layout);
  if (!blocks.ok()) return End(call, blocks.status());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const auto count = static_cast<size_t>(request->blocks_size());
  auto* names =
      new NamesCall(context_, reactor,
                    [reply, count](BlockResult result, absl::Span<const WireBlockReply> replies) {
                      for (size_t i = 0; i < count; ++i) {
                        AddItem(i < replies.size() ? replies[i] : WireBlockReply{.result = result},
                                reply->add_items());
                      }
                    });
  PostNames(
      context_,
      {.session = target->session,
       .request_id = 0,
       .type = WireType::kPrefetch,
       .flags = 0,
       .layout_handle = target->layout->handle,
       .form = PageForm::kRaw,
       .deadline_us = DeadlineUs(request->deadline_ms(), context_->config.limits.deadline_us_max),
       .blocks = *std::move(blocks),
       .slot_bytes = 0,
       .slot = 0},
      names);
  return reactor;
}

grpc::ServerUnaryReactor* CacheService::Pin(grpc::CallbackServerContext* call,
                                            const v1::PinRequest* request, v1::PinReply* reply) {
  const absl::StatusOr<CallTarget> target =
      FindTarget(context_, request->session(), request->layout_handle());
  if (!target.ok()) return End(call, target.status());
  absl::StatusOr<PinRequest> pin =
      PinFrom(*request, *target, context_->config.limits.pin_ttl_us_max);
  if (!pin.ok()) return End(call, pin.status());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool posted =
      context_->shard.Post([reactor, reply, pin = *std::move(pin)](const ShardView& view) {
        for (const BlockResult result : view.engine.Pin(pin)) reply->add_results(ToProto(result));
        reactor->Finish(grpc::Status::OK);
      });
  return posted ? reactor : Busy(reactor);
}

}  // namespace crumb
