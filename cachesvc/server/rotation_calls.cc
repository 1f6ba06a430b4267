// Import and export of rotation sets. gRPC's threads move bytes, the control thread does the rest.
#include "cachesvc/server/rotation_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/server/admin_service.h"
#include "cachesvc/server/file_stream.h"
#include "cachesvc/server/rpc_convert.h"
#include "gpu/codec/rotation_import.h"

namespace crumb {
namespace {

constexpr size_t kFilesMax = 2;
constexpr size_t kFileNameBytesMax = 1024;
constexpr uint64_t kChunkWaitUs = 10'000'000;
constexpr int kZipMagicBytes = 4;
constexpr char kZipMagic[] = "PK\x03\x04";

std::string SafeName(const std::string& name) {
  std::string out;
  for (const char c : name.substr(name.find_last_of('/') + 1)) {
    out.push_back(static_cast<uint8_t>(c) < 0x20 || c == 0x7f ? '?' : c);
  }
  return out.empty() ? "file" : out;
}

class Import final : public grpc::ServerReadReactor<v1::ImportRotationChunk>, public SharedCall {
 public:
  Import(RpcContext* context, const ImportCall& import) : SharedCall(context), import_(import) {
    const absl::Status allowed =
        CheckAdminPeer(import_.call->peer(), context_->config.listen.admin);
    if (!allowed.ok()) {
      End(allowed);
    } else if (import_.under_way->fetch_add(1) != 0) {
      import_.under_way->fetch_sub(1);
      End(absl::ResourceExhaustedError("another import is under way: try again"));
    } else {
      counted_ = true;
      SetTimer(kChunkWaitUs);
      StartRead(&chunk_);
    }
  }

  void OnReadDone(bool ok) override {
    if (finished()) return;
    if (!ok) {
      if (import_.call->IsCancelled()) return End(absl::CancelledError("cancelled"));
      return Submit();
    }
    const absl::Status status = Take();
    if (!status.ok()) return End(status);
    SetTimer(kChunkWaitUs);
    StartRead(&chunk_);
  }
  void OnDone() override {
    CancelTimer();
    Unref();
  }

 private:
  void OnTimer() override { End(absl::DeadlineExceededError("the files did not arrive in time")); }
  void End(const absl::Status& status) {
    if (!TakeFinish()) return;
    if (counted_) import_.under_way->fetch_sub(1);
    Finish(ToGrpc(status));
  }

  absl::Status TakeHeader() {
    const v1::ImportRotationHeader& header = chunk_.header();
    const auto count = static_cast<size_t>(header.file_bytes_size());
    if (count == 0 || count > kFilesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(count, " files: give one flat file, or a K and a V file"));
    }
    files_.model = header.model();
    files_.revision = header.revision();
    files_.provenance = header.provenance();
    uint64_t total = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bytes = header.file_bytes(static_cast<int>(i));
      if (bytes == 0 || bytes > kImportBytesMax - total) {
        return absl::InvalidArgumentError(absl::StrCat(
            "file ", i + 1, ": ", bytes, " bytes; all together at most ", kImportBytesMax));
      }
      total += bytes;
      sizes_.push_back(bytes);
      const bool named = static_cast<int>(i) < header.file_names_size();
      const std::string name =
          named ? header.file_names(static_cast<int>(i)).substr(0, kFileNameBytesMax)
                : absl::StrCat("file ", i + 1);
      files_.names.push_back(SafeName(name));
    }
    files_.contents.resize(count);
    return absl::OkStatus();
  }

  absl::Status Take() {
    if (sizes_.empty()) {
      if (!chunk_.has_header()) {
        return absl::InvalidArgumentError("header: missing in the first chunk");
      }
      CRUMB_TRY(TakeHeader());
    } else if (chunk_.has_header()) {
      return absl::InvalidArgumentError("header: in the first chunk only");
    }
    if (chunk_.data().size() > kChunkBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("data: a chunk of ", chunk_.data().size(),
                                                     " bytes; at most ", kChunkBytesMax));
    }
    absl::string_view data = chunk_.data();
    while (!data.empty()) {
      if (at_ == sizes_.size()) {
        return absl::InvalidArgumentError("data: more than file_bytes says");
      }
      std::string& content = files_.contents[at_];
      const size_t take = std::min<uint64_t>(data.size(), sizes_[at_] - content.size());
      content.append(data.data(), take);
      data.remove_prefix(take);
      if (content.size() == sizes_[at_]) ++at_;
    }
    return absl::OkStatus();
  }

  void Submit() {
    if (sizes_.empty() || at_ != sizes_.size()) {
      return End(absl::InvalidArgumentError("the stream ended before the files did"));
    }
    CancelTimer();
    Ref();  // the control thread's
    const bool posted = context_->control.Post([this] {
      Store();
      Unref();
    });
    if (posted) return;
    End(absl::ResourceExhaustedError(kBusyMessage));
    Unref();
  }

  void Store() {
    if (finished()) return;
    const auto set = ParseRotationFiles(files_);
    absl::Status status = set.status();
    if (status.ok()) status = context_->catalog.PutRotation(*set);
    if (!TakeFinish()) return;
    import_.under_way->fetch_sub(1);
    if (status.ok()) {
      *import_.reply = ToProto(**set);
      context_->log.Info("rotation set imported", {{"hash", Hex((*set)->hash())},
                                                   {"model", (*set)->contents().model},
                                                   {"revision", (*set)->contents().revision}});
    }
    Finish(ToGrpc(status));
  }

  const ImportCall import_;
  bool counted_ = false;
  v1::ImportRotationChunk chunk_;
  RotationFiles files_;
  std::vector<uint64_t> sizes_;
  size_t at_ = 0;  // file being received
};

class Export final : public FileStream<v1::DataChunk> {
 public:
  Export(RpcContext* context, grpc::CallbackServerContext* call, const std::string& prefix)
      : FileStream(context, call), prefix_(prefix) {
    const absl::Status allowed = CheckAdminPeer(call_->peer(), context_->config.listen.admin);
    allowed.ok() ? Start() : End(allowed);
  }

 private:
  void Load() override {
    const absl::StatusOr<CatalogRotation> found = context_->catalog.FindRotation(prefix_);
    if (!found.ok()) return End(found.status());
    const auto set = context_->catalog.LoadRotation(found->hash);
    if (!set.ok()) return End(set.status());
    content_ = (*set)->Serialize();
    WriteNext();
  }

  const std::string prefix_;
};

}  // namespace

grpc::ServerReadReactor<v1::ImportRotationChunk>* StartImport(RpcContext* context,
                                                              const ImportCall& import) {
  return new Import(context, import);  // deletes itself
}

grpc::ServerWriteReactor<v1::DataChunk>* StartExport(RpcContext* context,
                                                     grpc::CallbackServerContext* call,
                                                     const std::string& hash_prefix) {
  return new Export(context, call, hash_prefix);  // deletes itself
}

v1::RotationInfo ToProto(const RotationSet& set) {
  const RotationSet::Contents& contents = set.contents();
  v1::RotationInfo info;
  info.set_hash(set.hash().data(), set.hash().size());
  info.set_model(contents.model);
  info.set_revision(contents.revision);
  info.set_objective(contents.objective);
  info.set_provenance(contents.provenance);
  info.set_gamma(contents.gamma);
  bool moments = !contents.layers.empty();
  bool means = !contents.layers.empty();
  for (const RotationLayer& layer : contents.layers) {
    moments = moments && !layer.query_moment.empty();
    means = means && !layer.k_mean.empty();
    v1::RotationLayerInfo* out = info.add_layers();
    out->set_layer_id(layer.layer_id);
    out->set_k_heads(layer.k.heads);
    out->set_k_dim(layer.k.dim);
    const Sha256 k_hash = RotationSet::MatrixHash(layer.k.matrix);
    out->set_k_hash(k_hash.data(), k_hash.size());
    out->set_v_heads(layer.v.heads);
    out->set_v_dim(layer.v.dim);
    const Sha256 v_hash = RotationSet::MatrixHash(layer.v.matrix);
    out->set_v_hash(v_hash.data(), v_hash.size());
  }
  info.set_has_moments(moments);
  info.set_has_means(means);
  return info;
}

absl::Status DescribeRotations(Catalog* catalog, const std::string& prefix,
                               v1::ListRotationsReply* reply) {
  if (!prefix.empty()) {
    CRUMB_ASSIGN(const CatalogRotation found, catalog->FindRotation(prefix));
    CRUMB_ASSIGN(const std::shared_ptr<const RotationSet> set, catalog->LoadRotation(found.hash));
    *reply->add_rotations() = ToProto(*set);
    return absl::OkStatus();
  }
  for (const CatalogRotation& rotation : catalog->rotations()) {
    const auto set = catalog->LoadRotation(rotation.hash);
    if (set.ok()) {
      *reply->add_rotations() = ToProto(**set);
      continue;
    }
    // A damaged file must not hide the others.
    v1::RotationInfo* info = reply->add_rotations();
    info->set_hash(rotation.hash.data(), rotation.hash.size());
    info->set_model(rotation.model);
    info->set_revision(rotation.revision);
    info->set_provenance(absl::StrCat("damaged: ", std::string(set.status().message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const RotationSet>> ParseRotationFiles(const RotationFiles& files) {
  if (files.contents.size() == 1) {
    if (files.contents[0].compare(0, kZipMagicBytes, kZipMagic) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(files.names[0], ": a RotationZoo file has K or V alone: give both"));
    }
    absl::StatusOr<std::shared_ptr<const RotationSet>> set =
        RotationSet::Parse(AsBytes(files.contents[0]));
    if (!set.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(files.names[0], ": ", std::string(set.status().message())));
    }
    const RotationSet::Contents& contents = (*set)->contents();
    if ((!files.model.empty() && files.model != contents.model) ||
        (!files.revision.empty() && files.revision != contents.revision)) {
      return absl::InvalidArgumentError(absl::StrCat(files.names[0], ": is for ", contents.model,
                                                     " at ", contents.revision, ", not for ",
                                                     files.model, " at ", files.revision));
    }
    return set;
  }
  CRUMB_ASSIGN(const PtRotationFile k, ParsePtRotation(AsBytes(files.contents[0]), files.names[0]));
  CRUMB_ASSIGN(const PtRotationFile v, ParsePtRotation(AsBytes(files.contents[1]), files.names[1]));
  CombineOptions options{
      .model = files.model, .revision = files.revision, .note = files.provenance};
  CRUMB_ASSIGN(RotationSet::Contents contents, CombinePtFiles(k, v, options));
  return RotationSet::Make(std::move(contents));
}

}  // namespace crumb
