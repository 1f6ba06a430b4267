// A client of the daemon on the bare stubs, as any program in any language would be one. One
// thread.
#ifndef CRUMB_TESTS_INTEG_SERVER_RPC_WORKER_H_
#define CRUMB_TESTS_INTEG_SERVER_RPC_WORKER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "crumb/v1/cache.grpc.pb.h"

namespace crumb::testing {

// Two layers, two kv heads, dim 64, 64 tokens, bf16: 65536 bytes raw.
v1::Identity SmallModel(const std::string& name_space = "");
inline constexpr size_t kSmallPageBytes = 2 * 2 * 2 * 64 * 64 * 2;
// Reproducible finite bf16 values, roughly normal.
std::string RandomPage(uint64_t seed, size_t bytes = kSmallPageBytes);
// Squared error over energy of two bf16 pages.
double RelativeError(const std::string& a, const std::string& b);

struct PutOptions {
  v1::Form form = v1::FORM_RAW;
  bool durable = false;
  uint32_t token_count = 0;
  uint32_t part = 0;
  int64_t token_start = -1;     // unknown
  size_t chunk_bytes = 30'000;  // on purpose no divisor of anything
  uint32_t deadline_ms = 10'000;
};

struct Got {
  grpc::Status status;
  v1::GetHeader header;
  std::string data;
  bool ok() const { return status.ok() && header.result() == v1::RESULT_OK; }
};

class RpcWorker {
 public:
  explicit RpcWorker(const std::string& place);

  // Hello; false if the daemon does not answer.
  bool Connect();
  grpc::Status Register(const v1::Identity& identity, const std::string& codec = "",
                        bool keep_non_finite = false);

  grpc::Status Put(const std::string& key, const std::string& page, v1::PutReply* reply,
                   const PutOptions& options = {});
  // The result alone; RESULT_INVALID if the call failed.
  v1::Result Put(const std::string& key, const std::string& page, const PutOptions& options = {});
  Got Get(const std::string& key, v1::Form form = v1::FORM_RAW, uint32_t wait_ms = 0);
  v1::LookupReply Lookup(const std::vector<std::string>& keys);
  v1::Result Delete(const std::string& key);
  v1::Result Pin(const std::string& key, uint32_t ttl_ms);
  std::string StatusJson();

  // A header for this session and layout.
  v1::PutHeader Header(const std::string& key, uint64_t value_bytes = kSmallPageBytes) const;

  v1::Cache::Stub& cache() { return *cache_; }
  v1::Admin::Stub& admin() { return *admin_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  uint64_t session() const { return hello_.session(); }
  const v1::HelloReply& hello() const { return hello_; }
  const v1::LayoutInfo& layout() const { return layout_; }
  void set_layout(const v1::LayoutInfo& layout) { layout_ = layout; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cache::Stub> cache_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  v1::HelloReply hello_;
  v1::LayoutInfo layout_;
};

// A context with a deadline, so that no test can hang.
std::unique_ptr<grpc::ClientContext> Context(int limit_ms = 20'000);

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_INTEG_SERVER_RPC_WORKER_H_
