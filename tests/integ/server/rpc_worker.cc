// The bare client. One thread.
#include "tests/integ/server/rpc_worker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "cachesvc/base/rng.h"

namespace crumb::testing {
namespace {

uint16_t ToBf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float FromBf16(const std::string& page, size_t index) {
  uint16_t half = 0;
  std::memcpy(&half, page.data() + index * 2, sizeof(half));
  const uint32_t bits = uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

std::unique_ptr<grpc::ClientContext> Context(int limit_ms) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(limit_ms));
  return context;
}

v1::Identity SmallModel(const std::string& name_space) {
  v1::Identity identity;
  identity.set_model("example/small");
  identity.set_revision("r1");
  identity.set_weights_dtype("bf16");
  identity.mutable_rope()->set_kind("rope");
  identity.mutable_rope()->set_theta(10000);
  identity.mutable_rope()->set_factor(1);
  identity.set_dtype("bf16");
  identity.set_page_tokens(64);
  identity.set_head_groups(1);
  identity.set_name_space(name_space);
  v1::AttentionGroup* group = identity.add_groups();
  group->set_kind("gqa");
  group->set_kv_heads(2);
  group->set_k_dim(64);
  group->set_v_dim(64);
  group->add_layer_ids(0);
  group->add_layer_ids(1);
  return identity;
}

std::string RandomPage(uint64_t seed, size_t bytes) {
  Rng rng(seed);
  std::string page(bytes, '\0');
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(rng.Below(20001)) / 10000 - 1;
    const uint16_t half = ToBf16(static_cast<float>(sum));
    std::memcpy(page.data() + i, &half, sizeof(half));
  }
  return page;
}

double RelativeError(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return 1e9;
  double error = 0;
  double energy = 0;
  for (size_t i = 0; i < a.size() / 2; ++i) {
    const double x = FromBf16(a, i);
    const double y = FromBf16(b, i);
    error += (x - y) * (x - y);
    energy += x * x;
  }
  return energy > 0 ? error / energy : 0;
}

RpcWorker::RpcWorker(const std::string& place) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  channel_ = grpc::CreateCustomChannel(place, grpc::InsecureChannelCredentials(), arguments);
  cache_ = v1::Cache::NewStub(channel_);
  admin_ = v1::Admin::NewStub(channel_);
}

bool RpcWorker::Connect() {
  v1::HelloRequest request;
  request.set_client("test");
  request.set_wire_version(1);
  return cache_->Hello(Context().get(), request, &hello_).ok() && hello_.session() != 0;
}

grpc::Status RpcWorker::Register(const v1::Identity& identity, const std::string& codec,
                                 bool keep_non_finite) {
  v1::RegisterLayoutRequest request;
  request.set_session(session());
  request.set_name("small");
  *request.mutable_identity() = identity;
  request.set_codec(codec);
  request.set_keep_non_finite_raw(keep_non_finite);
  v1::RegisterLayoutReply reply;
  const grpc::Status status = cache_->RegisterLayout(Context().get(), request, &reply);
  if (status.ok()) layout_ = reply.layout();
  return status;
}

v1::PutHeader RpcWorker::Header(const std::string& key, uint64_t value_bytes) const {
  v1::PutHeader header;
  header.set_session(session());
  header.set_layout_handle(layout_.handle());
  header.mutable_block()->set_key(key);
  header.set_value_bytes(value_bytes);
  header.set_deadline_ms(10'000);
  return header;
}

grpc::Status RpcWorker::Put(const std::string& key, const std::string& page, v1::PutReply* reply,
                            const PutOptions& options) {
  const auto context = Context();
  const auto writer = cache_->Put(context.get(), reply);
  v1::PutChunk chunk;
  *chunk.mutable_header() = Header(key, page.size());
  chunk.mutable_header()->mutable_block()->set_part(options.part);
  chunk.mutable_header()->set_form(options.form);
  chunk.mutable_header()->set_durable(options.durable);
  chunk.mutable_header()->set_token_count(options.token_count);
  chunk.mutable_header()->set_deadline_ms(options.deadline_ms);
  if (options.token_start >= 0) {
    chunk.mutable_header()->set_token_start(static_cast<uint32_t>(options.token_start));
  }
  for (size_t at = 0; at < page.size(); at += options.chunk_bytes) {
    chunk.set_data(page.substr(at, options.chunk_bytes));
    if (!writer->Write(chunk)) return writer->Finish();
    chunk.Clear();
  }
  if (page.empty()) writer->Write(chunk);
  writer->WritesDone();
  return writer->Finish();
}

v1::Result RpcWorker::Put(const std::string& key, const std::string& page,
                          const PutOptions& options) {
  v1::PutReply reply;
  return Put(key, page, &reply, options).ok() ? reply.result() : v1::RESULT_INVALID;
}

Got RpcWorker::Get(const std::string& key, v1::Form form, uint32_t wait_ms) {
  v1::GetRequest request;
  request.set_session(session());
  request.set_layout_handle(layout_.handle());
  request.mutable_block()->set_key(key);
  request.set_form(form);
  request.set_deadline_ms(10'000);
  request.set_wait_ms(wait_ms);
  Got got;
  const auto context = Context();
  const auto reader = cache_->Get(context.get(), request);
  v1::GetChunk chunk;
  while (reader->Read(&chunk)) {
    if (chunk.has_header()) got.header = chunk.header();
    got.data += chunk.data();
  }
  got.status = reader->Finish();
  if (got.data.size() != got.header.value_bytes()) {
    got.status = {grpc::StatusCode::DATA_LOSS, "length differs from the header"};
  }
  return got;
}

v1::LookupReply RpcWorker::Lookup(const std::vector<std::string>& keys) {
  v1::LookupRequest request;
  request.set_session(session());
  request.set_layout_handle(layout_.handle());
  for (const std::string& key : keys) request.add_blocks()->set_key(key);
  v1::LookupReply reply;
  cache_->Lookup(Context().get(), request, &reply);
  return reply;
}

v1::Result RpcWorker::Delete(const std::string& key) {
  v1::DeleteRequest request;
  request.set_session(session());
  request.set_layout_handle(layout_.handle());
  request.add_blocks()->set_key(key);
  v1::DeleteReply reply;
  const bool ok = cache_->Delete(Context().get(), request, &reply).ok();
  return ok && reply.results_size() == 1 ? reply.results(0) : v1::RESULT_INVALID;
}

v1::Result RpcWorker::Pin(const std::string& key, uint32_t ttl_ms) {
  v1::PinRequest request;
  request.set_session(session());
  request.set_layout_handle(layout_.handle());
  request.add_blocks()->set_key(key);
  request.set_ttl_ms(ttl_ms);
  v1::PinReply reply;
  const bool ok = cache_->Pin(Context().get(), request, &reply).ok();
  return ok && reply.results_size() == 1 ? reply.results(0) : v1::RESULT_INVALID;
}

std::string RpcWorker::StatusJson() {
  v1::StatusReply reply;
  admin_->Status(Context().get(), {}, &reply);
  return reply.json();
}

}  // namespace crumb::testing
