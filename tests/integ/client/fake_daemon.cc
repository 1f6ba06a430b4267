// The gRPC services of the fake, and what holds them together.
#include "tests/integ/client/fake_daemon.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "cachesvc/base/check.h"
#include "client/src/layout_spec.h"
#include "crumb/v1/cache.grpc.pb.h"
#include "tests/integ/client/fake_store.h"
#include "tests/integ/client/fake_wire_side.h"

namespace crumb {
namespace {

using grpc::ServerContext;
using grpc::Status;

class CacheService final : public v1::Cache::Service {
 public:
  struct Sides {
    WireSide* ucx = nullptr;
    WireSide* uds = nullptr;
    std::string data_socket;
  };
  CacheService(Store* store, Sides sides, uint32_t wire_version)
      : store_(store), sides_(std::move(sides)), wire_version_(wire_version) {}

  Status Hello(ServerContext*, const v1::HelloRequest*, v1::HelloReply* reply) override {
    const std::lock_guard<std::mutex> lock(store_->mutex);
    reply->set_session(++store_->next_session);
    store_->sessions[reply->session()];
    reply->set_version("fake");
    reply->set_wire_version(wire_version_);
    reply->set_ucx(sides_.ucx != nullptr);
    reply->set_data_socket(sides_.data_socket);
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
    WireSide* side = nullptr;
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
      side = session.over_ucx ? sides_.ucx : sides_.uds;
    }
    absl::Status status;
    if (peer.value == 0) return Status::OK;  // its hello is on its way, and registers them
    side->Call([&](Transport* transport) {
      status = transport->RegisterRegions(peer, request->region_set(), *shared);
    });
    return status.ok() ? Status::OK
                       : Status(grpc::StatusCode::INTERNAL, std::string(status.message()));
  }
  Status Connect(ServerContext*, const v1::ConnectRequest* request,
                 v1::ConnectReply* reply) override {
    PeerId peer;
    sides_.ucx->Call([&](Transport*) {
      uint64_t cookie = 0;
      reply->set_hello(sides_.ucx->ucx()->MakeHello(&cookie));
      const auto connected = sides_.ucx->ucx()->Connect(AsBytes(request->hello()), cookie);
      if (connected.ok()) peer = *connected;
    });
    const std::lock_guard<std::mutex> lock(store_->mutex);
    if (!Known(request->session())) return Unknown();
    SessionState& session = store_->sessions[request->session()];
    session.peer = peer;
    session.over_ucx = true;
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
  Status Prefetch(ServerContext*, const v1::PrefetchRequest* request,
                  v1::PrefetchReply* reply) override {
    std::unique_lock<std::mutex> lock(store_->mutex);
    if (!store_->WaitOut(&lock)) return Status(grpc::StatusCode::UNAVAILABLE, "dead");
    if (!Known(request->session())) return Unknown();
    for (const v1::BlockName& name : request->blocks()) {
      const bool have =
          store_->values.count(KeyOf(request->layout_handle(), NameBytes(name), name.part())) != 0;
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
  const Sides sides_;
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
      : ucx_(options.ucx ? std::make_unique<WireSide>(&store_, "") : nullptr),
        uds_(options.uds ? std::make_unique<WireSide>(&store_, options.socket + ".data") : nullptr),
        cache_(&store_,
               {.ucx = ucx_.get(),
                .uds = uds_.get(),
                .data_socket = options.uds ? options.socket + ".data" : ""},
               options.wire_version),
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
  std::unique_ptr<WireSide> ucx_, uds_;
  CacheService cache_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<FakeDaemon> FakeDaemon::Start(const Options& options) {
  return std::make_unique<FakeDaemonImpl>(options);
}

}  // namespace crumb
