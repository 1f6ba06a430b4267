// FileStream: a call that answers with bytes that the control thread makes, in chunks. A reader
// that stops reading is given up. Derived calls load on the control thread and say what the first
// chunk has besides. Deletes itself when gRPC and the control thread are done with it.
#ifndef CRUMB_CACHESVC_SERVER_FILE_STREAM_H_
#define CRUMB_CACHESVC_SERVER_FILE_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <string>

#include "cachesvc/server/rpc_context.h"
#include "cachesvc/server/rpc_convert.h"

namespace crumb {

template <typename Chunk>
class FileStream : public grpc::ServerWriteReactor<Chunk>, public SharedCall {
 public:
  FileStream(RpcContext* context, grpc::CallbackServerContext* call)
      : SharedCall(context), call_(call) {}
  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client went away"));
    if (sent_ == content_.size()) return End(absl::OkStatus());
    WriteNext();
  }
  void OnDone() override {
    CancelTimer();
    Unref();
  }

 protected:
  // Runs Load on the control thread, or ends the call.
  void Start() {
    Ref();  // the control thread's
    const bool posted = context_->control.Post([this] {
      Load();
      Unref();
    });
    if (posted) return;
    End(absl::ResourceExhaustedError(kBusyMessage));
    Unref();
  }
  // Makes content_, then calls WriteNext or Write; or calls End.
  virtual void Load() = 0;
  void End(const absl::Status& status) {
    if (TakeFinish()) this->Finish(ToGrpc(status));
  }
  void WriteNext() {
    const size_t bytes = std::min<size_t>(kChunkBytesMax, content_.size() - sent_);
    chunk_.Clear();  // what the first had besides
    chunk_.set_data(content_.data() + sent_, bytes);
    sent_ += bytes;
    Write();
  }
  void Write() {
    SetTimer(kReaderWaitUs);
    this->StartWrite(&chunk_);
  }

  grpc::CallbackServerContext* const call_;
  Chunk chunk_;
  std::string content_;

 private:
  static constexpr uint64_t kReaderWaitUs = 10'000'000;
  void OnTimer() override { call_->TryCancel(); }

  size_t sent_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_FILE_STREAM_H_
