// Checks of an identity, its canonical form, and the parts derived from it. Control path.
#include "cachesvc/base/identity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/identity_form.h"

namespace crumb {
namespace {

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("identity: ", parts...));
}

// Names are printed in logs, metrics and JSON: no control characters.
absl::Status CheckName(const char* field, const std::string& value) {
  if (value.size() > kNameBytesMax) {
    return Bad(field, " has ", value.size(), " bytes; at most ", kNameBytesMax);
  }
  for (char c : value) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return Bad(field, " holds a control character; use printable text");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const Identity& identity) {
  if (identity.model.empty()) return Bad("model is empty; give the model's name");
  if (identity.revision.empty()) {
    return Bad("revision is empty; give the commit or version of the weights");
  }
  CRUMB_TRY(CheckName("model", identity.model));
  CRUMB_TRY(CheckName("revision", identity.revision));
  CRUMB_TRY(CheckName("weights_dtype", identity.weights_dtype));
  CRUMB_TRY(CheckName("rope.kind", identity.rope.kind));
  if (identity.rope.kind.empty()) return Bad("rope.kind is empty; use \"none\" or \"rope\"");
  if (identity.rope.extra.size() > kNameBytesMax) {
    return Bad("rope.extra is longer than ", kNameBytesMax, " bytes");
  }
  if (identity.name_space.size() > kNameBytesMax) {
    return Bad("name_space is longer than ", kNameBytesMax, " bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckRope(const Rope& rope) {
  // A negative zero would give one meaning two canonical forms.
  if (!std::isfinite(rope.theta) || std::signbit(rope.theta)) {
    return Bad("rope.theta must be finite and not negative");
  }
  if (!std::isfinite(rope.factor) || std::signbit(rope.factor)) {
    return Bad("rope.factor must be finite and not negative");
  }
  return absl::OkStatus();
}

absl::Status CheckGeometry(const AttentionGroup& group, RawDtype dtype, size_t index) {
  const std::string name = absl::StrCat("groups[", index, "].");
  if (group.kind > AttentionKind::kMla) return Bad(name, "kind is unknown");
  if (group.kv_heads == 0 || group.kv_heads > kHeadsMax) {
    return Bad(name, "kv_heads is ", group.kv_heads, "; 1 to ", kHeadsMax);
  }
  if (group.k_dim == 0 || group.k_dim > kHeadDimMax) {
    return Bad(name, "k_dim is ", group.k_dim, "; 1 to ", kHeadDimMax);
  }
  const bool single = group.kind == AttentionKind::kMla || dtype == RawDtype::kOpaque;
  if (single && (group.kv_heads != 1 || group.v_dim != 0)) {
    return Bad(name, "MLA and opaque layers have kv_heads 1 and v_dim 0 (everything is in k_dim)");
  }
  if (!single && (group.v_dim == 0 || group.v_dim > kHeadDimMax)) {
    return Bad(name, "v_dim is ", group.v_dim, "; 1 to ", kHeadDimMax);
  }
  return absl::OkStatus();
}

absl::Status CheckLayerIds(const AttentionGroup& group, size_t index) {
  if (group.layer_ids.empty() || group.layer_ids.size() > kLayersMax) {
    return Bad("groups[", index, "].layer_ids has ", group.layer_ids.size(), " layers; 1 to ",
               kLayersMax);
  }
  for (size_t i = 1; i < group.layer_ids.size(); ++i) {
    if (group.layer_ids[i] <= group.layer_ids[i - 1]) {
      return Bad("groups[", index, "].layer_ids must ascend strictly; look at ",
                 group.layer_ids[i]);
    }
  }
  return absl::OkStatus();
}

struct LayerGeometry {
  uint32_t layer_id;
  const AttentionGroup* group;
};

// All layers of all groups, ascending by global id: the order in which parts hold them.
absl::StatusOr<std::vector<LayerGeometry>> CollectLayers(const Identity& identity) {
  if (identity.groups.empty() || identity.groups.size() > kLayersMax) {
    return Bad("groups has ", identity.groups.size(), " entries; 1 to ", kLayersMax);
  }
  std::vector<LayerGeometry> layers;
  for (size_t i = 0; i < identity.groups.size(); ++i) {
    const AttentionGroup& group = identity.groups[i];
    CRUMB_TRY(CheckGeometry(group, identity.dtype, i));
    CRUMB_TRY(CheckLayerIds(group, i));
    if (group.kv_heads % identity.head_groups != 0) {
      return Bad("head_groups is ", identity.head_groups, ", which does not divide groups[", i,
                 "].kv_heads = ", group.kv_heads);
    }
    for (uint32_t id : group.layer_ids) layers.push_back({id, &group});
    if (layers.size() > kLayersMax) return Bad("more than ", kLayersMax, " layers");
  }
  std::sort(layers.begin(), layers.end(),
            [](const auto& a, const auto& b) { return a.layer_id < b.layer_id; });
  for (size_t i = 1; i < layers.size(); ++i) {
    if (layers[i].layer_id == layers[i - 1].layer_id) {
      return Bad("layer ", layers[i].layer_id, " is in two groups");
    }
  }
  return layers;
}

// Layers per layer group, spelled out.
absl::StatusOr<std::vector<uint32_t>> LayerCounts(const Identity& identity, size_t layers) {
  if (identity.part_layer_counts.empty()) {
    return std::vector<uint32_t>{static_cast<uint32_t>(layers)};
  }
  if (identity.part_layer_counts.size() > kPartsMax) {
    return Bad("part_layer_counts has ", identity.part_layer_counts.size(), " entries; at most ",
               kPartsMax);
  }
  uint64_t total = 0;
  for (uint32_t count : identity.part_layer_counts) {
    if (count == 0) return Bad("part_layer_counts holds a zero");
    total += count;
  }
  if (total != layers) {
    return Bad("part_layer_counts sums to ", total, ", but the model has ", layers, " layers");
  }
  return identity.part_layer_counts;
}

PartShape MakePart(const Identity& identity, absl::Span<const LayerGeometry> layers,
                   uint32_t head_group) {
  PartShape part;
  part.dtype = identity.dtype;
  part.page_tokens = identity.page_tokens;
  for (const LayerGeometry& layer : layers) {
    const AttentionGroup& group = *layer.group;
    const uint32_t heads = group.kv_heads / identity.head_groups;
    part.layers.push_back({.layer_id = layer.layer_id,
                           .head_first = head_group * heads,
                           .heads = heads,
                           .k_dim = group.k_dim,
                           .v_dim = group.v_dim});
    // At most 2^10 heads x 2^12 tokens x 2^21 dims x 2 bytes, 2^10 layers: 2^54.
    part.raw_bytes += uint64_t{heads} * identity.page_tokens *
                      (uint64_t{group.k_dim} + group.v_dim) * DtypeBytes(identity.dtype);
  }
  return part;
}

absl::StatusOr<std::vector<PartShape>> MakeParts(const Identity& identity) {
  CRUMB_ASSIGN(const std::vector<LayerGeometry> layers, CollectLayers(identity));
  CRUMB_ASSIGN(const std::vector<uint32_t> counts, LayerCounts(identity, layers.size()));
  if (uint64_t{counts.size()} * identity.head_groups > kPartsMax) {
    return Bad(counts.size(), " layer groups x ", identity.head_groups, " head groups; at most ",
               kPartsMax, " parts");
  }
  std::vector<PartShape> parts;
  size_t first = 0;
  for (uint32_t count : counts) {
    for (uint32_t head_group = 0; head_group < identity.head_groups; ++head_group) {
      parts.push_back(
          MakePart(identity, absl::MakeConstSpan(layers).subspan(first, count), head_group));
      if (parts.back().raw_bytes > kRawPageBytesMax) {
        return Bad("a raw page of part ", parts.size() - 1, " takes ", parts.back().raw_bytes,
                   " bytes; at most ", kRawPageBytesMax,
                   ": use fewer page_tokens or more layer groups");
      }
    }
    first += count;
  }
  return parts;
}

}  // namespace

const char* ToString(RawDtype dtype) {
  switch (dtype) {
    case RawDtype::kBf16:
      return "bf16";
    case RawDtype::kFp16:
      return "fp16";
    case RawDtype::kFp8E4M3:
      return "fp8_e4m3";
    case RawDtype::kFp8E5M2:
      return "fp8_e5m2";
    case RawDtype::kOpaque:
      return "opaque";
  }
  return "unknown";
}

const char* ToString(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kMha:
      return "mha";
    case AttentionKind::kGqa:
      return "gqa";
    case AttentionKind::kMla:
      return "mla";
  }
  return "unknown";
}

absl::StatusOr<RawDtype> ParseRawDtype(std::string_view text) {
  for (RawDtype dtype : {RawDtype::kBf16, RawDtype::kFp16, RawDtype::kFp8E4M3, RawDtype::kFp8E5M2,
                         RawDtype::kOpaque}) {
    if (text == ToString(dtype)) return dtype;
  }
  return Bad("dtype \"", absl::string_view(text.data(), text.size()),
             "\" is unknown; use bf16, fp16, fp8_e4m3, fp8_e5m2 or opaque");
}

absl::StatusOr<AttentionKind> ParseAttentionKind(std::string_view text) {
  for (AttentionKind kind : {AttentionKind::kMha, AttentionKind::kGqa, AttentionKind::kMla}) {
    if (text == ToString(kind)) return kind;
  }
  return Bad("attention kind \"", absl::string_view(text.data(), text.size()),
             "\" is unknown; use mha, gqa or mla");
}

uint32_t DtypeBytes(RawDtype dtype) {
  return dtype == RawDtype::kBf16 || dtype == RawDtype::kFp16 ? 2 : 1;
}

absl::StatusOr<Layout> Layout::Make(Identity identity) {
  CRUMB_TRY(CheckNames(identity));
  CRUMB_TRY(CheckRope(identity.rope));
  if (identity.dtype > RawDtype::kOpaque) return Bad("dtype is unknown");
  if (identity.page_tokens == 0 || identity.page_tokens > kPageTokensMax) {
    return Bad("page_tokens is ", identity.page_tokens, "; 1 to ", kPageTokensMax);
  }
  if (identity.head_groups == 0 || identity.head_groups > kPartsMax) {
    return Bad("head_groups is ", identity.head_groups, "; 1 to ", kPartsMax);
  }
  Layout layout;
  CRUMB_ASSIGN(layout.parts_, MakeParts(identity));
  // WHY: "one group of all" has one spelling, so that it has one hash.
  if (identity.part_layer_counts.size() == 1) identity.part_layer_counts.clear();
  layout.canonical_ = CanonicalForm(identity);
  layout.hash_.bytes = Sha256Of(AsBytes(layout.canonical_));
  layout.identity_ = std::move(identity);
  return layout;
}

absl::StatusOr<Layout> Layout::FromCanonical(Bytes canonical) {
  CRUMB_ASSIGN(Identity identity, ParseCanonicalForm(canonical));
  CRUMB_ASSIGN(Layout layout, Make(std::move(identity)));
  if (AsBytes(layout.canonical()) != canonical) {
    return Bad("the canonical form is not canonical; write it with this version");
  }
  return layout;
}

}  // namespace crumb
