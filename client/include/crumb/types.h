// The vocabulary of the client library: codes, layouts, blocks, requests and results. Plain data
// that names no third-party type; numbers equal those of the wire and never change.
#ifndef CRUMB_TYPES_H_
#define CRUMB_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#define CRUMB_API __attribute__((visibility("default")))

namespace crumb::client {

enum class Code : uint8_t {
  kOk = 0,
  kMiss,         // not there, or no longer
  kBusy,         // a queue is full, or slots are still owned by an unanswered request
  kNoSpace,      // the pool is full of pinned pages
  kQuota,        // the tenant's byte quota is used up
  kTimeout,      // the deadline passed
  kInvalid,      // malformed or out of range; refused with a message where it is found here
  kUnavailable,  // the daemon is gone, drains, or does not know this session: Reconnect
  kCorrupt,      // what arrived does not match its checksum: treat as a miss
  kIo,
  kExists,  // put: the key already holds something at least as good; a success
  kCancelled,
  kNonFinite,    // put: NaN or Inf where the layout does not allow it
  kMismatch,     // a packed page that does not fit the layout or the codec
  kNotDurable,   // put: stored, but the durable write asked for did not happen
  kDenied = 64,  // control calls: the daemon does not know or does not trust the caller
};
CRUMB_API const char* ToString(Code code);

// Outcome of a control call. `code` is kOk or why not; `message` names the thing and the remedy.
struct Status {
  Code code = Code::kOk;
  std::string message;
  bool ok() const { return code == Code::kOk; }
};

// Raw: the layout's dtype; packed: the codec's payload; page: 128-byte header and payload.
enum class Form : uint8_t { kRaw = 0, kPacked = 1, kPage = 2 };
enum class Tier : uint8_t { kNone = 0, kHbm, kDram, kNvme, kPeer };
enum class Precision : uint8_t { kRaw = 0, kInt4, kK3V2, kInt2 };
enum class Provenance : uint8_t { kPrefill = 0, kDecode, kTranscoded };
CRUMB_API const char* ToString(Tier tier);
CRUMB_API const char* ToString(Precision precision);

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
// Valid in the Client that made it, also after Reconnect.
struct Layout {
  uint32_t handle = 0;
  std::string name, hash_hex, codec, codec_note, rotation;
  std::string windows;  // "64/256 (source)": sink and recent tokens that stay raw; or off
  std::vector<uint64_t> raw_bytes, payload_bytes;  // per part
  uint32_t page_tokens = 0;
  std::string model, revision, dtype;
};

// Paged tensors: for every layer of the layout in order, K then V (no V where v_dim is 0), element
// [slot][token][head][0] lies at base + slot * slot_stride + token * token_stride + head *
// head_stride. `base` and `bytes` give the whole tensor; one memory may serve several.
struct TensorMemory {
  void* base = nullptr;
  uint64_t bytes = 0;
  uint64_t slot_stride = 0, token_stride = 0, head_stride = 0;
};

// Where kernels pack and unpack pages of GPU memory; kAuto: as the daemon says (docs/gpu.md).
enum class CodecPlace : uint8_t { kAuto = 0, kDaemon, kWorker };

// GPU memory that is lent: `tensors`, or, where that is empty, contiguous pages. Addresses are the
// device's; all of one GPU, each range inside of one allocation.
struct GpuRegions {
  std::vector<TensorMemory> tensors;
  uint32_t slots = 0, tokens_per_slot = 0;  // of tensors: a block names page_tokens / this slots
  // Tensor parallel: the tensors hold these of the layout's head groups; count 0: all.
  uint32_t head_group_first = 0, head_group_count = 0;
  void* base = nullptr;  // contiguous: slots of slot_bytes, as LendPages says
  uint64_t bytes = 0, slot_bytes = 0;
  CodecPlace place = CodecPlace::kAuto;
};
struct GpuRegionsInfo {
  CodecPlace place = CodecPlace::kDaemon;
  std::string note;  // why it is not the one that was meant
};
struct Block {
  std::string_view key;               // external key, 1..256 bytes
  std::string_view parent;            // empty = none named
  uint32_t token_start = 0xffffffff;  // unknown
  uint32_t token_count = 0;           // 0 = a full page
  uint32_t part = 0;
  uint32_t slot = 0;                // slot in the lent memory
  uint32_t value_bytes = 0;         // put of packed or page form: length at the slot
  std::span<const uint32_t> slots;  // lent tensors with several slots per block; else empty
  Provenance provenance = Provenance::kPrefill;
};
struct Result {
  Code code = Code::kMiss;
  Tier tier = Tier::kNone;  // prefetch: where the page is now, whatever the code
  Precision precision = Precision::kRaw;
  uint8_t lossy_depth = 0;
  uint32_t value_bytes = 0;  // get: what lies at the slot now
  std::string note;          // where more is known than the code says, e.g. where a NaN is
};
using Ticket = uint64_t;  // 0 = refused: see the Status
struct Completion {
  Ticket ticket = 0;
  Code code = Code::kOk;  // of the request as a whole: kOk, kTimeout, kCancelled, kUnavailable
  std::vector<Result> results;
  uint32_t prefix = 0;  // leading results that are kOk
  // Lookup: tokens at the end of that prefix that are raw. OSCAR's rule: use a prefix of n tokens
  // up to n - recent unless its tail is raw, and compute the rest anew.
  uint32_t raw_tail_tokens = 0;
};
struct RequestOptions {
  Form form = Form::kRaw;
  bool durable = false;      // put: answer after the durable write
  bool stop_at_gap = false;  // lookup
  uint32_t wait_ms = 0;      // get: wait so long for a put of the key
  uint32_t deadline_ms = 0;  // 0 = Options::deadline_ms
  bool verify = true;        // get: hash what arrived, kCorrupt if it is not what was sent
  // GPU region sets: a cudaStream_t of theirs; null: the legacy default stream. The daemon reads (a
  // put) or writes (a get) behind the work that is on it when Submit* is called. It must exist
  // until the request's completion is drained. `verify` has no effect where the daemon unpacks.
  void* stream = nullptr;
};

}  // namespace crumb::client

#endif  // CRUMB_TYPES_H_
