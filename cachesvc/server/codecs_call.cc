// One header, then files in chunks.
#include "cachesvc/server/codecs_call.h"

#include <string>

#include "cachesvc/server/file_stream.h"
#include "cachesvc/server/rpc_convert.h"

namespace crumb {
namespace {

class GetCodecsCall final : public FileStream<v1::CodecsChunk> {
 public:
  GetCodecsCall(RpcContext* context, grpc::CallbackServerContext* call,
                const v1::GetCodecsRequest& request)
      : FileStream(context, call), handle_(request.layout_handle()) {
    const absl::StatusOr<CallTarget> target =
        FindTarget(context, request.session(), request.layout_handle());
    target.ok() ? Start() : End(target.status());
  }

 private:
  void Load() override {
    const absl::StatusOr<Registrar::Codecs> codecs = context_->registrar.CodecsOf(handle_);
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
      content_ += file;
    }
    Write();
  }

  const uint32_t handle_;
};

}  // namespace

grpc::ServerWriteReactor<v1::CodecsChunk>* StartGetCodecs(RpcContext* context,
                                                          grpc::CallbackServerContext* call,
                                                          const v1::GetCodecsRequest& request) {
  return new GetCodecsCall(context, call, request);  // deletes itself
}

}  // namespace crumb
