// PageKinds: what pages of one layout part, codec and history have in common, kept once and named
// by a small number. A kind lives while pages have it; as many live at a time as layouts, parts and
// codecs make, and never more than kKindsMax. Allocates when it has more kinds than ever before.
// One thread (the shard).
#ifndef CRUMB_CACHESVC_CORE_PAGE_KINDS_H_
#define CRUMB_CACHESVC_CORE_PAGE_KINDS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/types.h"

namespace crumb::core {

struct PageKind {
  uint64_t identity_prefix = 0, tenant_prefix = 0, codec_id = 0;
  uint32_t payload_bytes = 0, raw_bytes = 0;
  uint16_t part = 0;
  Precision precision = Precision::kRaw;
  uint8_t lossy_depth = 0;
  uint8_t header_flags = 0;

  static PageKind Of(const PageHeader& header) {
    return {.identity_prefix = header.identity_prefix,
            .tenant_prefix = header.tenant_prefix,
            .codec_id = header.codec_id,
            .payload_bytes = header.payload_bytes,
            .raw_bytes = header.raw_bytes,
            .part = header.part,
            .precision = header.precision,
            .lossy_depth = header.lossy_depth,
            .header_flags = static_cast<uint8_t>(header.flags)};
  }
  uint64_t slot_bytes() const { return PageSlotBytes(payload_bytes); }
  friend bool operator==(const PageKind&, const PageKind&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const PageKind& kind) {
    return H::combine(std::move(h), kind.identity_prefix, kind.tenant_prefix, kind.codec_id,
                      kind.payload_bytes, kind.raw_bytes, kind.part, kind.precision,
                      kind.lossy_depth, kind.header_flags);
  }
};

using KindId = uint16_t;
inline constexpr KindId kNoKind = 0;
inline constexpr uint32_t kKindsMax = 0xffff;

class PageKinds {
 public:
  PageKinds();
  // One page more has this kind; kNoKind: kKindsMax others have pages.
  KindId Take(const PageKind& kind);
  // REQUIRES: not kNoKind.
  void Give(KindId id);
  const PageKind& operator[](KindId id) const { return slots_[id].kind; }
  size_t size() const { return ids_.size(); }

 private:
  struct Slot {
    PageKind kind;
    uint32_t pages = 0;
  };
  std::vector<Slot> slots_;  // the first is kNoKind's
  std::vector<KindId> free_;
  absl::flat_hash_map<PageKind, KindId> ids_;
  KindId last_ = kNoKind;  // taken: pages of a kind come in rows
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_PAGE_KINDS_H_
