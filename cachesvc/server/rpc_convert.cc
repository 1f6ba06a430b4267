// Conversions and checks of RPC messages. Pure; any thread.
#include "cachesvc/server/rpc_convert.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/keys.h"
#include "cachesvc/base/page_header.h"

namespace crumb {
namespace {

static_assert(v1::RESULT_NOT_DURABLE == static_cast<int>(BlockResult::kNotDurable));
static_assert(static_cast<int>(v1::Result_MAX) + 1 == kBlockResultCount);
static_assert(v1::TIER_PEER == static_cast<int>(Tier::kPeer));
static_assert(v1::PRECISION_INT2 == static_cast<int>(Precision::kInt2));
static_assert(v1::FORM_PAGE == static_cast<int>(PageForm::kPage));
static_assert(v1::PROVENANCE_TRANSCODED == static_cast<int>(Provenance::kTranscoded));

absl::Status Invalid(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::StatusOr<AttentionGroup> GroupFrom(const v1::AttentionGroup& in) {
  AttentionGroup group;
  CRUMB_ASSIGN(group.kind, ParseAttentionKind(in.kind()));
  group.kv_heads = in.kv_heads();
  group.k_dim = in.k_dim();
  group.v_dim = in.v_dim();
  group.window = in.window();
  group.layer_ids.assign(in.layer_ids().begin(), in.layer_ids().end());
  return group;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  // The numbers of both are the same by definition.
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::StatusOr<Identity> FromProto(const v1::Identity& in) {
  Identity out;
  out.model = in.model();
  out.revision = in.revision();
  out.weights_dtype = in.weights_dtype();
  if (in.has_rope()) {
    out.rope.kind = in.rope().kind();
    out.rope.theta = in.rope().theta();
    out.rope.factor = in.rope().factor();
    out.rope.original_positions = in.rope().original_positions();
    out.rope.extra = in.rope().extra();
  }
  out.k_before_rope = in.k_before_rope();
  CRUMB_ASSIGN(out.dtype, ParseRawDtype(in.dtype()));
  for (const v1::AttentionGroup& group : in.groups()) {
    CRUMB_ASSIGN(AttentionGroup parsed, GroupFrom(group));
    out.groups.push_back(std::move(parsed));
  }
  out.page_tokens = in.page_tokens();
  out.name_space = in.name_space();
  out.head_groups = in.head_groups();
  out.part_layer_counts.assign(in.part_layer_counts().begin(), in.part_layer_counts().end());
  return out;
}

v1::Identity ToProto(const Identity& in) {
  v1::Identity out;
  out.set_model(in.model);
  out.set_revision(in.revision);
  out.set_weights_dtype(in.weights_dtype);
  out.mutable_rope()->set_kind(in.rope.kind);
  out.mutable_rope()->set_theta(in.rope.theta);
  out.mutable_rope()->set_factor(in.rope.factor);
  out.mutable_rope()->set_original_positions(in.rope.original_positions);
  out.mutable_rope()->set_extra(in.rope.extra);
  out.set_k_before_rope(in.k_before_rope);
  out.set_dtype(ToString(in.dtype));
  for (const AttentionGroup& group : in.groups) {
    v1::AttentionGroup* made = out.add_groups();
    made->set_kind(ToString(group.kind));
    made->set_kv_heads(group.kv_heads);
    made->set_k_dim(group.k_dim);
    made->set_v_dim(group.v_dim);
    made->set_window(group.window);
    for (const uint32_t id : group.layer_ids) made->add_layer_ids(id);
  }
  out.set_page_tokens(in.page_tokens);
  out.set_name_space(in.name_space);
  out.set_head_groups(in.head_groups);
  for (const uint32_t count : in.part_layer_counts) out.add_part_layer_counts(count);
  return out;
}

v1::LayoutInfo ToProto(const BoundLayout& in) {
  v1::LayoutInfo out;
  out.set_name(in.name);
  const IdentityHash& hash = in.layout->hash();
  out.set_hash(hash.bytes.data(), hash.bytes.size());
  out.set_handle(in.handle);
  out.set_codec(in.codec);
  out.set_codec_note(in.note);
  out.set_codec_id(in.codec_id);
  out.set_windows(in.windows);
  out.set_rotation(in.rotation);
  out.set_parts(in.layout->part_count());
  for (const uint64_t bytes : in.raw_bytes) out.add_raw_bytes(bytes);
  for (const uint64_t bytes : in.payload_bytes) out.add_payload_bytes(bytes);
  *out.mutable_identity() = ToProto(in.layout->identity());
  return out;
}

v1::Result ToProto(BlockResult result) { return static_cast<v1::Result>(result); }
v1::TierKind ToProto(Tier tier) { return static_cast<v1::TierKind>(tier); }
v1::PrecisionKind ToProto(Precision precision) { return static_cast<v1::PrecisionKind>(precision); }

absl::StatusOr<PageForm> FromProto(v1::Form form) {
  if (!v1::Form_IsValid(form)) return Invalid("form: unknown; raw, packed or page");
  return static_cast<PageForm>(form);
}

absl::StatusOr<Provenance> FromProto(v1::ProvenanceKind kind) {
  if (!v1::ProvenanceKind_IsValid(kind)) return Invalid("provenance: unknown");
  return static_cast<Provenance>(kind);
}

absl::StatusOr<Digest> DigestFrom(const v1::BlockName& name) {
  Digest digest;
  if (!name.digest().empty()) {
    if (!name.key().empty()) return Invalid("name a block by key or by digest, not by both");
    if (name.digest().size() != digest.bytes.size()) {
      return Invalid(absl::StrCat("digest: ", name.digest().size(), " bytes; it has 16"));
    }
    std::copy(name.digest().begin(), name.digest().end(), digest.bytes.begin());
    return digest;
  }
  if (name.key().empty() || name.key().size() > kExternalKeyBytesMax) {
    return Invalid(
        absl::StrCat("key: ", name.key().size(), " bytes; it has 1 to ", kExternalKeyBytesMax));
  }
  return DigestOf({reinterpret_cast<const uint8_t*>(name.key().data()), name.key().size()});
}

absl::StatusOr<std::vector<WireBlock>> BlocksFrom(
    const google::protobuf::RepeatedPtrField<v1::BlockName>& names, const BoundLayout& layout) {
  if (names.empty() || static_cast<uint32_t>(names.size()) > kBlocksPerRequestMax) {
    return Invalid(absl::StrCat("blocks: ", names.size(), " of them; 1 to ", kBlocksPerRequestMax));
  }
  std::vector<WireBlock> blocks;
  for (const v1::BlockName& name : names) {
    WireBlock block;
    CRUMB_ASSIGN(block.digest, DigestFrom(name));
    if (name.part() >= layout.layout->part_count()) {
      return Invalid(
          absl::StrCat("part ", name.part(), ": the layout has ", layout.layout->part_count()));
    }
    block.part = static_cast<uint16_t>(name.part());
    blocks.push_back(block);
  }
  return blocks;
}

absl::StatusOr<PutPlan> PlanPut(const v1::PutHeader& header, const BoundLayout& layout) {
  PutPlan plan;
  CRUMB_ASSIGN(plan.block.digest, DigestFrom(header.block()));
  if (header.block().part() >= layout.layout->part_count()) {
    return Invalid(absl::StrCat("part ", header.block().part(), ": the layout has ",
                                layout.layout->part_count()));
  }
  plan.block.part = static_cast<uint16_t>(header.block().part());
  if (header.has_parent()) {
    CRUMB_ASSIGN(plan.block.parent, DigestFrom(header.parent()));
  }
  plan.block.token_start = header.has_token_start() ? header.token_start() : kTokenStartUnknown;
  const uint32_t page_tokens = layout.layout->identity().page_tokens;
  if (header.token_count() > page_tokens) {
    return Invalid(
        absl::StrCat("token_count: ", header.token_count(), "; a page has ", page_tokens));
  }
  plan.block.token_count = static_cast<uint16_t>(header.token_count());
  CRUMB_ASSIGN(plan.block.provenance, FromProto(header.provenance()));
  CRUMB_ASSIGN(plan.form, FromProto(header.form()));
  const uint64_t raw_bytes = layout.raw_bytes[plan.block.part];
  plan.value_bytes = header.value_bytes();
  if (plan.form == PageForm::kRaw) {
    if (plan.value_bytes == 0) plan.value_bytes = raw_bytes;
    if (plan.value_bytes != raw_bytes) {
      return Invalid(absl::StrCat("value_bytes: ", plan.value_bytes,
                                  "; a raw page of this layout has ", raw_bytes));
    }
  } else {
    if (plan.value_bytes == 0 || plan.value_bytes > layout.value_bytes_max) {
      return Invalid(absl::StrCat("value_bytes: ", plan.value_bytes,
                                  "; no page of this layout has more than ",
                                  layout.value_bytes_max));
    }
    plan.block.value_bytes = static_cast<uint32_t>(plan.value_bytes);
  }
  if (header.durable()) plan.flags |= kWireFlagDurable;
  return plan;
}

absl::StatusOr<RegionSetSpec> FromProto(const v1::RegisterRegionsRequest& in) {
  if (in.regions().empty() || static_cast<uint32_t>(in.regions_size()) > kRegionsMax) {
    return Invalid(absl::StrCat("regions: ", in.regions_size(), " of them; 1 to ", kRegionsMax));
  }
  RegionSetSpec spec;
  for (const v1::Region& region : in.regions()) {
    if (region.rkey().size() > kRkeyBytesMax) return Invalid("rkey: too long");
    spec.regions.push_back(
        {.address = region.address(), .bytes = region.bytes(), .rkey = region.rkey()});
  }
  if (static_cast<uint32_t>(in.tensors_size()) > 2 * kLayersMax) {
    return Invalid("tensors: more than two for each layer");
  }
  for (const v1::TensorPlace& place : in.tensors()) {
    spec.tensors.push_back({.region = place.region(),
                            .offset = place.offset(),
                            .slot_stride = place.slot_stride(),
                            .token_stride = place.token_stride(),
                            .head_stride = place.head_stride()});
  }
  spec.slots = in.slots();
  spec.slots_per_block = in.slots_per_block() == 0 ? 1 : in.slots_per_block();
  spec.slot_bytes = in.slot_bytes();
  spec.head_group_first = in.head_group_first();
  spec.head_group_count = in.head_group_count();
  return spec;
}

uint32_t DeadlineUs(uint64_t ms, uint64_t us_max) {
  const uint64_t limit = std::min<uint64_t>(us_max, std::numeric_limits<uint32_t>::max());
  return static_cast<uint32_t>(ms > limit / 1000 ? limit : ms * 1000);
}

std::string DescribeNonFinite(uint64_t packed_place) {
  const PagePlace place = UnpackPlace(packed_place);
  return absl::StrCat("NaN or Inf at layer ", place.layer_id, ", ", place.is_v ? "V" : "K",
                      ", head ", place.head, ", token ", place.token,
                      ": fix the producer, or register the layout with keep_non_finite_raw");
}

}  // namespace crumb
