// Binding: a layout handle as the shard uses it: keys, codecs by id, sizes. Made on the shard from
// a LayoutBinding (control path, may allocate); immutable afterwards and kept alive by the
// operations that use it, so that a handle can be bound again at any time.
#ifndef CRUMB_CACHESVC_CORE_BINDING_H_
#define CRUMB_CACHESVC_CORE_BINDING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/keys.h"
#include "cachesvc/core/engine.h"

namespace crumb::core {

inline constexpr uint32_t kChainWalkMax = kWindowPagesMax;

struct BoundCodec {
  std::shared_ptr<const PageCodec> codec;
  uint64_t id = 0;
  CodecKind kind = CodecKind::kRaw;
  Precision precision = Precision::kRaw;
  uint32_t payload_bytes = 0;
};

class Binding {
 public:
  // INVALID_ARGUMENT names what is missing or does not fit, with the remedy.
  static absl::StatusOr<std::shared_ptr<const Binding>> Make(const ClusterSecret& secret,
                                                             LayoutBinding source,
                                                             const PagePool& pool);

  const Layout& layout() const { return *source_.layout; }
  const std::string& tenant() const { return source_.tenant; }
  uint64_t tenant_prefix() const { return tenant_prefix_; }
  uint64_t identity_prefix() const { return identity_prefix_; }
  Effort effort() const { return source_.effort; }
  const WindowPolicy& windows() const { return source_.windows; }
  // Its pages are encoded, sooner or later.
  bool lossy(uint32_t part) const { return ladder_[part].front().kind != CodecKind::kRaw; }
  bool keep_non_finite_raw() const { return source_.keep_non_finite_raw; }
  uint32_t part_count() const { return layout().part_count(); }
  const PartShape& part(uint32_t part) const { return layout().parts()[part]; }
  BlockKey Key(const Digest& digest, uint32_t part) const { return deriver_.Derive(digest, part); }
  const KeyDeriver& keys() const { return deriver_; }
  const std::vector<BoundCodec>& ladder(uint32_t part) const { return ladder_[part]; }
  // First rung for a page whose position is not known.
  uint32_t rung(uint32_t part, bool position_known) const;
  // A codec that reads pages of this part, or null.
  const BoundCodec* FindReader(uint32_t part, uint64_t codec_id) const;
  // The same codec on a GPU, or null.
  const GpuCodec* FindGpu(uint32_t part, uint64_t codec_id, int device) const;
  // Of the raw pages of this part.
  uint64_t raw_id(uint32_t part) const { return ladder_[part].back().id; }

 private:
  Binding(const ClusterSecret& secret, LayoutBinding source);
  absl::Status BindPart(uint32_t part, const PagePool& pool);
  absl::Status BindGpu(uint32_t part);

  LayoutBinding source_;
  KeyDeriver deriver_;
  uint64_t tenant_prefix_ = 0, identity_prefix_ = 0;
  struct BoundGpu {
    uint64_t id = 0;
    const GpuCodec* codec = nullptr;  // of source_
  };
  std::vector<std::vector<BoundCodec>> ladder_, readers_;  // by part; readers include the ladder
  std::vector<std::vector<BoundGpu>> gpu_;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_BINDING_H_
