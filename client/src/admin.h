// Operator verbs for tools: status, flush, rotation sets, evaluations. Plain types, so that a
// command needs no protobuf. Synchronous; one thread.
#ifndef CRUMB_CLIENT_SRC_ADMIN_H_
#define CRUMB_CLIENT_SRC_ADMIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/src/channel.h"

namespace crumb::client {

struct RotationLayerSummary {
  uint32_t layer_id = 0;
  uint32_t k_heads = 0, k_dim = 0, v_heads = 0, v_dim = 0;
  std::string k_hash_hex, v_hash_hex;
};
struct RotationSummary {
  std::string hash_hex, model, revision, objective, provenance;
  float gamma = 0;
  bool has_moments = false, has_means = false;
  std::vector<RotationLayerSummary> layers;
};
struct RotationFiles {
  std::string model, revision, provenance;
  std::vector<std::string> paths;  // one flat file, or a K and a V file
};
// What a run of a model measured with packed pages, relative to raw ones.
struct EvaluationSummary {
  std::string model, revision, rotation, codec, date, source;
  double perplexity_change = 0;  // 0.005: half a per cent worse
  double kl = 0;                 // nats a token
  uint64_t tokens = 0;
  bool within_bounds = false;  // answer: good enough for 2-bit codecs at this daemon
};
// What the daemon says of itself to anybody.
struct DaemonFacts {
  std::string version, node, ucx_transports;
  uint32_t wire_version = 0, page_format_version = 0;
  bool ucx = false;
};

struct NvmeSize {
  uint64_t bytes = 0, bytes_before = 0;
  uint64_t configured_bytes = 0;  // which the next start goes back to
};

class Admin {
 public:
  static absl::StatusOr<std::unique_ptr<Admin>> Open(const ChannelOptions& options,
                                                     uint32_t deadline_ms);
  ~Admin();

  absl::StatusOr<DaemonFacts> Facts();
  absl::StatusOr<std::string> StatusJson();
  // Empty fields match everything. Returns when the forgetting is durable.
  absl::Status Flush(const std::string& layout_hash_hex, const std::string& tenant);
  // Another size of the NVMe tier. Returns when it is durable.
  absl::StatusOr<NvmeSize> ResizeNvme(uint64_t bytes);
  absl::StatusOr<RotationSummary> ImportRotation(const RotationFiles& files);
  absl::StatusOr<std::vector<RotationSummary>> ListRotations(const std::string& hash_prefix);
  // What was kept, with the whole hash.
  absl::StatusOr<EvaluationSummary> RecordEvaluation(const EvaluationSummary& evaluation);
  absl::StatusOr<std::vector<EvaluationSummary>> ListEvaluations();
  // Hands the flat file to `sink` piece by piece; a status from it ends the call.
  absl::Status ExportRotation(const std::string& hash_prefix,
                              const std::function<absl::Status(const std::string&)>& sink);

 private:
  struct Impl;
  explicit Admin(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_ADMIN_H_
