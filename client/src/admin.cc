// Admin over the generated stubs.
#include "client/src/admin.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/wire.h"
#include "crumb/v1/cache.grpc.pb.h"

namespace crumb::client {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr uint64_t kImportBytesMax = 4ull << 30;
constexpr uint32_t kLongVerbMs = 600'000;  // imports and flushes wait for disks

std::string BaseName(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

absl::StatusOr<uint64_t> FileBytes(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes == 0 || bytes > kImportBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes, " bytes; 1 to ", kImportBytesMax, " are allowed"));
  }
  return bytes;
}

RotationSummary ToSummary(const v1::RotationInfo& info) {
  RotationSummary out;
  out.hash_hex = Hex(AsBytes(info.hash()));
  out.model = info.model();
  out.revision = info.revision();
  out.objective = info.objective();
  out.provenance = info.provenance();
  out.gamma = info.gamma();
  out.has_moments = info.has_moments();
  out.has_means = info.has_means();
  for (const v1::RotationLayerInfo& layer : info.layers()) {
    out.layers.push_back({.layer_id = layer.layer_id(),
                          .k_heads = layer.k_heads(),
                          .k_dim = layer.k_dim(),
                          .v_heads = layer.v_heads(),
                          .v_dim = layer.v_dim(),
                          .k_hash_hex = Hex(AsBytes(layer.k_hash())),
                          .v_hash_hex = Hex(AsBytes(layer.v_hash()))});
  }
  return out;
}

using ImportWriter = grpc::ClientWriter<v1::ImportRotationChunk>;

// OK also when the daemon ended the call early: Finish then says why.
absl::Status SendFile(const std::string& path, uint64_t bytes, v1::ImportRotationChunk* chunk,
                      ImportWriter* writer) {
  std::ifstream file(path, std::ios::binary);
  std::string piece;
  for (uint64_t sent = 0; sent < bytes;) {
    piece.resize(std::min<uint64_t>(kChunkBytes, bytes - sent));
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    if (!file) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": cannot be read: ", std::strerror(errno)));
    }
    sent += piece.size();
    chunk->set_data(piece);
    if (!writer->Write(*chunk)) return absl::OkStatus();
    chunk->Clear();
  }
  return absl::OkStatus();
}

}  // namespace

struct Admin::Impl {
  Channel channel;
  uint32_t deadline_ms = 0;
  std::unique_ptr<v1::Admin::Stub> admin;
  std::unique_ptr<v1::Cache::Stub> cache;
};

Admin::Admin(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Admin::~Admin() = default;

absl::StatusOr<std::unique_ptr<Admin>> Admin::Open(const ChannelOptions& options,
                                                   uint32_t deadline_ms) {
  auto impl = std::make_unique<Impl>();
  CRUMB_ASSIGN(impl->channel, Channel::Open(options));
  impl->deadline_ms = deadline_ms;
  impl->admin = v1::Admin::NewStub(impl->channel.grpc());
  impl->cache = v1::Cache::NewStub(impl->channel.grpc());
  return std::unique_ptr<Admin>(new Admin(std::move(impl)));
}

absl::StatusOr<DaemonFacts> Admin::Facts() {
  grpc::ClientContext context;
  impl_->channel.Prepare(&context, impl_->deadline_ms);
  v1::HelloRequest request;
  request.set_client("crumbctl");
  request.set_wire_version(kWireVersion);
  v1::HelloReply reply;
  const grpc::Status status = impl_->cache->Hello(&context, request, &reply);
  if (!status.ok()) return impl_->channel.Explain(status, "Hello");
  grpc::ClientContext bye_context;
  impl_->channel.Prepare(&bye_context, impl_->deadline_ms);
  v1::GoodbyeRequest bye;
  bye.set_session(reply.session());
  v1::GoodbyeReply ignored;
  static_cast<void>(impl_->cache->Goodbye(&bye_context, bye, &ignored));
  return DaemonFacts{.version = reply.version(),
                     .node = reply.node(),
                     .ucx_transports = reply.ucx_transports(),
                     .wire_version = reply.wire_version(),
                     .page_format_version = reply.page_format_version(),
                     .ucx = reply.ucx()};
}

absl::StatusOr<std::string> Admin::StatusJson() {
  grpc::ClientContext context;
  impl_->channel.Prepare(&context, impl_->deadline_ms);
  v1::StatusReply reply;
  const grpc::Status status = impl_->admin->Status(&context, v1::StatusRequest(), &reply);
  if (!status.ok()) return impl_->channel.Explain(status, "Status");
  return std::move(*reply.mutable_json());
}

absl::StatusOr<NvmeSize> Admin::ResizeNvme(uint64_t bytes) {
  v1::ResizeNvmeRequest request;
  request.set_bytes(bytes);
  grpc::ClientContext context;
  impl_->channel.Prepare(&context, kLongVerbMs);
  v1::ResizeNvmeReply reply;
  const grpc::Status status = impl_->admin->ResizeNvme(&context, request, &reply);
  if (!status.ok()) return impl_->channel.Explain(status, "ResizeNvme");
  return NvmeSize{.bytes = reply.bytes(),
                  .bytes_before = reply.bytes_before(),
                  .configured_bytes = reply.configured_bytes()};
}

absl::Status Admin::Flush(const std::string& layout_hash_hex, const std::string& tenant) {
  v1::FlushRequest request;
  if (!layout_hash_hex.empty()) {
    Sha256 hash{};
    if (!ParseHex(layout_hash_hex, absl::MakeSpan(hash))) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout hash \"", layout_hash_hex, "\" is not 64 hexadecimal digits"));
    }
    request.set_layout_hash(hash.data(), hash.size());
  }
  request.set_tenant(tenant);
  grpc::ClientContext context;
  impl_->channel.Prepare(&context, kLongVerbMs);
  v1::FlushReply reply;
  return impl_->channel.Explain(impl_->admin->Flush(&context, request, &reply), "Flush");
}

absl::StatusOr<RotationSummary> Admin::ImportRotation(const RotationFiles& files) {
  v1::ImportRotationChunk chunk;
  v1::ImportRotationHeader* header = chunk.mutable_header();
  header->set_model(files.model);
  header->set_revision(files.revision);
  header->set_provenance(files.provenance);
  std::vector<uint64_t> sizes;
  for (const std::string& path : files.paths) {
    CRUMB_ASSIGN(const uint64_t bytes, FileBytes(path));
    header->add_file_bytes(bytes);
    header->add_file_names(BaseName(path));
    sizes.push_back(bytes);
  }
  grpc::ClientContext context;
  impl_->channel.Prepare(&context, kLongVerbMs);
  v1::RotationInfo info;
  std::unique_ptr<ImportWriter> writer = impl_->admin->ImportRotation(&context, &info);
  for (size_t i = 0; i < files.paths.size(); ++i) {
    absl::Status sent = SendFile(files.paths[i], sizes[i], &chunk, writer.get());
    if (!sent.ok()) {
      context.TryCancel();
      static_cast<void>(writer->Finish());
      return sent;
    }
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return impl_->channel.Explain(status, "ImportRotation");
  return ToSummary(info);
}

absl::StatusOr<std::vector<RotationSummary>> Admin::ListRotations(const std::string& hash_prefix) {
  grpc::ClientContext context;
  impl_->channel.Prepare(&context, impl_->deadline_ms);
  v1::ListRotationsRequest request;
  request.set_hash_prefix(hash_prefix);
  v1::ListRotationsReply reply;
  const grpc::Status status = impl_->admin->ListRotations(&context, request, &reply);
  if (!status.ok()) return impl_->channel.Explain(status, "ListRotations");
  std::vector<RotationSummary> out;
  for (const v1::RotationInfo& info : reply.rotations()) out.push_back(ToSummary(info));
  return out;
}

absl::Status Admin::ExportRotation(const std::string& hash_prefix,
                                   const std::function<absl::Status(const std::string&)>& sink) {
  grpc::ClientContext context;
  impl_->channel.Prepare(&context, kLongVerbMs);
  v1::ExportRotationRequest request;
  request.set_hash_prefix(hash_prefix);
  auto reader = impl_->admin->ExportRotation(&context, request);
  v1::DataChunk chunk;
  absl::Status taken;
  while (taken.ok() && reader->Read(&chunk)) taken = sink(chunk.data());
  if (!taken.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  return taken.ok() ? impl_->channel.Explain(status, "ExportRotation") : taken;
}

namespace {

EvaluationSummary ToSummary(const v1::EvaluationVerdict& verdict) {
  const v1::Evaluation& from = verdict.evaluation();
  return {.model = from.model(),
          .revision = from.revision(),
          .rotation = from.rotation(),
          .codec = from.codec(),
          .date = from.date(),
          .source = from.source(),
          .perplexity_change = from.perplexity_change(),
          .kl = from.kl(),
          .tokens = from.tokens(),
          .within_bounds = verdict.within_bounds()};
}

}  // namespace

absl::StatusOr<EvaluationSummary> Admin::RecordEvaluation(const EvaluationSummary& evaluation) {
  grpc::ClientContext context;
  impl_->channel.Prepare(&context, impl_->deadline_ms);
  v1::Evaluation request;
  request.set_model(evaluation.model);
  request.set_revision(evaluation.revision);
  request.set_rotation(evaluation.rotation);
  request.set_codec(evaluation.codec);
  request.set_perplexity_change(evaluation.perplexity_change);
  request.set_kl(evaluation.kl);
  request.set_tokens(evaluation.tokens);
  request.set_date(evaluation.date);
  request.set_source(evaluation.source);
  v1::EvaluationVerdict reply;
  const grpc::Status status = impl_->admin->RecordEvaluation(&context, request, &reply);
  if (!status.ok()) return impl_->channel.Explain(status, "RecordEvaluation");
  return ToSummary(reply);
}

absl::StatusOr<std::vector<EvaluationSummary>> Admin::ListEvaluations() {
  grpc::ClientContext context;
  impl_->channel.Prepare(&context, impl_->deadline_ms);
  v1::ListEvaluationsReply reply;
  const grpc::Status status = impl_->admin->ListEvaluations(&context, {}, &reply);
  if (!status.ok()) return impl_->channel.Explain(status, "ListEvaluations");
  std::vector<EvaluationSummary> out;
  for (const v1::EvaluationVerdict& one : reply.evaluations()) out.push_back(ToSummary(one));
  return out;
}

}  // namespace crumb::client
