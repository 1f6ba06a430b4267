// PageJob: the work on page bytes that the shard hands to the device queue: encoding, decoding,
// verifying, hashing. A job touches only the memory and the immutable codec named in it. Filled by
// the shard, run once on a worker, read by the shard after its token came back.
#ifndef CRUMB_CACHESVC_CORE_PAGE_JOB_H_
#define CRUMB_CACHESVC_CORE_PAGE_JOB_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/page_header.h"
#include "cachesvc/net/mapped_memory.h"
#include "gpu/codec/page_codec.h"
#include "gpu/device/device_queue.h"
#include "storage/segment/segment_log.h"

namespace crumb::core {

// Working memory of codecs, one per worker, made by the worker that first needs it.
class WorkerScratch {
 public:
  explicit WorkerScratch(uint32_t workers) : scratch_(workers) {}
  PageCodec::Scratch* Get(uint32_t worker, const PageCodec& codec) {
    if (scratch_[worker] == nullptr) scratch_[worker] = codec.MakeScratch();
    return scratch_[worker].get();
  }

 private:
  std::vector<std::unique_ptr<PageCodec::Scratch>> scratch_;
};

enum class PageJobKind : uint8_t {
  kEncode,        // raw -> payload in page; seals `header` into page
  kDemote,        // the same from `source`, a stored raw page, which it verifies first
  kSeal,          // payload is in page, made by a GPU: seals `header` into page
  kAcceptPacked,  // payload is in page: checks it (through raw), seals `header` into page
  kAcceptPage,    // page came from outside: checks its checksum and payload (through raw)
  kDecode,        // verifies page, decodes payload to raw, hashes raw
  kHashPayload,   // verifies page, hashes the payload
  kCopyPage,      // verifies page, copies header (without stamp) and payload to raw, hashes that
  kVerify,        // page was read from NVMe: SegmentLog::VerifyRecord
  kFetch,         // lent memory -> page
};

struct PageJob {
  PageJobKind kind = PageJobKind::kEncode;
  Effort effort = Effort::kNormal;
  RawDtype dtype = RawDtype::kBf16;
  const PageCodec* codec = nullptr;
  WorkerScratch* scratch = nullptr;
  MutableBytes page;      // slot of the stored page
  MutableBytes raw;       // staging
  MutableBytes source;    // kDemote: slot of the raw page
  PageHeader header;      // put: what to seal; get: key, codec and length that the page must have;
                          // demote: key and raw length of the source, codec and flags wanted
  DiskLocation location;  // kVerify
  // Lent memory to copy from before anything else (puts), or to when all else is done (gets); null:
  // none. Its pieces lie in `local`: the stored page or staging.
  const MappedHold* lent = nullptr;
  MutableBytes local;
  bool keep_non_finite = false;  // NaN and Inf may be kept (raw codec only)

  // Results.
  BlockResult result = BlockResult::kOk;
  EncodeReport report;
  uint64_t value_hash = 0;
  uint64_t took_us = 0;     // set by the shard, time in the queue included
  bool lent_gone = false;   // its worker took the memory away
  uint64_t lent_bytes = 0;  // copied

  // A put's: lent memory is read.
  bool brings_bytes() const {
    return kind == PageJobKind::kEncode || kind == PageJobKind::kAcceptPacked ||
           kind == PageJobKind::kAcceptPage || kind == PageJobKind::kFetch;
  }
  // As against checking and copying.
  bool is_codec_work() const {
    if (kind == PageJobKind::kEncode) return codec->descriptor().kind != CodecKind::kRaw;
    return kind == PageJobKind::kDemote || kind == PageJobKind::kDecode ||
           kind == PageJobKind::kAcceptPacked || kind == PageJobKind::kAcceptPage;
  }
};

// DeviceJob::run; `arg` is a PageJob.
void RunPageJob(void* arg, uint32_t worker) noexcept;

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_PAGE_JOB_H_
