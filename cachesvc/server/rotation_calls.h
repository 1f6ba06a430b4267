// Rotation sets over gRPC: import (a flat file, or a K and a V file of RotationZoo), list, export.
// Files are parsed on the control thread; nothing of a file's content becomes a path.
#ifndef CRUMB_CACHESVC_SERVER_ROTATION_CALLS_H_
#define CRUMB_CACHESVC_SERVER_ROTATION_CALLS_H_

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <string>
#include <vector>

#include "cachesvc/server/rpc_context.h"
#include "crumb/v1/cache.pb.h"

namespace crumb {

inline constexpr uint64_t kImportBytesMax = 512ull << 20;  // of all files of one import

struct ImportCall {
  grpc::CallbackServerContext* call = nullptr;
  v1::RotationInfo* reply = nullptr;
  std::atomic<int>* under_way = nullptr;  // one at a time: an import holds its files in memory
};
grpc::ServerReadReactor<v1::ImportRotationChunk>* StartImport(RpcContext* context,
                                                              const ImportCall& import);

grpc::ServerWriteReactor<v1::DataChunk>* StartExport(RpcContext* context,
                                                     grpc::CallbackServerContext* call,
                                                     const std::string& hash_prefix);

// Control thread. Every set, or those whose hash starts with `prefix`.
absl::Status DescribeRotations(Catalog* catalog, const std::string& prefix,
                               v1::ListRotationsReply* reply);

// The set in `files`. INVALID_ARGUMENT says which file is wrong and how.
struct RotationFiles {
  std::string model;
  std::string revision;
  std::string provenance;
  std::vector<std::string> names;
  std::vector<std::string> contents;
};
absl::StatusOr<std::shared_ptr<const RotationSet>> ParseRotationFiles(const RotationFiles& files);

v1::RotationInfo ToProto(const RotationSet& set);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_ROTATION_CALLS_H_
