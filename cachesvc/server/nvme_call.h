// Admin.ResizeNvme: the file's length is changed on the control thread, the log on the shard. Up:
// file, then log; down: log, then file. Answers once, also when the daemon stops meanwhile.
#ifndef CRUMB_CACHESVC_SERVER_NVME_CALL_H_
#define CRUMB_CACHESVC_SERVER_NVME_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "cachesvc/server/rpc_context.h"
#include "crumb/v1/cache.grpc.pb.h"

namespace crumb {

struct NvmeResize {
  grpc::ServerUnaryReactor* reactor = nullptr;
  const v1::ResizeNvmeRequest* request = nullptr;
  v1::ResizeNvmeReply* reply = nullptr;
  std::atomic<bool>* under_way = nullptr;  // one at a time
};

void StartNvmeResize(RpcContext* context, const NvmeResize& call);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_NVME_CALL_H_
