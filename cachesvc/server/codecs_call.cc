// One header, then files in chunks; a reader that stops reading is given up.
#include "cachesvc/server/codecs_call.h"

#include <algorithm>
#include <string>

#include "cachesvc/server/rpc_convert.h"

namespace crumb {
namespace {

constexpr uint64_t kChunkWaitUs = 10'000'000;

class GetCodecsCall final : public grpc::ServerWriteReactor<v1::CodecsChunk>, public SharedCall {
 public:
  GetCodecsCall(RpcContext* context, grpc::CallbackServerContext* call,
                const v1::GetCodecsRequest& request)
      : SharedCall(context), call_(call) {
    const absl::StatusOr<CallTarget> target =
        FindTarget(context, request.session(), request.layout_handle());
    if (!target.ok()) {
      End(target.status());
      return;
    }
    Ref();  // the control thread's
    const bool posted = context_->control.Post([this, handle = request.layout_handle()] {
      Load(handle);
      Unref();
    });
    if (posted) return;
    End(absl::ResourceExhaustedError(kBusyMessage));
    Unref();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client went away"));
    if (sent_ == files_.size()) return End(absl::OkStatus());
    WriteNext();
  }
  void OnDone() override {
    CancelTimer();
    Unref();
  }

 private:
  void OnTimer() override { call_->TryCancel(); }
  void End(const absl::Status& status) {
    if (TakeFinish()) Finish(ToGrpc(status));
  }
  void Load(uint32_t handle) {
    const absl::StatusOr<Registrar::Codecs> codecs = context_->registrar.CodecsOf(handle);
    if (!codecs.ok()) return End(codecs.status());
    v1::CodecsHeader* header = chunk_.mutable_header();
    header->set_put(codecs->put.Canonical());
    for (const CodecDescriptor& reader : codecs->readers) {
      header->add_readers(reader.Canonical());
    }
    header->set_effort(ToString(codecs->effort));
    header->set_packs_known(codecs->packs_known);
    header->set_packs_unknown(codecs->packs_unknown);
    for (const std::shared_ptr<const RotationSet>& set : codecs->rotations) {
      const std::string file = set->Serialize();
      header->add_rotation_bytes(file.size());
      files_ += file;
    }
    Write();
  }
  void WriteNext() {
    chunk_.clear_header();
    const size_t bytes = std::min<size_t>(kChunkBytesMax, files_.size() - sent_);
    chunk_.set_data(files_.data() + sent_, bytes);
    sent_ += bytes;
    Write();
  }
  void Write() {
    SetTimer(kChunkWaitUs);
    StartWrite(&chunk_);
  }

  grpc::CallbackServerContext* const call_;
  v1::CodecsChunk chunk_;
  std::string files_;
  size_t sent_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<v1::CodecsChunk>* StartGetCodecs(RpcContext* context,
                                                          grpc::CallbackServerContext* call,
                                                          const v1::GetCodecsRequest& request) {
  return new GetCodecsCall(context, call, request);  // deletes itself
}

}  // namespace crumb
