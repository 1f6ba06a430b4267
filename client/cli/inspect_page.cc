// Decoding and statistics for page inspect.
#include "client/cli/inspect_page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/hash.h"
#include "gpu/codec/page_codec.h"

namespace crumb::cli {
namespace {

constexpr CodecKind kKinds[] = {
    CodecKind::kRaw,       CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2,
    CodecKind::kCrumbInt4, CodecKind::kOscarInt2, CodecKind::kHadamardInt2,
    CodecKind::kNaiveInt2, CodecKind::kInt4,      CodecKind::kHadamardInt4};

float FromBf16(const uint8_t* at) {
  return std::bit_cast<float>(static_cast<uint32_t>(at[1]) << 24 | static_cast<uint32_t>(at[0])
                                                                       << 16);
}

RowStats StatsOfRow(const uint8_t* row, uint32_t dim) {
  RowStats stats;
  stats.rows = 1;
  stats.min = std::numeric_limits<double>::infinity();
  stats.max = -stats.min;
  double sum = 0;
  double squares = 0;
  for (uint32_t i = 0; i < dim; ++i) {
    const double value = static_cast<double>(FromBf16(row + 2 * size_t{i}));
    if (!std::isfinite(value)) {
      ++stats.non_finite;
      continue;
    }
    stats.min = std::min(stats.min, value);
    stats.max = std::max(stats.max, value);
    sum += value;
    squares += value * value;
  }
  const uint32_t finite = dim - stats.non_finite;
  if (finite == 0) {
    stats.min = stats.max = 0;
  } else {
    stats.mean = sum / finite;
    stats.rms = std::sqrt(squares / finite);
  }
  return stats;
}

bool SameHead(const RowStats& a, const RowStats& b) {
  return a.layer_id == b.layer_id && a.is_v == b.is_v && a.head == b.head;
}

}  // namespace

absl::StatusOr<CodecDescriptor> FindDescriptor(uint64_t codec_id, const RotationSet* rotations) {
  std::vector<Sha256> sets = {Sha256{}};
  if (rotations != nullptr) sets.push_back(rotations->hash());
  for (const Sha256& set : sets) {
    for (CodecKind kind : kKinds) {
      CodecDescriptor descriptor = CodecDescriptor::Default(kind, set);
      if (descriptor.Check().ok() && descriptor.id() == codec_id) return descriptor;
      descriptor.meta = MetaForm::kFp32;
      if (descriptor.Check().ok() && descriptor.id() == codec_id) return descriptor;
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "the page's codec ", absl::Hex(codec_id, absl::kZeroPad16), " is no published setting",
      rotations == nullptr ? " without a rotation set; give the set with --rotation"
                           : " with this rotation set"));
}

absl::StatusOr<std::vector<uint8_t>> DecodePage(Bytes page, const crumb::Layout& layout,
                                                std::shared_ptr<const RotationSet> rotations) {
  const PageHeader header = LoadHeader(page);
  if (header.identity_prefix != layout.hash().prefix64()) {
    return absl::InvalidArgumentError("the page is of another layout: its identity does not match");
  }
  if (header.part >= layout.part_count() || header.token_count == 0 ||
      header.token_count > layout.identity().page_tokens) {
    return absl::InvalidArgumentError("the page's part or token count does not fit the layout");
  }
  const PartShape& shape = layout.parts()[header.part];
  CRUMB_ASSIGN(const CodecDescriptor descriptor, FindDescriptor(header.codec_id, rotations.get()));
  const bool uses_set = descriptor.rotation_set != Sha256{};
  CRUMB_ASSIGN(const std::unique_ptr<PageCodec> codec,
               PageCodec::Create(shape, descriptor, uses_set ? rotations : nullptr));
  const std::unique_ptr<PageCodec::Scratch> scratch = codec->MakeScratch();
  std::vector<uint8_t> raw(shape.raw_bytes);
  const Bytes payload = page.subspan(kPageHeaderBytes, header.payload_bytes);
  if (!codec->Decode(payload, header.token_count, Frame::kOriginal, absl::MakeSpan(raw),
                     scratch.get())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the payload has ", payload.size(), " bytes, this codec wants ", codec->payload_bytes()));
  }
  return raw;
}

std::vector<RowStats> StatsOfRows(Bytes raw, const PartShape& shape, uint32_t token_count) {
  std::vector<RowStats> out;
  size_t offset = 0;
  for (const LayerShape& layer : shape.layers) {
    for (const bool is_v : {false, true}) {
      const uint32_t dim = is_v ? layer.v_dim : layer.k_dim;
      const size_t row_bytes = size_t{dim} * 2;
      for (uint32_t head = 0; dim != 0 && head < layer.heads; ++head) {
        for (uint32_t token = 0; token < shape.page_tokens; ++token, offset += row_bytes) {
          if (token >= token_count || offset + row_bytes > raw.size()) continue;
          RowStats stats = StatsOfRow(raw.data() + offset, dim);
          stats.layer_id = layer.layer_id;
          stats.is_v = is_v;
          stats.head = layer.head_first + head;
          stats.token = token;
          out.push_back(stats);
        }
      }
    }
  }
  return out;
}

std::vector<RowStats> Summarise(const std::vector<RowStats>& rows) {
  std::vector<RowStats> out;
  for (const RowStats& row : rows) {
    if (out.empty() || !SameHead(out.back(), row)) {
      out.push_back(row);
      out.back().rms *= row.rms;  // sums until the end
      continue;
    }
    RowStats& sum = out.back();
    ++sum.rows;
    sum.rms += row.rms * row.rms;
    sum.mean += row.mean;
    sum.min = std::min(sum.min, row.min);
    sum.max = std::max(sum.max, row.max);
    sum.non_finite += row.non_finite;
  }
  for (RowStats& sum : out) {
    sum.rms = std::sqrt(sum.rms / sum.rows);
    sum.mean /= sum.rows;
  }
  return out;
}

}  // namespace crumb::cli
