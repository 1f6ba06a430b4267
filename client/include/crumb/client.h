// crumb::Client: put, get, look up and delete KV pages in a crumbd. One Client per worker thread;
// no call may be made from two threads at once. No third-party type appears here.
//
// Memory: lend it once (LendPages / LendTensors), then name slots in it. The daemon reads and
// writes lent memory itself; from Submit* until its result is drained, the named slots belong to
// the request, also after a timeout.
#ifndef CRUMB_CLIENT_H_
#define CRUMB_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace crumb::client {

enum class Code : uint8_t {
  kOk = 0,
  kMiss,
  kBusy,
  kNoSpace,
  kQuota,
  kTimeout,
  kInvalid,
  kUnavailable,
  kCorrupt,
  kIo,
  kExists,
  kCancelled,
  kNonFinite,
  kMismatch,
  kNotDurable,
};
const char* ToString(Code code);

// Outcome of a control call. `code` is kOk or why not; `message` names the thing and the remedy.
struct Status {
  Code code = Code::kOk;
  std::string message;
  bool ok() const { return code == Code::kOk; }
};

enum class DataPlane : uint8_t { kAuto, kUcx, kGrpc };
enum class Form : uint8_t { kRaw = 0, kPacked = 1, kPage = 2 };
enum class Tier : uint8_t { kNone = 0, kHbm, kDram, kNvme, kPeer };
enum class Precision : uint8_t { kRaw = 0, kInt4, kK3V2, kInt2 };

struct Options {
  std::string server;  // "unix:PATH" or "HOST:PORT"; empty = CRUMB_SERVER, then the usual sockets
  DataPlane data_plane = DataPlane::kAuto;  // kAuto: UCX if the daemon offers it, else gRPC
  uint32_t deadline_ms = 5000;
  uint32_t requests_in_flight_max = 64;
  std::string ucx_tls;          // empty = UCX's choice
  std::string ucx_net_devices;  // empty = loopback
};

struct LayerGroup {
  std::string kind = "gqa";
  uint32_t kv_heads = 0, k_dim = 0, v_dim = 0, window = 0;
  std::vector<uint32_t> layer_ids;
};
struct LayoutSpec {
  std::string name, model, revision, weights_dtype = "bf16", dtype = "bf16", name_space;
  std::string rope_kind = "rope", rope_extra;
  double rope_theta = 10000.0, rope_factor = 1.0;
  uint64_t rope_original_positions = 0;
  bool k_before_rope = false;
  std::vector<LayerGroup> groups;
  uint32_t page_tokens = 64, head_groups = 1;
  std::vector<uint32_t> part_layer_counts;
  std::string codec, rotation, effort, metadata;  // empty = the daemon's choice
  bool keep_non_finite_raw = false;
};
struct Layout {
  uint32_t handle = 0;
  std::string name, hash_hex, codec, codec_note, rotation;
  std::vector<uint64_t> raw_bytes, payload_bytes;  // per part
};

struct Block {
  std::string_view key;               // external key, 1..256 bytes
  std::string_view parent;            // empty = none named
  uint32_t token_start = 0xffffffff;  // unknown
  uint32_t token_count = 0;           // 0 = a full page
  uint32_t part = 0;
  uint32_t slot = 0;         // first slot in the lent memory
  uint32_t value_bytes = 0;  // put of packed or page form: length at the slot
};
struct Result {
  Code code = Code::kMiss;
  Tier tier = Tier::kNone;
  Precision precision = Precision::kRaw;
  uint8_t lossy_depth = 0;
  uint32_t value_bytes = 0;
};
using Ticket = uint64_t;  // 0 = refused: see the Status
struct Completion {
  Ticket ticket = 0;
  Code code = Code::kOk;  // of the request as a whole
  std::vector<Result> results;
};
struct RequestOptions {
  Form form = Form::kRaw;
  bool durable = false;      // put
  bool stop_at_gap = false;  // lookup
  uint32_t wait_ms = 0;      // get: wait for a put of the key
  uint32_t deadline_ms = 0;  // 0 = Options::deadline_ms
  bool verify = true;        // get: hash what arrived
};

class Client {
 public:
  static Status Connect(const Options& options, std::unique_ptr<Client>* out);
  virtual ~Client() = default;

  virtual Status RegisterLayout(const LayoutSpec& spec, Layout* out) = 0;
  virtual Status ListLayouts(std::vector<Layout>* out) = 0;

  // Lends `bytes` at `base` as slots of `slot_bytes` each; `region_set` names them later.
  virtual Status LendPages(const Layout& layout, void* base, uint64_t bytes, uint64_t slot_bytes,
                           uint32_t* region_set) = 0;
  virtual Status Unlend(uint32_t region_set) = 0;

  // Asynchronous: queue, then Drain. Refused at once when requests_in_flight_max are out.
  virtual Status SubmitPut(const Layout& layout, uint32_t region_set,
                           const std::vector<Block>& blocks, const RequestOptions& options,
                           Ticket* ticket) = 0;
  virtual Status SubmitGet(const Layout& layout, uint32_t region_set,
                           const std::vector<Block>& blocks, const RequestOptions& options,
                           Ticket* ticket) = 0;
  virtual Status SubmitLookup(const Layout& layout, const std::vector<Block>& blocks,
                              const RequestOptions& options, Ticket* ticket) = 0;
  virtual Status SubmitDelete(const Layout& layout, const std::vector<Block>& blocks,
                              Ticket* ticket) = 0;
  // Progress; appends finished requests. Waits up to timeout_ms for the first one.
  virtual size_t Drain(uint32_t timeout_ms, std::vector<Completion>* out) = 0;
  // Readable when Drain may have something.
  virtual int event_fd() const = 0;
  // "ucx 1.13.1 (posix, cma)" or "grpc".
  virtual std::string data_plane() const = 0;

  // Control verbs, synchronous.
  virtual Status Pin(const Layout& layout, const std::vector<Block>& blocks, uint32_t ttl_ms,
                     std::vector<Result>* out) = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_H_
