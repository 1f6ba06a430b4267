// Bodies of the messages that move data between a transport and memory that its peer lends: the
// side that drives asks to read ranges or sends what to write there, the side that lends checks
// every range against what it lent, copies, and answers. Little-endian, fixed layout.
// PROMISE: Parse* touch no byte outside their input and accept only what adds up. Any thread.
#ifndef CRUMB_CACHESVC_NET_COPY_WIRE_H_
#define CRUMB_CACHESVC_NET_COPY_WIRE_H_

#include <cstdint>

#include "cachesvc/base/types.h"
#include "cachesvc/net/region_set.h"

namespace crumb {

inline constexpr uint32_t kCopyBytesMax = 16 * 1024;  // of one operation
inline constexpr uint32_t kCopyRangesMax = 100;

struct CopyHeader {        // 24 bytes, in front of all four
  uint64_t cookie = 0;     // of the receiver
  uint64_t operation = 0;  // chosen by the driver, returned by the lender
  uint32_t count = 0;      // requests: ranges; answers: kCopyDone or kCopyRefused
  uint32_t bytes = 0;      // requests: in all ranges; answers: of the payload
};
static_assert(sizeof(CopyHeader) == 24);
struct CopyRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(CopyRange) == 16);

inline constexpr uint32_t kCopyDone = 0;
inline constexpr uint32_t kCopyRefused = 1;  // not (or no longer) lent
inline constexpr uint32_t kCopyRequestBytesMax =
    sizeof(CopyHeader) + kCopyRangesMax * sizeof(CopyRange);
inline constexpr uint32_t kCopyMessageBytesMax = kCopyRequestBytesMax + kCopyBytesMax;

// A read (no payload) or a write (payload of header.bytes).
struct CopyRequest {
  CopyHeader header;
  Bytes ranges;
  Bytes payload;
  CopyRange range(uint32_t index) const;
};
enum class CopyKind : uint8_t { kRead, kWrite };
bool ParseCopyRequest(Bytes body, CopyKind kind, CopyRequest* out);

// Data (a read's answer: payload of header.bytes, none if refused) or done (a write's: none).
struct CopyAnswer {
  CopyHeader header;
  Bytes payload;
};
bool ParseCopyAnswer(Bytes body, CopyAnswer* out);

// Writers; `out` is at least as long as what is written.
void WriteCopyHeader(const CopyHeader& header, uint8_t* out);
void WriteCopyRange(uint32_t index, const CopyRange& range, uint8_t* out);

// Consecutive pieces of segments: from `offset` in segments[segment] on, `bytes` in all.
class PieceWalk {
 public:
  struct Start {
    size_t segment = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  struct Piece {
    uint64_t address = 0;
    uint64_t local_offset = 0;
    uint64_t bytes = 0;
    uint32_t region = 0;
  };
  PieceWalk(absl::Span<const Segment> segments, const Start& start)
      : segments_(segments), at_(start) {}
  // False at the end of `bytes` or of the segments.
  bool Next(Piece* out);
  // Where the next piece would begin.
  const Start& at() const { return at_; }

 private:
  absl::Span<const Segment> segments_;
  Start at_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_COPY_WIRE_H_
