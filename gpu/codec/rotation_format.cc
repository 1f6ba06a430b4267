// The flat file of a rotation set (docs/format.md): fixed header, four strings, a table with one
// SHA-256 per section, FP32 data, and the SHA-256 of everything before as the last 32 bytes.
// There is exactly one way to write given contents, so that hash names the set.
// PROMISE: Parse checks every length against the bytes present before it allocates or reads.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "gpu/codec/rotation_set.h"

namespace crumb {
namespace {

constexpr uint32_t kMagic = 0x53525243;  // "CRRS"
constexpr uint16_t kVersion = 1;
constexpr size_t kHeaderBytes = 64;
constexpr size_t kEntryBytes = 64;
constexpr size_t kAlignment = 64;
constexpr size_t kTrailerBytes = sizeof(Sha256);
constexpr uint32_t kSectionsPerLayerMax = 4;

enum class SectionKind : uint16_t { kRotationK = 1, kRotationV = 2, kQueryMoment = 3, kKMean = 4 };

const char* ToString(SectionKind kind) {
  switch (kind) {
    case SectionKind::kRotationK:
      return "R_K";
    case SectionKind::kRotationV:
      return "R_V";
    case SectionKind::kQueryMoment:
      return "query moment";
    case SectionKind::kKMean:
      return "mean of K";
  }
  return "unknown section";
}

// One entry of the table; `rows` is 1 for means, `columns` for matrices.
struct Section {
  uint32_t layer_id = 0;
  SectionKind kind = SectionKind::kRotationK;
  uint32_t heads = 0;
  uint32_t rows = 0;
  uint32_t columns = 0;
  uint64_t offset = 0;
  Sha256 hash{};
  uint64_t elements() const { return uint64_t{heads} * rows * columns; }
};

uint64_t AlignUp(uint64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("rotation file: ", what));
}

absl::Status BadSection(const Section& section, absl::string_view what) {
  return Bad(absl::StrCat("layer ", section.layer_id, " ", ToString(section.kind), ": ", what));
}

// --- writing ---

struct PendingSection {
  Section section;
  absl::Span<const float> data;
};

std::vector<PendingSection> SectionsOf(const RotationSet::Contents& contents) {
  std::vector<PendingSection> out;
  const auto add = [&out](uint32_t layer_id, SectionKind kind, std::array<uint32_t, 3> shape,
                          absl::Span<const float> data) {
    if (data.empty()) return;
    const Section section{.layer_id = layer_id,
                          .kind = kind,
                          .heads = shape[0],
                          .rows = shape[1],
                          .columns = shape[2],
                          .hash = RotationSet::MatrixHash(data)};
    out.push_back({section, data});
  };
  for (const RotationLayer& layer : contents.layers) {
    add(layer.layer_id, SectionKind::kRotationK, {layer.k.heads, layer.k.dim, layer.k.dim},
        layer.k.matrix);
    add(layer.layer_id, SectionKind::kRotationV, {layer.v.heads, layer.v.dim, layer.v.dim},
        layer.v.matrix);
    add(layer.layer_id, SectionKind::kQueryMoment, {layer.kv_heads, layer.k_dim, layer.k_dim},
        layer.query_moment);
    add(layer.layer_id, SectionKind::kKMean, {layer.kv_heads, 1, layer.k_dim}, layer.k_mean);
  }
  return out;
}

uint64_t DataOffset(const RotationSet::Contents& contents, size_t section_count) {
  const uint64_t text = contents.model.size() + contents.revision.size() +
                        contents.objective.size() + contents.provenance.size();
  return AlignUp(kHeaderBytes + AlignUp(4 * sizeof(uint32_t) + text) + section_count * kEntryBytes);
}

void WriteEntry(const Section& section, ByteWriter& out) {
  out.Write(section.layer_id);
  out.Write(static_cast<uint16_t>(section.kind));
  out.Write(uint16_t{0});
  out.Write(section.heads);
  out.Write(section.rows);
  out.Write(section.columns);
  out.Write(uint32_t{0});
  out.Write(section.offset);
  out.WriteBytes(section.hash);
}

// --- reading ---

struct Header {
  uint64_t data_offset = 0;
  uint32_t section_count = 0;
  uint32_t layer_count = 0;
  float gamma = 0.0f;
};

absl::StatusOr<Header> ReadHeader(Bytes file) {
  if (file.size() < kHeaderBytes + kTrailerBytes) {
    return Bad(absl::StrCat("only ", file.size(), " bytes: truncated, or not a rotation set"));
  }
  if (file.size() > kRotationFileBytesMax) {
    return Bad(absl::StrCat(file.size(), " bytes; at most ", kRotationFileBytesMax));
  }
  ByteReader reader(file);
  if (reader.Read<uint32_t>() != kMagic) {
    return Bad(
        "not a flat rotation set (wrong magic). RotationZoo .pt files are converted "
        "by `crumbctl rotation import`");
  }
  if (const auto version = reader.Read<uint16_t>(); version != kVersion) {
    return Bad(absl::StrCat("format version ", version, "; this program reads version ", kVersion));
  }
  const auto flags = reader.Read<uint16_t>();
  const auto file_bytes = reader.Read<uint64_t>();
  Header header;
  header.data_offset = reader.Read<uint64_t>();
  header.section_count = reader.Read<uint32_t>();
  header.layer_count = reader.Read<uint32_t>();
  header.gamma = reader.Read<float>();
  uint32_t reserved = reader.Read<uint32_t>();
  for (int i = 0; i < 6; ++i) reserved |= reader.Read<uint32_t>();
  if (file_bytes != file.size()) {
    return Bad(absl::StrCat("the header says ", file_bytes, " bytes, the file has ", file.size(),
                            ": truncated or lengthened"));
  }
  if (flags != 0 || reserved != 0) return Bad("reserved fields are not zero");
  if (header.layer_count == 0 || header.layer_count > kRotationLayersMax ||
      header.section_count < header.layer_count ||
      header.section_count > header.layer_count * kSectionsPerLayerMax) {
    return Bad(absl::StrCat(header.layer_count, " layers in ", header.section_count,
                            " sections: out of range"));
  }
  if (header.data_offset < kHeaderBytes || header.data_offset > file.size() - kTrailerBytes) {
    return Bad("the data begin outside the file");
  }
  return header;
}

absl::Status CheckTrailer(Bytes file) {
  const Bytes trailer = file.last(kTrailerBytes);
  const Sha256 actual = Sha256Of(file.first(file.size() - kTrailerBytes));
  if (std::memcmp(trailer.data(), actual.data(), actual.size()) != 0) {
    return Bad("content does not match its SHA-256: damaged; copy or make it again");
  }
  return absl::OkStatus();
}

absl::StatusOr<Section> ReadEntry(ByteReader& reader) {
  Section section;
  section.layer_id = reader.Read<uint32_t>();
  const auto kind = reader.Read<uint16_t>();
  uint32_t reserved = reader.Read<uint16_t>();
  section.heads = reader.Read<uint32_t>();
  section.rows = reader.Read<uint32_t>();
  section.columns = reader.Read<uint32_t>();
  reserved |= reader.Read<uint32_t>();
  section.offset = reader.Read<uint64_t>();
  section.hash = reader.ReadArray<sizeof(Sha256)>();
  section.kind = static_cast<SectionKind>(kind);
  if (!reader.ok()) return Bad("the table of sections is cut short");
  if (kind < static_cast<uint16_t>(SectionKind::kRotationK) ||
      kind > static_cast<uint16_t>(SectionKind::kKMean)) {
    return Bad(absl::StrCat("layer ", section.layer_id, ": unknown section kind ", kind));
  }
  if (reserved != 0) return BadSection(section, "reserved fields are not zero");
  const uint32_t rows_wanted = section.kind == SectionKind::kKMean ? 1 : section.columns;
  if (section.heads == 0 || section.heads > kRotationHeadsMax || section.columns == 0 ||
      section.columns > kRotationDimMax || section.rows != rows_wanted) {
    return BadSection(section, absl::StrCat("shape ", section.heads, " x ", section.rows, " x ",
                                            section.columns, " is out of range"));
  }
  return section;
}

absl::StatusOr<std::vector<float>> ReadData(const Section& section, Bytes data) {
  std::vector<float> values(section.elements());
  std::memcpy(values.data(), data.data(), data.size());
  if (RotationSet::MatrixHash(values) != section.hash) {
    return BadSection(section, "data do not match their SHA-256");
  }
  return values;
}

// Puts a section into its layer. Sections arrive in ascending (layer, kind) order.
absl::Status AddSection(const Section& section, std::vector<float> values,
                        std::vector<RotationLayer>& layers) {
  if (layers.empty() || layers.back().layer_id != section.layer_id) {
    layers.emplace_back().layer_id = section.layer_id;
  }
  RotationLayer& layer = layers.back();
  if (section.kind == SectionKind::kRotationK) {
    layer.k = {section.heads, section.columns, std::move(values)};
    return absl::OkStatus();
  }
  if (section.kind == SectionKind::kRotationV) {
    layer.v = {section.heads, section.columns, std::move(values)};
    return absl::OkStatus();
  }
  const bool first = layer.kv_heads == 0;
  if (!first && (layer.kv_heads != section.heads || layer.k_dim != section.columns)) {
    return BadSection(section, "its shape differs from that of the query moment");
  }
  layer.kv_heads = section.heads;
  layer.k_dim = section.columns;
  (section.kind == SectionKind::kQueryMoment ? layer.query_moment : layer.k_mean) =
      std::move(values);
  return absl::OkStatus();
}

absl::Status CheckPadding(Bytes padding) {
  for (const uint8_t byte : padding) {
    if (byte != 0) return Bad("padding is not zero");
  }
  return absl::OkStatus();
}

// Sections lie back to back, each from a multiple of 64; so none can overlap another.
absl::Status ReadSections(Bytes file, const Header& header, ByteReader& table,
                          std::vector<RotationLayer>& layers) {
  const uint64_t data_end = file.size() - kTrailerBytes;
  uint64_t position = header.data_offset;
  uint64_t last = 0;
  for (uint32_t i = 0; i < header.section_count; ++i) {
    CRUMB_ASSIGN(const Section section, ReadEntry(table));
    const uint64_t order = uint64_t{section.layer_id} << 16 | static_cast<uint64_t>(section.kind);
    if (i > 0 && order <= last) return BadSection(section, "out of order, or there twice");
    last = order;
    const uint64_t bytes = section.elements() * sizeof(float);  // <= 2^32: shapes are bounded
    if (section.offset != position || bytes > data_end - position) {
      return BadSection(section, absl::StrCat(bytes, " bytes at ", section.offset,
                                              " do not lie where they must in this file"));
    }
    CRUMB_ASSIGN(std::vector<float> values, ReadData(section, file.subspan(position, bytes)));
    CRUMB_TRY(AddSection(section, std::move(values), layers));
    const uint64_t next = AlignUp(position + bytes);
    if (next > data_end) return BadSection(section, "the file ends in its padding");
    CRUMB_TRY(CheckPadding(file.subspan(position + bytes, next - position - bytes)));
    position = next;
  }
  if (position != data_end) return Bad("bytes follow the last section");
  return absl::OkStatus();
}

}  // namespace

std::string RotationSet::Serialize() const {
  std::vector<PendingSection> sections = SectionsOf(contents_);
  const uint64_t data_offset = DataOffset(contents_, sections.size());
  uint64_t position = data_offset;
  for (PendingSection& pending : sections) {
    pending.section.offset = position;
    position = AlignUp(position + pending.section.elements() * sizeof(float));
  }
  ByteWriter out;
  out.str().reserve(position + kTrailerBytes);
  out.Write(kMagic);
  out.Write(kVersion);
  out.Write(uint16_t{0});
  out.Write(uint64_t{position + kTrailerBytes});
  out.Write(data_offset);
  out.Write(static_cast<uint32_t>(sections.size()));
  out.Write(static_cast<uint32_t>(contents_.layers.size()));
  out.Write(contents_.gamma);
  out.PadTo(kHeaderBytes);
  out.WriteString(contents_.model);
  out.WriteString(contents_.revision);
  out.WriteString(contents_.objective);
  out.WriteString(contents_.provenance);
  out.PadTo(kAlignment);
  for (const PendingSection& pending : sections) WriteEntry(pending.section, out);
  for (const PendingSection& pending : sections) {
    out.WriteBytes({reinterpret_cast<const uint8_t*>(pending.data.data()),
                    pending.data.size() * sizeof(float)});
    out.PadTo(kAlignment);
  }
  out.WriteBytes(Sha256Of(AsBytes(out.str())));
  return std::move(out.str());
}

absl::StatusOr<std::shared_ptr<const RotationSet>> RotationSet::Parse(Bytes file) {
  CRUMB_ASSIGN(const Header header, ReadHeader(file));
  CRUMB_TRY(CheckTrailer(file));
  Contents contents;
  contents.gamma = header.gamma;
  ByteReader text(file.first(header.data_offset).subspan(kHeaderBytes));
  contents.model = text.ReadString(kRotationNameBytesMax);
  contents.revision = text.ReadString(kRotationNameBytesMax);
  contents.objective = text.ReadString(kRotationNameBytesMax);
  contents.provenance = text.ReadString(kRotationProvenanceBytesMax);
  if (!text.ok()) return Bad("a name or the provenance is longer than it may be");
  const uint64_t text_end = header.data_offset - text.remaining();
  const uint64_t table_begin = AlignUp(text_end);
  if (table_begin + uint64_t{header.section_count} * kEntryBytes != header.data_offset) {
    return Bad("the table of sections does not end where the data begin");
  }
  CRUMB_TRY(CheckPadding(file.subspan(text_end, table_begin - text_end)));
  ByteReader table(file.first(header.data_offset).subspan(table_begin));
  CRUMB_TRY(ReadSections(file, header, table, contents.layers));
  if (contents.layers.size() != header.layer_count) {
    return Bad(absl::StrCat(header.layer_count, " layers announced, ", contents.layers.size(),
                            " present"));
  }
  CRUMB_ASSIGN(std::shared_ptr<const RotationSet> set, Make(std::move(contents)));
  // Only the canonical bytes carry the set's name.
  if (std::memcmp(set->hash().data(), file.last(kTrailerBytes).data(), kTrailerBytes) != 0) {
    return Bad("not in canonical form");
  }
  return set;
}

}  // namespace crumb
