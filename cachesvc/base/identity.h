// Identity: what the bytes of a page mean to a model. Two identities with any difference never
// share a page: SHA-256 of the canonical form is mixed into every key. Immutable after Layout is
// made; any thread. Formats that no codec serves yet (MLA, per-layer groups, fp8, opaque) are
// described here from the start and pass through raw.
#ifndef CRUMB_CACHESVC_BASE_IDENTITY_H_
#define CRUMB_CACHESVC_BASE_IDENTITY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

enum class RawDtype : uint8_t { kBf16 = 0, kFp16 = 1, kFp8E4M3 = 2, kFp8E5M2 = 3, kOpaque = 4 };
enum class AttentionKind : uint8_t { kMha = 0, kGqa = 1, kMla = 2 };

const char* ToString(RawDtype dtype);  // "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "opaque"
const char* ToString(AttentionKind kind);
absl::StatusOr<RawDtype> ParseRawDtype(std::string_view text);
absl::StatusOr<AttentionKind> ParseAttentionKind(std::string_view text);
// Bytes per element; 1 for opaque.
uint32_t DtypeBytes(RawDtype dtype);

// Layers that share one geometry. Hybrid models have several.
// MLA: kv_heads = 1, k_dim = latent + rope dims, v_dim = 0.
// Opaque: kv_heads = 1, k_dim = bytes per token of one layer, v_dim = 0.
struct AttentionGroup {
  AttentionKind kind = AttentionKind::kGqa;
  uint32_t kv_heads = 0;
  uint32_t k_dim = 0;
  uint32_t v_dim = 0;
  uint32_t window = 0;              // sliding-window tokens; 0 = full attention
  std::vector<uint32_t> layer_ids;  // global ids, strictly ascending
};

struct Rope {
  std::string kind = "rope";  // "none", "rope", "yarn", "llama3", ...
  double theta = 10000.0;
  double factor = 1.0;
  uint64_t original_positions = 0;
  std::string extra;  // remaining parameters, as the model's configuration spells them
};

struct Identity {
  std::string model;          // required
  std::string revision;       // required: commit or version of the weights
  std::string weights_dtype;  // "bf16", "fp8", "q4_1", ...
  Rope rope;
  bool k_before_rope = false;  // K stored before RoPE: pages are not bound to a position
  RawDtype dtype = RawDtype::kBf16;
  std::vector<AttentionGroup> groups;
  uint32_t page_tokens = 64;
  std::string name_space;  // LoRA, salt, multimodal hash; free bytes

  // Parts: how one block is cut into pages. Fixed by the identity.
  uint32_t head_groups = 1;                 // divides kv_heads of every group
  std::vector<uint32_t> part_layer_counts;  // layers per layer group; empty = one group of all
};

// One layer of one part.
struct LayerShape {
  uint32_t layer_id = 0;
  uint32_t head_first = 0;  // first kv head (global index) that this part holds
  uint32_t heads = 0;
  uint32_t k_dim = 0;
  uint32_t v_dim = 0;
};

// One part: everything a codec or a region set must know about a page.
struct PartShape {
  RawDtype dtype = RawDtype::kBf16;
  uint32_t page_tokens = 0;
  std::vector<LayerShape> layers;
  uint64_t raw_bytes = 0;  // payload of a raw page: [layer][K|V][head][token][dim]
};

// A checked identity with everything derived from it.
class Layout {
 public:
  // INVALID_ARGUMENT names the field and the range.
  static absl::StatusOr<Layout> Make(Identity identity);
  // Parses the canonical form of untrusted origin (bounded; same checks as Make).
  static absl::StatusOr<Layout> FromCanonical(Bytes canonical);

  const Identity& identity() const { return identity_; }
  const IdentityHash& hash() const { return hash_; }
  const std::string& canonical() const { return canonical_; }  // TLV bytes, docs/format.md
  const std::vector<PartShape>& parts() const { return parts_; }
  uint32_t part_count() const { return static_cast<uint32_t>(parts_.size()); }

 private:
  Layout() = default;
  Identity identity_;
  IdentityHash hash_;
  std::string canonical_;
  std::vector<PartShape> parts_;
};

// Limits of a layout; all are checked by Make.
inline constexpr uint32_t kLayersMax = 1024;
inline constexpr uint32_t kHeadsMax = 1024;
inline constexpr uint32_t kHeadDimMax = 1u << 20;  // opaque layers count bytes here
inline constexpr uint32_t kPageTokensMax = 4096;
inline constexpr uint32_t kPartsMax = 256;
inline constexpr uint32_t kNameBytesMax = 1024;
inline constexpr uint64_t kRawPageBytesMax = 256ull << 20;

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_IDENTITY_H_
