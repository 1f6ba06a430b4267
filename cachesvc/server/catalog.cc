// The catalog: forms of its records, and the table they make. One thread; blocking.
#include "cachesvc/server/catalog.h"

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"

namespace crumb {
namespace {

constexpr uint16_t kTypeDescriptor = 1;
constexpr uint16_t kTypeLayout = 2;
constexpr uint16_t kTypeRotation = 3;
constexpr uint16_t kTypeEvaluation = 4;
constexpr size_t kEvaluationsMax = 4096;
constexpr size_t kTextBytesMax = 4096;
constexpr size_t kCanonicalBytesMax = 1 << 20;
constexpr size_t kDescriptorIdsMax = 4096;
constexpr uint64_t kRewriteBytesMin = 1 << 20;  // below this, dead records do not matter
constexpr size_t kHashHexBytes = 64;
constexpr size_t kStrayFilesMax = 1000;

CatalogRecord DescriptorRecord(const CodecDescriptor& descriptor) {
  return {.type = kTypeDescriptor, .payload = descriptor.Canonical()};
}

CatalogRecord LayoutRecord(const CatalogLayout& layout) {
  ByteWriter writer;
  writer.WriteString(layout.tenant);
  writer.WriteString(layout.canonical);
  writer.WriteString(layout.name);
  writer.WriteString(layout.wish.codec);
  writer.WriteString(layout.wish.rotation);
  writer.WriteString(layout.wish.effort);
  writer.WriteString(layout.wish.metadata);
  writer.Write<uint8_t>(layout.wish.keep_non_finite_raw ? 1 : 0);
  writer.Write<uint64_t>(layout.codec_id);
  writer.Write<uint32_t>(static_cast<uint32_t>(layout.descriptor_ids.size()));
  for (const uint64_t id : layout.descriptor_ids) writer.Write<uint64_t>(id);
  return {.type = kTypeLayout, .payload = writer.str()};
}

bool ParseLayout(const std::string& payload, CatalogLayout* layout) {
  ByteReader reader(AsBytes(payload));
  layout->tenant = reader.ReadString(kTextBytesMax);
  layout->canonical = reader.ReadString(kCanonicalBytesMax);
  layout->name = reader.ReadString(kTextBytesMax);
  layout->wish.codec = reader.ReadString(kTextBytesMax);
  layout->wish.rotation = reader.ReadString(kTextBytesMax);
  layout->wish.effort = reader.ReadString(kTextBytesMax);
  layout->wish.metadata = reader.ReadString(kTextBytesMax);
  const auto keep = reader.Read<uint8_t>();
  layout->codec_id = reader.Read<uint64_t>();
  const auto count = reader.Read<uint32_t>();
  if (!reader.ok() || keep > 1 || count > kDescriptorIdsMax) return false;
  layout->wish.keep_non_finite_raw = keep == 1;
  for (uint32_t i = 0; i < count; ++i) layout->descriptor_ids.push_back(reader.Read<uint64_t>());
  return reader.done() && Layout::FromCanonical(AsBytes(layout->canonical)).ok();
}

CatalogRecord RotationRecord(const CatalogRotation& rotation) {
  ByteWriter writer;
  writer.WriteBytes(rotation.hash);
  writer.WriteString(rotation.model);
  writer.WriteString(rotation.revision);
  writer.Write<uint64_t>(rotation.order);
  return {.type = kTypeRotation, .payload = writer.str()};
}

bool ParseRotation(const std::string& payload, CatalogRotation* rotation) {
  ByteReader reader(AsBytes(payload));
  rotation->hash = reader.ReadArray<32>();
  rotation->model = reader.ReadString(kTextBytesMax);
  rotation->revision = reader.ReadString(kTextBytesMax);
  rotation->order = reader.Read<uint64_t>();
  return reader.done();
}

CatalogRecord EvaluationRecord(const Evaluation& evaluation) {
  ByteWriter writer;
  writer.WriteString(evaluation.model);
  writer.WriteString(evaluation.revision);
  writer.WriteBytes(evaluation.rotation);
  writer.WriteString(ToString(evaluation.codec));
  writer.Write<double>(evaluation.perplexity_change);
  writer.Write<double>(evaluation.kl);
  writer.Write<uint64_t>(evaluation.tokens);
  writer.WriteString(evaluation.date);
  writer.WriteString(evaluation.source);
  return {.type = kTypeEvaluation, .payload = writer.str()};
}

bool ParseEvaluation(const std::string& payload, Evaluation* evaluation) {
  ByteReader reader(AsBytes(payload));
  evaluation->model = reader.ReadString(kTextBytesMax);
  evaluation->revision = reader.ReadString(kTextBytesMax);
  evaluation->rotation = reader.ReadArray<32>();
  const absl::StatusOr<CodecKind> codec = ParseCodecKind(reader.ReadString(kTextBytesMax));
  evaluation->perplexity_change = reader.Read<double>();
  evaluation->kl = reader.Read<double>();
  evaluation->tokens = reader.Read<uint64_t>();
  evaluation->date = reader.ReadString(kTextBytesMax);
  evaluation->source = reader.ReadString(kTextBytesMax);
  if (!reader.done() || !codec.ok()) return false;
  evaluation->codec = *codec;
  return CheckEvaluation(*evaluation).ok();
}

bool SameSubject(const Evaluation& a, const Evaluation& b) {
  return a.model == b.model && a.revision == b.revision && a.rotation == b.rotation &&
         a.codec == b.codec;
}

uint64_t RecordBytes(const CatalogRecord& record) {
  return 24 + (record.payload.size() + 7) / 8 * 8;
}

}  // namespace

std::string RotationFileName(const Sha256& hash) { return absl::StrCat(Hex(hash), ".rot"); }

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::Open(const std::string& data_dir) {
  std::unique_ptr<Catalog> catalog(new Catalog());
  CRUMB_ASSIGN(catalog->data_dir_, Directory::Open(data_dir));
  CRUMB_ASSIGN(catalog->rotations_dir_, catalog->data_dir_.Sub(kRotationsName));
  std::vector<CatalogRecord> records;
  CRUMB_ASSIGN(catalog->file_, RecordFile::Open(catalog->data_dir_, kCatalogName, &records));
  catalog->dropped_ = catalog->file_.dropped();
  for (const CatalogRecord& record : records) catalog->Apply(record);
  for (const CatalogRecord& record : catalog->Snapshot())
    catalog->live_bytes_ += RecordBytes(record);
  CRUMB_TRY(catalog->FindStrayFiles());
  catalog->Publish();
  return catalog;
}

absl::Status Catalog::FindStrayFiles() {
  std::set<std::string> known;
  for (const CatalogRotation& rotation : rotations_) known.insert(RotationFileName(rotation.hash));
  CRUMB_ASSIGN(stray_files_, rotations_dir_.List(kStrayFilesMax + known.size()));
  std::erase_if(stray_files_, [&](const std::string& name) { return known.contains(name); });
  return absl::OkStatus();
}

void Catalog::Publish() {
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  facts_ = {.rotations = rotations_, .bytes = file_.size_bytes(), .dropped = dropped_};
}

CatalogFacts Catalog::facts() const {
  const std::lock_guard<std::mutex> lock(facts_mutex_);
  return facts_;
}

// Later records of one thing replace earlier ones.
void Catalog::Apply(const CatalogRecord& record) {
  if (record.type == kTypeDescriptor) {
    const absl::StatusOr<CodecDescriptor> descriptor =
        CodecDescriptor::FromCanonical(AsBytes(record.payload));
    if (!descriptor.ok()) {
      ++dropped_;
      return;
    }
    descriptors_[descriptor->id()] = *descriptor;
  } else if (record.type == kTypeLayout) {
    CatalogLayout layout;
    if (!ParseLayout(record.payload, &layout)) {
      ++dropped_;
      return;
    }
    for (CatalogLayout& known : layouts_) {
      if (known.tenant != layout.tenant || known.canonical != layout.canonical) continue;
      known = std::move(layout);
      return;
    }
    layouts_.push_back(std::move(layout));
  } else if (record.type == kTypeRotation) {
    CatalogRotation rotation;
    if (!ParseRotation(record.payload, &rotation)) {
      ++dropped_;
      return;
    }
    std::erase_if(rotations_, [&](const CatalogRotation& r) { return r.hash == rotation.hash; });
    rotations_.push_back(std::move(rotation));
  } else if (record.type == kTypeEvaluation) {
    Evaluation evaluation;
    if (!ParseEvaluation(record.payload, &evaluation)) {
      ++dropped_;
      return;
    }
    std::erase_if(evaluations_, [&](const Evaluation& e) { return SameSubject(e, evaluation); });
    evaluations_.push_back(std::move(evaluation));
  } else {
    ++dropped_;  // of a newer version that this one cannot use
  }
}

std::vector<CatalogRecord> Catalog::Snapshot() const {
  std::vector<CatalogRecord> records;
  for (const auto& [id, descriptor] : descriptors_) records.push_back(DescriptorRecord(descriptor));
  for (const CatalogRotation& rotation : rotations_) records.push_back(RotationRecord(rotation));
  for (const CatalogLayout& layout : layouts_) records.push_back(LayoutRecord(layout));
  for (const Evaluation& evaluation : evaluations_) records.push_back(EvaluationRecord(evaluation));
  return records;
}

absl::Status Catalog::Write(std::vector<CatalogRecord> records) {
  CRUMB_TRY(file_.Append(records));
  for (const CatalogRecord& record : records) {
    live_bytes_ += RecordBytes(record);
    Apply(record);
  }
  Publish();
  if (file_.size_bytes() < kRewriteBytesMin) return absl::OkStatus();
  const std::vector<CatalogRecord> live = Snapshot();
  live_bytes_ = 0;
  for (const CatalogRecord& record : live) live_bytes_ += RecordBytes(record);
  if (live_bytes_ * 2 > file_.size_bytes()) return absl::OkStatus();
  // The append above is durable already; a failed rewrite loses nothing and is tried again later.
  return file_.Rewrite(live);
}

const CodecDescriptor* Catalog::FindDescriptor(uint64_t id) const {
  const auto found = descriptors_.find(id);
  return found == descriptors_.end() ? nullptr : &found->second;
}

const CatalogLayout* Catalog::FindLayout(const std::string& tenant,
                                         const std::string& canonical) const {
  for (const CatalogLayout& layout : layouts_) {
    if (layout.tenant == tenant && layout.canonical == canonical) return &layout;
  }
  return nullptr;
}

absl::StatusOr<CatalogRotation> Catalog::FindRotation(const std::string& hex) const {
  if (hex.empty() || hex.size() > kHashHexBytes ||
      hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotation \"", hex.substr(0, kHashHexBytes),
                     "\" is no hash: write lower-case hexadecimal, or a unique beginning of it"));
  }
  const CatalogRotation* found = nullptr;
  for (const CatalogRotation& rotation : rotations_) {
    if (!absl::StartsWith(Hex(rotation.hash), hex)) continue;
    if (found != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("rotation ", hex, " names several sets: write more of its hash"));
    }
    found = &rotation;
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("rotation ", hex,
                     " is not here: import it (crumbctl rotation import), or list what is "
                     "(crumbctl rotation ls)"));
  }
  return *found;
}

const CatalogRotation* Catalog::NewestRotation(const std::string& model,
                                               const std::string& revision) const {
  const CatalogRotation* newest = nullptr;
  for (const CatalogRotation& rotation : rotations_) {
    if (rotation.model != model || rotation.revision != revision) continue;
    if (newest == nullptr || rotation.order > newest->order) newest = &rotation;
  }
  return newest;
}

absl::StatusOr<std::shared_ptr<const RotationSet>> Catalog::LoadRotation(const Sha256& hash) {
  if (std::shared_ptr<const RotationSet> set = loaded_[hash].lock()) return set;
  const std::string name = RotationFileName(hash);
  const std::string path = absl::StrCat(rotations_dir_.path(), "/", name);
  const absl::StatusOr<std::string> content = rotations_dir_.Read(name, kRotationFileBytesMax);
  if (!content.ok()) {
    return absl::Status(content.status().code(),
                        absl::StrCat(content.status().message(), ": import the set again"));
  }
  absl::StatusOr<std::shared_ptr<const RotationSet>> set = RotationSet::Parse(AsBytes(*content));
  if (!set.ok() || (*set)->hash() != hash) {
    ++dropped_;
    Publish();
    return absl::DataLossError(absl::StrCat(
        path, ": ",
        set.ok() ? "content is not what its name says" : std::string(set.status().message()),
        ": import the set again"));
  }
  loaded_[hash] = *set;
  return set;
}

absl::Status Catalog::PutLayout(CatalogLayout layout,
                                absl::Span<const CodecDescriptor> descriptors) {
  std::vector<CatalogRecord> records;
  for (const CodecDescriptor& descriptor : descriptors) {
    const uint64_t id = descriptor.id();
    if (FindDescriptor(id) == nullptr) records.push_back(DescriptorRecord(descriptor));
    layout.descriptor_ids.push_back(id);
  }
  const CatalogLayout* known = FindLayout(layout.tenant, layout.canonical);
  if (known != nullptr) {
    layout.descriptor_ids.insert(layout.descriptor_ids.end(), known->descriptor_ids.begin(),
                                 known->descriptor_ids.end());
    if (layout.name.empty()) layout.name = known->name;
  }
  std::sort(layout.descriptor_ids.begin(), layout.descriptor_ids.end());
  layout.descriptor_ids.erase(
      std::unique(layout.descriptor_ids.begin(), layout.descriptor_ids.end()),
      layout.descriptor_ids.end());
  if (layout.descriptor_ids.size() > kDescriptorIdsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this layout had more than ", kDescriptorIdsMax, " codecs: flush it"));
  }
  if (known != nullptr && *known == layout && records.empty()) return absl::OkStatus();
  records.push_back(LayoutRecord(layout));
  return Write(std::move(records));
}

absl::Status Catalog::PutRotation(const std::shared_ptr<const RotationSet>& set) {
  const RotationSet::Contents& contents = set->contents();
  const std::string serialized = set->Serialize();
  CRUMB_TRY(rotations_dir_.Replace(RotationFileName(set->hash()), AsBytes(serialized)));
  loaded_[set->hash()] = set;
  uint64_t order = 1;
  for (const CatalogRotation& rotation : rotations_) order = std::max(order, rotation.order + 1);
  return Write({RotationRecord({.hash = set->hash(),
                                .model = contents.model,
                                .revision = contents.revision,
                                .order = order})});
}

absl::Status Catalog::PutEvaluation(const Evaluation& evaluation) {
  const bool known =
      std::any_of(evaluations_.begin(), evaluations_.end(),
                  [&](const Evaluation& other) { return SameSubject(other, evaluation); });
  if (!known && evaluations_.size() >= kEvaluationsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kEvaluationsMax, " evaluations are recorded; that is the most"));
  }
  return Write({EvaluationRecord(evaluation)});
}

}  // namespace crumb
