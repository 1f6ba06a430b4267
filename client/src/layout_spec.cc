// Conversions of layouts. Straight-line field by field: a field forgotten here would let two
// identities share pages, so the unit test compares canonical forms after a round trip.
#include "client/src/layout_spec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"

namespace crumb::client {
namespace {

crumb::AttentionGroup ToGroup(AttentionKind kind, const LayerGroup& group) {
  crumb::AttentionGroup out;
  out.kind = kind;
  out.kv_heads = group.kv_heads;
  out.k_dim = group.k_dim;
  out.v_dim = group.v_dim;
  out.window = group.window;
  out.layer_ids = group.layer_ids;
  return out;
}

void FillIdentity(const LayoutSpec& spec, v1::Identity* out) {
  out->set_model(spec.model);
  out->set_revision(spec.revision);
  out->set_weights_dtype(spec.weights_dtype);
  v1::Rope* rope = out->mutable_rope();
  rope->set_kind(spec.rope_kind);
  rope->set_theta(spec.rope_theta);
  rope->set_factor(spec.rope_factor);
  rope->set_original_positions(spec.rope_original_positions);
  rope->set_extra(spec.rope_extra);
  out->set_k_before_rope(spec.k_before_rope);
  out->set_dtype(spec.dtype);
  for (const LayerGroup& group : spec.groups) {
    v1::AttentionGroup* to = out->add_groups();
    to->set_kind(group.kind);
    to->set_kv_heads(group.kv_heads);
    to->set_k_dim(group.k_dim);
    to->set_v_dim(group.v_dim);
    to->set_window(group.window);
    for (uint32_t id : group.layer_ids) to->add_layer_ids(id);
  }
  out->set_page_tokens(spec.page_tokens);
  out->set_name_space(spec.name_space);
  out->set_head_groups(spec.head_groups);
  for (uint32_t count : spec.part_layer_counts) out->add_part_layer_counts(count);
}

LayerGroup ToLayerGroup(const v1::AttentionGroup& group) {
  LayerGroup out;
  out.kind = group.kind();
  out.kv_heads = group.kv_heads();
  out.k_dim = group.k_dim();
  out.v_dim = group.v_dim();
  out.window = group.window();
  out.layer_ids.assign(group.layer_ids().begin(), group.layer_ids().end());
  return out;
}

}  // namespace

absl::StatusOr<crumb::Layout> CheckSpec(const LayoutSpec& spec) {
  Identity identity;
  identity.model = spec.model;
  identity.revision = spec.revision;
  identity.weights_dtype = spec.weights_dtype;
  identity.rope = {.kind = spec.rope_kind,
                   .theta = spec.rope_theta,
                   .factor = spec.rope_factor,
                   .original_positions = spec.rope_original_positions,
                   .extra = spec.rope_extra};
  identity.k_before_rope = spec.k_before_rope;
  CRUMB_ASSIGN(identity.dtype, ParseRawDtype(spec.dtype));
  for (const LayerGroup& group : spec.groups) {
    CRUMB_ASSIGN(const AttentionKind kind, ParseAttentionKind(group.kind));
    identity.groups.push_back(ToGroup(kind, group));
  }
  identity.page_tokens = spec.page_tokens;
  identity.name_space = spec.name_space;
  identity.head_groups = spec.head_groups;
  identity.part_layer_counts = spec.part_layer_counts;
  return crumb::Layout::Make(std::move(identity));
}

absl::StatusOr<crumb::Layout> CheckIdentity(const v1::Identity& identity) {
  LayoutSpec spec;
  spec.model = identity.model();
  spec.revision = identity.revision();
  spec.weights_dtype = identity.weights_dtype();
  spec.rope_kind = identity.rope().kind();
  spec.rope_theta = identity.rope().theta();
  spec.rope_factor = identity.rope().factor();
  spec.rope_original_positions = identity.rope().original_positions();
  spec.rope_extra = identity.rope().extra();
  spec.k_before_rope = identity.k_before_rope();
  spec.dtype = identity.dtype();
  for (const v1::AttentionGroup& group : identity.groups()) {
    spec.groups.push_back(ToLayerGroup(group));
  }
  spec.page_tokens = identity.page_tokens();
  spec.name_space = identity.name_space();
  spec.head_groups = identity.head_groups();
  spec.part_layer_counts.assign(identity.part_layer_counts().begin(),
                                identity.part_layer_counts().end());
  return CheckSpec(spec);
}

v1::RegisterLayoutRequest ToRequest(const LayoutSpec& spec) {
  v1::RegisterLayoutRequest request;
  request.set_name(spec.name);
  FillIdentity(spec, request.mutable_identity());
  request.set_codec(spec.codec);
  request.set_rotation(spec.rotation);
  request.set_effort(spec.effort);
  request.set_metadata(spec.metadata);
  request.set_keep_non_finite_raw(spec.keep_non_finite_raw);
  return request;
}

v1::RegisterLayoutRequest ToRequest(const v1::LayoutInfo& info) {
  v1::RegisterLayoutRequest request;
  request.set_name(info.name());
  *request.mutable_identity() = info.identity();
  return request;  // no codec: as it is, also if the daemon's own choice has changed meanwhile
}

absl::StatusOr<LayoutEntry> MakeEntry(const v1::LayoutInfo& info) {
  CRUMB_ASSIGN(crumb::Layout shape, CheckIdentity(info.identity()));
  const Bytes hash = AsBytes(info.hash());
  if (hash != Bytes(shape.hash().bytes)) {
    return absl::DataLossError(absl::StrCat(
        "layout \"", info.name(), "\": the daemon hashes its identity to ", Hex(hash),
        ", this client to ", Hex(shape.hash().bytes), "; their versions do not match"));
  }
  const auto parts = static_cast<int>(shape.part_count());
  if (info.raw_bytes_size() != parts || info.payload_bytes_size() != parts || info.handle() == 0) {
    return absl::DataLossError(absl::StrCat("layout \"", info.name(), "\": the daemon describes ",
                                            info.raw_bytes_size(), " parts of ", parts));
  }
  LayoutEntry entry;
  entry.request = ToRequest(info);
  entry.daemon_handle = info.handle();
  for (int i = 0; i < parts; ++i) {
    const uint64_t raw_bytes = shape.parts()[static_cast<size_t>(i)].raw_bytes;
    if (info.raw_bytes(i) != raw_bytes) {
      return absl::DataLossError(absl::StrCat("layout \"", info.name(), "\": part ", i, " is ",
                                              info.raw_bytes(i), " bytes to the daemon and ",
                                              raw_bytes, " here; their versions do not match"));
    }
    entry.info.raw_bytes.push_back(raw_bytes);
    entry.info.payload_bytes.push_back(info.payload_bytes(i));
  }
  entry.info.name = info.name();
  entry.info.hash_hex = Hex(hash);
  entry.info.codec = info.codec();
  entry.info.codec_note = info.codec_note();
  entry.info.windows = info.windows();
  entry.info.rotation = info.rotation();
  entry.info.page_tokens = shape.identity().page_tokens;
  entry.info.model = shape.identity().model;
  entry.info.revision = shape.identity().revision;
  entry.info.dtype = ToString(shape.identity().dtype);
  entry.shape = std::make_shared<const crumb::Layout>(std::move(shape));
  return entry;
}

}  // namespace crumb::client
