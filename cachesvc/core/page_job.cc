// Runs on workers. Everything read from a page is checked before use: what came from a client, a
// disk or a faulty DIMM ends as a result, never as a fault.
#include "cachesvc/core/page_job.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/net/guarded_copy.h"
#include "gpu/codec/finite_scan.h"

namespace crumb::core {
namespace {

MutableBytes PayloadOf(const PageJob& job, uint64_t bytes) {
  return job.page.subspan(kPageHeaderBytes, bytes);
}

// From lent memory into `local`. WHY before anything looks at the bytes: their worker may change
// them at any moment, what was checked must be what is kept.
void CopyIn(PageJob& job) {
  for (const MappedPiece& piece : job.lent->pieces) {
    uint8_t* to = job.local.data() + piece.local_offset;
    if (!GuardedCopy(to, piece.data, piece.bytes)) {
      job.lent_gone = true;
      return;
    }
    job.lent_bytes += piece.bytes;
  }
}

// The part of a piece that lies in `part`, whose first byte is at `start` of the value.
void CopyOutPart(PageJob& job, const MappedPiece& piece, Bytes part, uint64_t start) {
  const uint64_t end = start + part.size();
  const uint64_t first = std::max(piece.local_offset, start);
  const uint64_t last = std::min(piece.local_offset + piece.bytes, end);
  if (first >= last) return;
  uint8_t* to = piece.data + (first - piece.local_offset);
  if (!GuardedCopy(to, part.data() + (first - start), last - first)) job.lent_gone = true;
  job.lent_bytes += last - first;
}

// Head and body, one behind the other, to lent memory.
void CopyOut(PageJob& job, Bytes head, Bytes body) {
  if (job.lent == nullptr) return;
  for (const MappedPiece& piece : job.lent->pieces) {
    if (!head.empty()) CopyOutPart(job, piece, head, 0);
    CopyOutPart(job, piece, body, head.size());
    if (job.lent_gone) return;
  }
}

void SealInto(PageJob& job) {
  const uint64_t used = kPageHeaderBytes + job.header.payload_bytes;
  SealHeader(job.header, PayloadOf(job, job.header.payload_bytes));
  StoreHeader(job.header, job.page);
  std::memset(job.page.data() + used, 0, job.page.size() - used);
}

// True if the page in memory is still what was sealed. WHY not CheckPage: it reads the tier stamp
// too, which the shard may be rewriting at this moment.
bool Verify(PageJob& job, PageHeader* header) {
  constexpr size_t kChecksumAt = offsetof(PageHeader, checksum);
  job.result = BlockResult::kCorrupt;
  *header = PageHeader{};
  std::memcpy(static_cast<void*>(header), job.page.data(), offsetof(PageHeader, segment));
  if (CheckHeaderFields(*header) != PageCheck::kOk) return false;
  if (header->key != job.header.key || header->codec_id != job.header.codec_id) return false;
  if (header->payload_bytes != job.header.payload_bytes) return false;
  const Bytes sealed(reinterpret_cast<const uint8_t*>(header), kChecksumAt);
  if (Xxh3(sealed, PayloadOf(job, header->payload_bytes)) != header->checksum) return false;
  job.result = BlockResult::kOk;
  return true;
}

void EncodeFrom(PageJob& job, Bytes raw, uint32_t worker) {
  const uint32_t payload_bytes = job.codec->payload_bytes();
  job.header.payload_bytes = payload_bytes;
  job.report =
      job.codec->Encode(raw, job.header.token_count, job.effort, PayloadOf(job, payload_bytes),
                        job.scratch->Get(worker, *job.codec));
  job.result = job.report.result;
  const bool kept = job.keep_non_finite && job.codec->descriptor().kind == CodecKind::kRaw;
  if (job.result == BlockResult::kNonFinite && kept) {  // a lossy codec has written nothing
    job.header.flags |= kPageFlagNonFinite;
    job.result = BlockResult::kOk;
  }
  if (job.result == BlockResult::kOk && job.report.fits) SealInto(job);
}

void Encode(PageJob& job, uint32_t worker) { EncodeFrom(job, job.raw, worker); }

// REQUIRES: `source` holds a stored page. It must be the raw one of job.header.key, as it was
// sealed: whatever else lies there is corrupt. Encoding from a lossy page would be a lie.
void Demote(PageJob& job, uint32_t worker) {
  constexpr size_t kChecksumAt = offsetof(PageHeader, checksum);
  PageHeader raw{};
  std::memcpy(static_cast<void*>(&raw), job.source.data(), offsetof(PageHeader, segment));
  job.result = BlockResult::kCorrupt;
  if (CheckHeaderFields(raw) != PageCheck::kOk || raw.key != job.header.key) return;
  if (raw.payload_bytes != job.header.raw_bytes) return;
  const Bytes payload = job.source.subspan(kPageHeaderBytes, raw.payload_bytes);
  const Bytes sealed(reinterpret_cast<const uint8_t*>(&raw), kChecksumAt);
  if (Xxh3(sealed, payload) != raw.checksum) return;
  CRUMB_CHECK(raw.precision == Precision::kRaw);
  // The header of the page that a put would have made at once.
  const PageHeader wanted = job.header;
  job.header = raw;
  job.header.precision = wanted.precision;
  job.header.codec_id = wanted.codec_id;
  job.header.flags = wanted.flags;
  job.header.checksum = 0;
  EncodeFrom(job, payload, worker);
}

// A payload packed elsewhere must decode, and to finite values, or its readers would suffer.
void CheckPayload(PageJob& job, uint32_t worker) {
  const Bytes payload = PayloadOf(job, job.header.payload_bytes);
  PageCodec::Scratch* scratch = job.scratch->Get(worker, *job.codec);
  if (!job.codec->Decode(payload, job.header.token_count, Frame::kOriginal, job.raw, scratch)) {
    job.result = BlockResult::kMismatch;
    // Rows past the token count are zero in a decoded page, so the whole of it can be looked at.
  } else if (!AllFinite(job.raw, job.dtype)) {
    if (!job.keep_non_finite) job.result = BlockResult::kNonFinite;
    job.header.flags |= kPageFlagNonFinite;
  }
}

void AcceptPacked(PageJob& job, uint32_t worker) {
  job.result = BlockResult::kOk;
  CheckPayload(job, worker);
  if (job.result == BlockResult::kOk) SealInto(job);
}

void AcceptPage(PageJob& job, uint32_t worker) {
  job.result = BlockResult::kCorrupt;
  if (CheckPage(job.page.subspan(0, kPageHeaderBytes + job.header.payload_bytes)) !=
      PageCheck::kOk) {
    return;
  }
  job.result = BlockResult::kOk;
  CheckPayload(job, worker);
  if (job.result == BlockResult::kOk) SealInto(job);
}

void Decode(PageJob& job, uint32_t worker) {
  PageHeader header;
  if (!Verify(job, &header)) return;
  const Bytes payload = PayloadOf(job, header.payload_bytes);
  if (!job.codec->Decode(payload, header.token_count, Frame::kOriginal, job.raw,
                         job.scratch->Get(worker, *job.codec))) {
    job.result = BlockResult::kMismatch;
    return;
  }
  job.value_hash = Xxh3(job.raw);
  CopyOut(job, {}, job.raw);
}

void HashPayload(PageJob& job) {
  PageHeader header;
  if (!Verify(job, &header)) return;
  const Bytes payload = PayloadOf(job, header.payload_bytes);
  job.value_hash = Xxh3(payload);
  CopyOut(job, {}, payload);
}

// WHY a copy: the stamp in the slot may be rewritten while the page is on its way. It leaves zero.
void CopyPage(PageJob& job) {
  PageHeader header;
  if (!Verify(job, &header)) return;
  if (job.lent != nullptr) {
    std::array<uint8_t, kPageHeaderBytes> head;
    const Bytes payload = PayloadOf(job, header.payload_bytes);
    StoreHeader(header, absl::MakeSpan(head));
    job.value_hash = Xxh3(head, payload);
    return CopyOut(job, head, payload);
  }
  StoreHeader(header, job.raw);
  std::memcpy(job.raw.data() + kPageHeaderBytes, job.page.data() + kPageHeaderBytes,
              header.payload_bytes);
  job.value_hash = Xxh3(job.raw);
}

}  // namespace

void RunPageJob(void* arg, uint32_t worker) noexcept {
  auto& job = *static_cast<PageJob*>(arg);
  if (job.lent != nullptr && job.brings_bytes()) CopyIn(job);
  if (job.lent_gone) return;
  switch (job.kind) {
    case PageJobKind::kEncode:
      return Encode(job, worker);
    case PageJobKind::kDemote:
      return Demote(job, worker);
    case PageJobKind::kSeal:
      job.result = BlockResult::kOk;
      return SealInto(job);
    case PageJobKind::kAcceptPacked:
      return AcceptPacked(job, worker);
    case PageJobKind::kAcceptPage:
      return AcceptPage(job, worker);
    case PageJobKind::kDecode:
      return Decode(job, worker);
    case PageJobKind::kHashPayload:
      return HashPayload(job);
    case PageJobKind::kCopyPage:
      return CopyPage(job);
    case PageJobKind::kVerify:
      job.result = SegmentLog::VerifyRecord(job.page, job.header.key, job.location);
      return;
    case PageJobKind::kFetch:
      return;
  }
}

}  // namespace crumb::core
