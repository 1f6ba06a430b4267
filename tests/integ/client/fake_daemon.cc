// One lock around everything; UCX on one thread of its own, with a mailbox of closures.
#include "tests/integ/client/fake_daemon.h"

#include <grpcpp/grpcpp.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/net/ucx_transport.h"
#include "client/src/layout_spec.h"
#include "crumb/v1/cache.grpc.pb.h"

namespace crumb {
namespace {

using grpc::ServerContext;
using grpc::Status;

struct FakeLayout {
  v1::LayoutInfo info;
  std::shared_ptr<const Layout> shape;
};

struct SessionState {
  PeerId peer;
  std::map<uint32_t, std::shared_ptr<const RegionSet>> regions;
};

using ValueKey = std::pair<uint32_t, std::string>;  // layout handle, digest and part

ValueKey KeyOf(uint32_t layout, const std::string& digest, uint32_t part) {
  return {layout, digest + std::to_string(part)};
}
std::string DigestBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}
std::string NameBytes(const v1::BlockName& name) {
  return name.digest().empty() ? DigestBytes(DigestOf(AsBytes(name.key()))) : name.digest();
}

// Everything the two planes share.
struct Store {
  std::mutex mutex;
  std::condition_variable changed;
  FakeFaults faults;
  std::string status;
  std::map<uint64_t, SessionState> sessions;
  std::vector<FakeLayout> layouts;
  std::map<ValueKey, std::string> values;
  uint64_t next_session = 1000;
  size_t held = 0;
  bool stopping = false;

  // Blocks the calling thread while a hold is on. False: it ends in the daemon's death.
  bool WaitOut(std::unique_lock<std::mutex>* lock) {
    if (!faults.hold) return !stopping;
    ++held;
    changed.wait(*lock, [this] { return !faults.hold || stopping; });
    --held;
    return !stopping;
  }
};

// The UCX side.
class UcxSide {
 public:
  explicit UcxSide(Store* store) : store_(store), arena_(8 << 20) {
    UcxOptions options;
    options.arena = absl::MakeSpan(arena_);
    auto transport = UcxTransport::Create(options);
    CRUMB_CHECK(transport.ok());
    transport_ = *std::move(transport);
    thread_ = std::thread([this] { Loop(); });
  }
  ~UcxSide() {
    stop_ = true;
    thread_.join();
  }

  // Runs on the transport's thread.
  void Call(const std::function<void(UcxTransport*)>& work) {
    std::promise<void> done;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back([&] {
        work(transport_.get());
        done.set_value();
      });
    }
    done.get_future().wait();
  }

 private:
  struct Request {
    PeerId peer;
    std::string message;
  };

  void Loop() {
    while (!stop_) {
      RunTasks();
      Poll();
      HandleOne();
    }
    transport_.reset();
  }

  void RunTasks() {
    std::deque<std::function<void()>> tasks;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
  }

  // Returns the result of the transfer under way once it is done.
  void Poll() {
    std::array<NetEvent, 16> events;
    const size_t count = transport_->Poll(absl::MakeSpan(events));
    for (size_t i = 0; i < count; ++i) {
      if (events[i].kind == NetEventKind::kMessage) {
        requests_.push_back(
            {events[i].peer, std::string(reinterpret_cast<const char*>(events[i].message.data()),
                                         events[i].message.size())});
      } else if (events[i].kind == NetEventKind::kTransferDone) {
        transfer_result_ = events[i].result;
        transfer_done_ = true;
      }
    }
    if (count == 0) std::this_thread::yield();
  }

  BlockResult Move(bool push, const Transfer& transfer) {
    transfer_done_ = false;
    const BlockResult started = push ? transport_->Push(transfer) : transport_->Pull(transfer);
    if (started != BlockResult::kOk) return started;
    while (!transfer_done_ && !stop_) Poll();
    return transfer_result_;
  }

  void HandleOne() {
    if (requests_.empty()) return;
    std::unique_lock<std::mutex> lock(store_->mutex);
    if (store_->faults.hold) {
      store_->held = requests_.size();
      return;
    }
    store_->held = 0;
    const Request request = std::move(requests_.front());
    requests_.pop_front();
    WireRequest wire;
    CRUMB_CHECK(ParseRequest(AsBytes(request.message), &wire) == WireCheck::kOk);
    if (wire.header.block_count == 0) return;
    std::string reply(ReplyBytes(wire.header.block_count), '\0');
    const MutableBytes out(reinterpret_cast<uint8_t*>(reply.data()), reply.size());
    WireHeader header;
    header.type = WireType::kReply;
    header.request_id = wire.header.request_id;
    header.session_id = wire.header.session_id;
    header.block_count = wire.header.block_count;
    WriteWireHeader(header, out);
    for (uint32_t i = 0; i < wire.header.block_count; ++i) {
      WriteWireBlockReply(i, Block(request.peer, wire, i), out);
    }
    FinishWireMessage(out);
    if (store_->faults.garbage_replies) reply[reply.size() / 2] ^= 1;
    transport_->Send(request.peer, AsBytes(reply));
  }

  WireBlockReply Block(PeerId peer, const WireRequest& wire, uint32_t index) {
    WireBlockReply reply;
    const WireBlock block = wire.block(index);
    const ValueKey key = KeyOf(wire.header.layout_handle, DigestBytes(block.digest), block.part);
    const auto found = store_->values.find(key);
    const bool have = found != store_->values.end();
    switch (wire.header.type) {
      case WireType::kPut:
        return Put(peer, wire, index, key);
      case WireType::kGet:
        return have ? Get(peer, wire, index, found->second) : reply;
      case WireType::kDelete:
        reply.result = have ? BlockResult::kOk : BlockResult::kMiss;
        store_->values.erase(key);
        return reply;
      default:
        reply.result = have ? BlockResult::kOk : BlockResult::kMiss;
        reply.tier = have ? Tier::kDram : Tier::kNone;
        return reply;
    }
  }

  bool Place(const WireRequest& wire, uint32_t index, uint64_t bytes, std::vector<Segment>* out) {
    const auto session = store_->sessions.find(wire.header.session_id);
    if (session == store_->sessions.end()) return false;
    const auto set = session->second.regions.find(wire.header.region_set);
    if (set == session->second.regions.end()) return false;
    std::vector<uint32_t> slots;
    for (uint32_t i = 0; i < wire.header.slots_per_block; ++i) slots.push_back(wire.slot(index, i));
    return set->second->Segments(
        {.part = wire.block(index).part, .slots = slots, .bytes = bytes, .tokens = 0}, out);
  }

  WireBlockReply Put(PeerId peer, const WireRequest& wire, uint32_t index, const ValueKey& key) {
    WireBlockReply reply;
    const WireBlock block = wire.block(index);
    const FakeLayout& layout = store_->layouts[wire.header.layout_handle - 1];
    const uint64_t bytes = wire.header.form == PageForm::kRaw
                               ? layout.shape->parts()[block.part].raw_bytes
                               : block.value_bytes;
    std::vector<Segment> segments;
    if (!Place(wire, index, bytes, &segments)) {
      reply.result = BlockResult::kInvalid;
      return reply;
    }
    const Transfer transfer{.peer = peer,
                            .region_set = wire.header.region_set,
                            .segments = segments,
                            .local = absl::MakeSpan(arena_).first(bytes),
                            .token = 1};
    reply.result = Move(false, transfer);
    if (reply.result == BlockResult::kOk) reply.result = store_->faults.put_result;
    if (reply.result == BlockResult::kOk) {
      store_->values[key] = std::string(reinterpret_cast<const char*>(arena_.data()), bytes);
    }
    return reply;
  }

  WireBlockReply Get(PeerId peer, const WireRequest& wire, uint32_t index,
                     const std::string& value) {
    WireBlockReply reply;
    std::vector<Segment> segments;
    if (!Place(wire, index, value.size(), &segments)) {
      reply.result = BlockResult::kInvalid;
      return reply;
    }
    std::copy(value.begin(), value.end(), arena_.begin());
    reply.checksum = Xxh3(AsBytes(value)) + (store_->faults.wrong_checksum ? 1 : 0);
    if (store_->faults.flip_byte) arena_[value.size() / 3] ^= 0x10;
    const Transfer transfer{.peer = peer,
                            .region_set = wire.header.region_set,
                            .segments = segments,
                            .local = absl::MakeSpan(arena_).first(value.size()),
                            .token = 1};
    reply.result = Move(true, transfer);
    reply.tier = Tier::kDram;
    reply.value_bytes = static_cast<uint32_t>(value.size());
    return reply;
  }

  Store* store_;
  std::vector<uint8_t> arena_;
  std::unique_ptr<UcxTransport> transport_;
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  std::deque<Request> requests_;
  BlockResult transfer_result_ = BlockResult::kOk;
  bool transfer_done_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class CacheService final : public v1::Cache::Service {
 public:
  CacheService(Store* store, UcxSide* ucx, uint32_t wire_version)
      : store_(store), ucx_(ucx), wire_version_(wire_version) {}

  Status Hello(ServerContext*, const v1::HelloRequest*, v1::HelloReply* reply) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    reply->set_session(++store_->next_session);
    store_->sessions[reply->session()];
    reply->set_version("fake");
    reply->set_wire_version(wire_version_);
    reply->set_ucx(ucx_ != nullptr);
    return Status::OK;
  }
  Status Goodbye(ServerContext*, const v1::GoodbyeRequest* request, v1::GoodbyeReply*) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    store_->sessions.erase(request->session());
    return Status::OK;
  }
  Status RegisterLayout(ServerContext*, const v1::RegisterLayoutRequest* request,
                        v1::RegisterLayoutReply* reply) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    if (!Known(request->session())) return Unknown();
    auto shape = client::CheckIdentity(request->identity());
    if (!shape.ok()) {
      return Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(shape.status().message()));
    }
    const std::string hash(reinterpret_cast<const char*>(shape->hash().bytes.data()), 32);
    for (const FakeLayout& known : store_->layouts) {
      if (known.info.hash() != hash) continue;
      *reply->mutable_layout() = known.info;
      return Status::OK;
    }
    FakeLayout layout;
    layout.info.set_name(request->name());
    layout.info.set_hash(hash);
    layout.info.set_codec("raw");
    *layout.info.mutable_identity() = request->identity();
    layout.info.set_handle(static_cast<uint32_t>(store_->layouts.size() + 1));
    for (const PartShape& part : shape->parts()) {
      layout.info.add_raw_bytes(part.raw_bytes);
      layout.info.add_payload_bytes(part.raw_bytes);
    }
    layout.shape = std::make_shared<const Layout>(*std::move(shape));
    *reply->mutable_layout() = layout.info;
    store_->layouts.push_back(std::move(layout));
    return Status::OK;
  }
  Status ListLayouts(ServerContext*, const v1::ListLayoutsRequest* request,
                     v1::ListLayoutsReply* reply) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    if (!Known(request->session())) return Unknown();
    for (const FakeLayout& layout : store_->layouts) *reply->add_layouts() = layout.info;
    return Status::OK;
  }
  Status RegisterRegions(ServerContext*, const v1::RegisterRegionsRequest* request,
                         v1::RegisterRegionsReply*) override {
    RegionSetSpec spec;
    spec.slots = request->slots();
    spec.slots_per_block = request->slots_per_block();
    spec.slot_bytes = request->slot_bytes();
    for (const v1::Region& region : request->regions()) {
      spec.regions.push_back(
          {.address = region.address(), .bytes = region.bytes(), .rkey = region.rkey()});
    }
    for (const v1::TensorPlace& place : request->tensors()) {
      spec.tensors.push_back({.region = place.region(),
                              .offset = place.offset(),
                              .slot_stride = place.slot_stride(),
                              .token_stride = place.token_stride(),
                              .head_stride = place.head_stride()});
    }
    PeerId peer;
    std::shared_ptr<const RegionSet> shared;
    {
      const std::lock_guard<std::mutex> lock(store_->mutex);
      if (!Known(request->session())) return Unknown();
      auto set =
          RegionSet::Make(std::move(spec), *store_->layouts[request->layout_handle() - 1].shape);
      if (!set.ok()) {
        return Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(set.status().message()));
      }
      shared = std::make_shared<const RegionSet>(*std::move(set));
      SessionState& session = store_->sessions[request->session()];
      session.regions[request->region_set()] = shared;
      peer = session.peer;
    }
    absl::Status status;
    ucx_->Call([&](UcxTransport* transport) {
      status = transport->RegisterRegions(peer, request->region_set(), *shared);
    });
    return status.ok() ? Status::OK
                       : Status(grpc::StatusCode::INTERNAL, std::string(status.message()));
  }
  Status Connect(ServerContext*, const v1::ConnectRequest* request,
                 v1::ConnectReply* reply) override {
    PeerId peer;
    ucx_->Call([&](UcxTransport* transport) {
      uint64_t cookie = 0;
      reply->set_hello(transport->MakeHello(&cookie));
      const auto connected = transport->Connect(AsBytes(request->hello()), cookie);
      if (connected.ok()) peer = *connected;
    });
    const std::lock_guard<std::mutex> lock(store_->mutex);
    if (!Known(request->session())) return Unknown();
    store_->sessions[request->session()].peer = peer;
    return Status::OK;
  }
  Status Put(ServerContext*, grpc::ServerReader<v1::PutChunk>* reader,
             v1::PutReply* reply) override {
    v1::PutChunk chunk;
    v1::PutHeader header;
    std::string value;
    while (reader->Read(&chunk)) {
      if (chunk.has_header()) header = chunk.header();
      value += chunk.data();
    }
    std::unique_lock<std::mutex> lock(store_->mutex);
    if (!store_->WaitOut(&lock)) return Status(grpc::StatusCode::UNAVAILABLE, "dead");
    if (!Known(header.session())) return Unknown();
    reply->set_result(static_cast<v1::Result>(store_->faults.put_result));
    if (store_->faults.put_result != BlockResult::kOk) {
      reply->set_message("the fake refuses");
      return Status::OK;
    }
    if (value.size() != header.value_bytes()) {
      return Status(grpc::StatusCode::INVALID_ARGUMENT, "length");
    }
    store_
        ->values[KeyOf(header.layout_handle(), NameBytes(header.block()), header.block().part())] =
        value;
    return Status::OK;
  }
  Status Get(ServerContext*, const v1::GetRequest* request,
             grpc::ServerWriter<v1::GetChunk>* writer) override {
    std::unique_lock<std::mutex> lock(store_->mutex);
    if (!store_->WaitOut(&lock)) return Status(grpc::StatusCode::UNAVAILABLE, "dead");
    if (!Known(request->session())) return Unknown();
    const auto found = store_->values.find(
        KeyOf(request->layout_handle(), NameBytes(request->block()), request->block().part()));
    v1::GetChunk chunk;
    if (found == store_->values.end()) {
      chunk.mutable_header()->set_result(v1::RESULT_MISS);
      writer->Write(chunk);
      return Status::OK;
    }
    std::string value = found->second;
    const FakeFaults faults = store_->faults;
    lock.unlock();
    if (!faults.no_header) {
      v1::GetHeader* header = chunk.mutable_header();
      header->set_tier(v1::TIER_DRAM);
      header->set_value_bytes(value.size());
      header->set_checksum(Xxh3(AsBytes(value)) + (faults.wrong_checksum ? 1 : 0));
    }
    if (faults.flip_byte) value[value.size() / 3] ^= 0x10;
    if (faults.short_stream) value.pop_back();
    if (faults.long_stream) value.push_back('x');
    for (size_t sent = 0; sent < value.size(); sent += 1 << 20) {
      chunk.set_data(value.substr(sent, 1 << 20));
      if (!writer->Write(chunk)) break;
      chunk.Clear();
    }
    return Status::OK;
  }
  Status Lookup(ServerContext*, const v1::LookupRequest* request, v1::LookupReply* reply) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    if (!Known(request->session())) return Unknown();
    for (const v1::BlockName& name : request->blocks()) {
      const bool have =
          store_->values.count(KeyOf(request->layout_handle(), NameBytes(name), name.part())) != 0;
      if (!have && request->stop_at_gap()) break;
      v1::LookupItem* item = reply->add_items();
      item->set_result(have ? v1::RESULT_OK : v1::RESULT_MISS);
      item->set_tier(have ? v1::TIER_DRAM : v1::TIER_NONE);
    }
    return Status::OK;
  }
  Status Delete(ServerContext*, const v1::DeleteRequest* request, v1::DeleteReply* reply) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    if (!Known(request->session())) return Unknown();
    for (const v1::BlockName& name : request->blocks()) {
      const size_t erased =
          store_->values.erase(KeyOf(request->layout_handle(), NameBytes(name), name.part()));
      reply->add_results(erased != 0 ? v1::RESULT_OK : v1::RESULT_MISS);
    }
    return Status::OK;
  }
  Status Pin(ServerContext*, const v1::PinRequest* request, v1::PinReply* reply) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    if (!Known(request->session())) return Unknown();
    for (const v1::BlockName& name : request->blocks()) {
      const bool have =
          store_->values.count(KeyOf(request->layout_handle(), NameBytes(name), name.part())) != 0;
      reply->add_results(have ? v1::RESULT_OK : v1::RESULT_MISS);
    }
    return Status::OK;
  }

 private:
  bool Known(uint64_t session) const {
    return !store_->faults.drop_session && store_->sessions.count(session) != 0;
  }
  static Status Unknown() { return Status(grpc::StatusCode::NOT_FOUND, "unknown session"); }

  Store* store_;
  UcxSide* ucx_;
  uint32_t wire_version_;
};

class AdminService final : public v1::Admin::Service {
 public:
  explicit AdminService(Store* store) : store_(store) {}
  grpc::Status Status(ServerContext*, const v1::StatusRequest*, v1::StatusReply* reply) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    if (!store_->status.empty()) {
      reply->set_json(store_->status);
      return grpc::Status::OK;
    }
    reply->set_json(
        "{\"version\":\"fake\",\"tiers\":{\"dram\":{\"used_bytes\":1048576}},"
        "\"values\":" +
        std::to_string(store_->values.size()) + ",\"list\":[1,2]}");
    return grpc::Status::OK;
  }
  grpc::Status Flush(ServerContext*, const v1::FlushRequest* request, v1::FlushReply*) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    std::map<ValueKey, std::string> kept;
    for (auto& [key, value] : store_->values) {
      const FakeLayout& layout = store_->layouts[key.first - 1];
      const bool hit =
          request->layout_hash().empty() || layout.info.hash() == request->layout_hash();
      if (!hit) kept[key] = std::move(value);
    }
    store_->values = std::move(kept);
    return grpc::Status::OK;
  }

 private:
  Store* store_;
};

class FakeDaemonImpl final : public FakeDaemon {
 public:
  explicit FakeDaemonImpl(const Options& options)
      : ucx_(options.ucx ? std::make_unique<UcxSide>(&store_) : nullptr),
        cache_(&store_, ucx_.get(), options.wire_version),
        admin_(&store_) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + options.socket, grpc::InsecureServerCredentials());
    builder.RegisterService(&cache_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    CRUMB_CHECK(server_ != nullptr);
  }
  ~FakeDaemonImpl() override {
    {
      const std::lock_guard<std::mutex> lock(store_.mutex);
      store_.stopping = true;
      store_.faults.hold = false;
    }
    store_.changed.notify_all();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  void Set(const FakeFaults& faults) override {
    {
      const std::lock_guard<std::mutex> lock(store_.mutex);
      store_.faults = faults;
    }
    store_.changed.notify_all();
  }
  void SetStatus(const std::string& json) override {
    const std::lock_guard<std::mutex> lock(store_.mutex);
    store_.status = json;
  }
  size_t held() const override {
    const std::lock_guard<std::mutex> lock(store_.mutex);
    return store_.held;
  }
  size_t sessions() const override {
    const std::lock_guard<std::mutex> lock(store_.mutex);
    return store_.sessions.size();
  }
  size_t values() const override {
    const std::lock_guard<std::mutex> lock(store_.mutex);
    return store_.values.size();
  }

 private:
  mutable Store store_;
  std::unique_ptr<UcxSide> ucx_;
  CacheService cache_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<FakeDaemon> FakeDaemon::Start(const Options& options) {
  return std::make_unique<FakeDaemonImpl>(options);
}

}  // namespace crumb
