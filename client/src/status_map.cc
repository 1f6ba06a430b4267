// The tables of status_map.h.
#include "client/src/status_map.h"

#include <string>

#include "absl/strings/match.h"

namespace crumb::client {

Code CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return Code::kOk;
    case absl::StatusCode::kNotFound:
      return Code::kMiss;
    case absl::StatusCode::kDeadlineExceeded:
      return Code::kTimeout;
    case absl::StatusCode::kUnavailable:
      return Code::kUnavailable;
    case absl::StatusCode::kResourceExhausted:
      return Code::kBusy;
    case absl::StatusCode::kAlreadyExists:
      return Code::kExists;
    case absl::StatusCode::kDataLoss:
      return Code::kCorrupt;
    case absl::StatusCode::kFailedPrecondition:
      return Code::kMismatch;
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return Code::kCancelled;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return Code::kDenied;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return Code::kInvalid;
    default:
      return Code::kIo;
  }
}

Status ToStatus(const absl::Status& status) {
  return {CodeOf(status), std::string(status.message())};
}

absl::Status FromGrpc(const grpc::Status& status) {
  // The two libraries number their codes alike (google.rpc.Code).
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

Code CodeOf(BlockResult result) {
  const auto number = static_cast<int>(result);
  return number >= 0 && number < kBlockResultCount ? static_cast<Code>(number) : Code::kInvalid;
}

BlockResult ResultOf(const grpc::Status& status) {
  const Code code = SessionIsLost(status) ? Code::kUnavailable : CodeOf(FromGrpc(status));
  if (code == Code::kDenied) return BlockResult::kInvalid;
  return static_cast<BlockResult>(code);
}

bool SessionIsLost(const grpc::Status& status) {
  return (status.error_code() == grpc::StatusCode::NOT_FOUND ||
          status.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
          status.error_code() == grpc::StatusCode::UNAUTHENTICATED) &&
         absl::StrContains(status.error_message(), "session");
}

}  // namespace crumb::client
