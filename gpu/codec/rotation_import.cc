// From an unpacked and parsed .pt file to checked rotation matrices. Formats 1 (one matrix per
// layer), 2 (one per kv head) and 3 (with companions); see docs/rotations.md.
#include "gpu/codec/rotation_import.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpu/codec/pickle.h"
#include "gpu/codec/pt_archive.h"
#include "gpu/codec/read_file.h"

namespace crumb {
namespace {

constexpr uint64_t kExtractedElementsMax = 1ull << 28;  // 1 GiB of FP32 out of one file
constexpr size_t kLayerFieldsMax = 64;
constexpr uint32_t kLayerIdMax = 1u << 20;
constexpr float kCompanionGapMax = 1e-3f;

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

float HalfToFloat(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

template <typename T>
T LoadAt(const std::string& data, uint64_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

float ElementAt(const std::string& data, StorageType type, uint64_t index) {
  switch (type) {
    case StorageType::kFloat:
      return LoadAt<float>(data, index);
    case StorageType::kDouble:
      return static_cast<float>(LoadAt<double>(data, index));
    case StorageType::kHalf:
      return HalfToFloat(LoadAt<uint16_t>(data, index));
    case StorageType::kBFloat16:
      return std::bit_cast<float>(uint32_t{LoadAt<uint16_t>(data, index)} << 16);
  }
  return 0.0f;
}

// Copies tensors out of the archive; remembers the last storage, since tensors may share one.
class TensorReader {
 public:
  TensorReader(const PtArchive& archive, const Pickle& pickle)
      : archive_(archive), pickle_(pickle) {}

  // Row-major FP32. REQUIRES: tensor.kind == kTensor.
  absl::StatusOr<std::vector<float>> Read(const PickleValue& tensor) {
    const PickleValue& storage = pickle_.at(tensor.items[0]);
    std::array<uint64_t, 4> sizes{1, 1, 1, 1};
    std::array<uint64_t, 4> strides{};
    const size_t skip = sizes.size() - tensor.sizes.size();
    uint64_t count = 1;
    for (size_t i = 0; i < tensor.sizes.size(); ++i) {
      sizes[skip + i] = tensor.sizes[i];
      strides[skip + i] = tensor.strides[i];
      // Each factor is at most 2^20, the product so far at most 2^28.
      count *= tensor.sizes[i];
      if (count > kExtractedElementsMax - extracted_) return Bad("tensors of over 1 GiB");
    }
    extracted_ += count;
    CRUMB_TRY(LoadStorage(storage));
    std::vector<float> out;
    out.reserve(count);
    const auto base = static_cast<uint64_t>(tensor.integer);
    for (uint64_t i = 0; i < sizes[0] * sizes[1] * sizes[2]; ++i) {
      const uint64_t row = i / (sizes[1] * sizes[2]) * strides[0] +
                           i / sizes[2] % sizes[1] * strides[1] + i % sizes[2] * strides[2];
      for (uint64_t c = 0; c < sizes[3]; ++c) {
        out.push_back(ElementAt(data_, storage.storage_type, base + row + c * strides[3]));
      }
    }
    return out;
  }

 private:
  absl::Status LoadStorage(const PickleValue& storage) {
    const uint64_t bytes =
        static_cast<uint64_t>(storage.integer) * StorageElementBytes(storage.storage_type);
    if (!loaded_ || storage.text != key_) {
      loaded_ = false;
      CRUMB_ASSIGN(data_, archive_.Read(absl::StrCat("data/", storage.text), kPtFileBytesMax));
      key_ = storage.text;
      loaded_ = true;
    }
    if (data_.size() != bytes) {
      return Bad(absl::StrCat("storage '", absl::CHexEscape(key_), "' has ", data_.size(),
                              " bytes, the pickle claims ", bytes));
    }
    return absl::OkStatus();
  }

  const PtArchive& archive_;
  const Pickle& pickle_;
  std::string key_;
  std::string data_;
  bool loaded_ = false;
  uint64_t extracted_ = 0;
};

// [d, d] or [heads, d, d]; the shape is judged before anything is read.
struct MatrixShape {
  uint32_t heads = 0;
  uint32_t dim = 0;
  friend bool operator==(const MatrixShape&, const MatrixShape&) = default;
};

absl::StatusOr<MatrixShape> ShapeOf(const PickleValue& tensor) {
  if (tensor.kind != PickleKind::kTensor) {
    return Bad(absl::StrCat("not a tensor but: ", ToString(tensor.kind)));
  }
  const std::vector<uint64_t>& sizes = tensor.sizes;
  if (sizes.size() != 2 && sizes.size() != 3) {
    return Bad(absl::StrCat(sizes.size(), " dimensions; [d,d] or [kv heads,d,d] is needed"));
  }
  const uint64_t dim = sizes.back();
  const uint64_t heads = sizes.size() == 3 ? sizes.front() : 1;
  if (sizes[sizes.size() - 2] != dim || dim > kRotationDimMax || heads > kRotationHeadsMax) {
    return Bad(absl::StrCat("shape ", heads, " x ", sizes[sizes.size() - 2], " x ", dim,
                            "; square matrices of at most ", kRotationDimMax, " are needed"));
  }
  return MatrixShape{static_cast<uint32_t>(heads), static_cast<uint32_t>(dim)};
}

absl::Status CheckOrthogonal(const PtLayer& layer) {
  const size_t area = size_t{layer.dim} * layer.dim;
  for (uint32_t head = 0; head < layer.heads; ++head) {
    const auto matrix = absl::MakeConstSpan(layer.rotation).subspan(head * area, area);
    const double error = OrthogonalityError(matrix, layer.dim);
    if (!(error <= kOrthogonalityMax)) {
      return Bad(absl::StrFormat("head %u is not orthogonal: max |R R^T - I| is %.3g, above %.3g",
                                 head, error, kOrthogonalityMax));
    }
  }
  return absl::OkStatus();
}

// Companions R^-T equal R where R is orthogonal; anything else needs a codec that uses them.
absl::Status CheckCompanion(absl::string_view name, const PickleValue* tensor, const PtLayer& layer,
                            TensorReader& reader) {
  if (tensor == nullptr || tensor->kind == PickleKind::kNone) return absl::OkStatus();
  CRUMB_ASSIGN(const MatrixShape shape, ShapeOf(*tensor));
  if (shape != MatrixShape{layer.heads, layer.dim}) {
    return Bad(absl::StrCat(name, " has another shape than the rotation"));
  }
  CRUMB_ASSIGN(const std::vector<float> values, reader.Read(*tensor));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(std::abs(values[i] - layer.rotation[i]) <= kCompanionGapMax)) {
      return Bad(absl::StrCat(name,
                              " differs from the rotation: non-orthogonal variants are not "
                              "supported; use an orthogonal set of this model"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadEigenvalues(const PickleValue* tensor, TensorReader& reader, PtLayer& layer) {
  if (tensor == nullptr || tensor->kind == PickleKind::kNone) return absl::OkStatus();
  if (tensor->kind != PickleKind::kTensor) return Bad("eigenvalues are not a tensor");
  uint64_t count = 1;
  for (const uint64_t size : tensor->sizes) count = std::min(count * size, uint64_t{1} << 40);
  if (count != layer.dim && count != uint64_t{layer.heads} * layer.dim) {
    return Bad(absl::StrCat(count, " eigenvalues for dimension ", layer.dim));
  }
  CRUMB_ASSIGN(layer.eigenvalues, reader.Read(*tensor));
  return absl::OkStatus();
}

absl::Status ReadMean(const PickleValue* tensor, TensorReader& reader, PtLayer& layer) {
  if (tensor == nullptr || tensor->kind == PickleKind::kNone) return absl::OkStatus();
  if (tensor->kind != PickleKind::kTensor || tensor->sizes.size() > 2 ||
      tensor->sizes.back() != layer.dim || tensor->sizes.front() > kRotationHeadsMax) {
    return Bad(
        absl::StrCat("k_mean is not of shape [", layer.dim, "] or [kv heads,", layer.dim, "]"));
  }
  layer.mean_heads = tensor->sizes.size() == 2 ? static_cast<uint32_t>(tensor->sizes.front()) : 1;
  CRUMB_ASSIGN(layer.k_mean, reader.Read(*tensor));
  for (const float value : layer.k_mean) {
    if (!std::isfinite(value)) return Bad("NaN or Inf in k_mean");
  }
  return absl::OkStatus();
}

absl::StatusOr<PtLayer> ReadLayer(const Pickle& pickle, const PickleValue& fields,
                                  TensorReader& reader) {
  if (fields.kind != PickleKind::kDict || fields.items.size() > 2 * kLayerFieldsMax) {
    return Bad("not a small dictionary");
  }
  const PickleValue* rotation = pickle.Find(fields, "rotation");
  if (rotation == nullptr) return Bad("no 'rotation'");
  CRUMB_ASSIGN(const MatrixShape shape, ShapeOf(*rotation));
  PtLayer layer;
  layer.heads = shape.heads;
  layer.dim = shape.dim;
  CRUMB_ASSIGN(layer.rotation, reader.Read(*rotation));
  CRUMB_TRY(CheckOrthogonal(layer));
  CRUMB_TRY(ReadEigenvalues(pickle.Find(fields, "eigenvalues"), reader, layer));
  CRUMB_TRY(ReadMean(pickle.Find(fields, "k_mean"), reader, layer));
  for (const char* companion : {"q_rotation", "o_rotation"}) {
    CRUMB_TRY(CheckCompanion(companion, pickle.Find(fields, companion), layer, reader));
  }
  return layer;
}

// Layer keys are integers or decimal strings.
absl::StatusOr<uint32_t> LayerId(const PickleValue& key) {
  int64_t id = -1;
  if (key.kind == PickleKind::kInt) id = key.integer;
  if (key.kind == PickleKind::kString && !absl::SimpleAtoi(key.text, &id)) id = -1;
  if (id < 0 || id > kLayerIdMax) {
    return Bad(
        absl::StrCat("layer key '", absl::CHexEscape(key.text), "' (", id, ") is no layer number"));
  }
  return static_cast<uint32_t>(id);
}

absl::StatusOr<std::string> TextField(const Pickle& pickle, const PickleValue& root,
                                      absl::string_view name) {
  const PickleValue* value = pickle.Find(root, name);
  if (value == nullptr) return std::string();
  if (value->kind != PickleKind::kString || value->text.size() > kRotationNameBytesMax / 4) {
    return Bad(absl::StrCat("'", name, "' is not a short string"));
  }
  for (const char c : value->text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return Bad(absl::StrCat("'", name, "' holds a control character"));
    }
  }
  return value->text;
}

absl::Status ReadHead(const Pickle& pickle, const PickleValue& root, PtRotationFile& out) {
  if (root.kind != PickleKind::kDict || root.items.size() > 2 * kLayerFieldsMax) {
    return Bad(absl::StrCat("not the dictionary of a rotation file but: ", ToString(root.kind)));
  }
  const PickleValue* version = pickle.Find(root, "format_version");
  if (version == nullptr || version->kind != PickleKind::kInt || version->integer < 1 ||
      version->integer > 3) {
    return Bad("'format_version' is missing, or not 1, 2 or 3: not a rotation file");
  }
  out.format_version = static_cast<int>(version->integer);
  CRUMB_ASSIGN(out.objective, TextField(pickle, root, "objective"));
  CRUMB_ASSIGN(out.source_grouping, TextField(pickle, root, "source_grouping"));
  return absl::OkStatus();
}

absl::Status ReadLayers(const Pickle& pickle, TensorReader& reader, PtRotationFile& out) {
  const PickleValue* layers = pickle.Find(pickle.at(pickle.root), "layers");
  if (layers == nullptr || layers->kind != PickleKind::kDict || layers->items.empty() ||
      layers->items.size() > 2 * size_t{kRotationLayersMax}) {
    return Bad(
        absl::StrCat("'layers' is not a dictionary of 1 to ", kRotationLayersMax, " layers"));
  }
  for (size_t i = 0; i + 1 < layers->items.size(); i += 2) {
    CRUMB_ASSIGN(const uint32_t id, LayerId(pickle.at(layers->items[i])));
    const PickleValue& fields = pickle.at(layers->items[i + 1]);
    if (out.layers.contains(id)) return Bad(absl::StrCat("layer ", id, " is there twice"));
    absl::StatusOr<PtLayer> layer = ReadLayer(pickle, fields, reader);
    if (!layer.ok()) return Bad(absl::StrCat("layer ", id, ": ", layer.status().message()));
    const PickleValue* own_id = pickle.Find(fields, "layer_id");
    if (own_id != nullptr && (own_id->kind != PickleKind::kInt || own_id->integer != id)) {
      return Bad(absl::StrCat("layer ", id, ": its layer_id says otherwise"));
    }
    out.layers.emplace(id, *std::move(layer));
  }
  return absl::OkStatus();
}

absl::StatusOr<PtRotationFile> Parse(Bytes file) {
  if (file.size() > kPtFileBytesMax) return Bad("larger than 1 GiB");
  CRUMB_ASSIGN(const PtArchive archive, PtArchive::Open(file));
  const absl::StatusOr<std::string> order = archive.Read("byteorder", 16);
  if (!order.ok() && !absl::IsNotFound(order.status())) return order.status();
  if (order.ok() && *order != "little") return Bad("written on a big-endian machine");
  CRUMB_ASSIGN(const std::string data, archive.Read("data.pkl", kPtPickleBytesMax));
  CRUMB_ASSIGN(const Pickle pickle,
               ParsePickle({reinterpret_cast<const uint8_t*>(data.data()), data.size()}));
  PtRotationFile out;
  CRUMB_TRY(ReadHead(pickle, pickle.at(pickle.root), out));
  TensorReader reader(archive, pickle);
  CRUMB_TRY(ReadLayers(pickle, reader, out));
  out.file_hash = Sha256Of(file);
  return out;
}

absl::Status CheckSide(const PtRotationFile& file, absl::string_view side,
                       absl::Span<const absl::string_view> others) {
  for (const absl::string_view other : others) {
    if (absl::StartsWith(file.objective, other)) {
      return Bad(absl::StrCat(file.name, ": its objective '", file.objective, "' is not one for ",
                              side, ": are the two files swapped?"));
    }
  }
  return absl::OkStatus();
}

std::string Describe(const PtRotationFile& file) {
  return absl::StrCat(file.name, " (format ", file.format_version, ", ", file.objective, ", ",
                      file.source_grouping, ", sha256 ", Hex(file.file_hash), ")");
}

}  // namespace

absl::StatusOr<PtRotationFile> ParsePtRotation(Bytes file, const std::string& name) {
  absl::StatusOr<PtRotationFile> out = Parse(file);
  if (!out.ok()) return Bad(absl::StrCat(name, ": ", out.status().message()));
  out->name = name;
  return out;
}

absl::StatusOr<PtRotationFile> LoadPtRotation(const std::string& path) {
  CRUMB_ASSIGN(const std::string data, ReadWholeFile(path, kPtFileBytesMax));
  return ParsePtRotation({reinterpret_cast<const uint8_t*>(data.data()), data.size()}, path);
}

absl::StatusOr<RotationSet::Contents> CombinePtFiles(const PtRotationFile& k,
                                                     const PtRotationFile& v,
                                                     const CombineOptions& options) {
  CRUMB_TRY(CheckSide(k, "K", {"sst", "vtv"}));
  CRUMB_TRY(CheckSide(v, "V", {"qqt", "ktk"}));
  RotationSet::Contents contents{
      .model = options.model,
      .revision = options.revision,
      .objective = absl::StrCat(k.objective, " / ", v.objective),
      .provenance = absl::StrCat("imported from K: ", Describe(k), "; V: ", Describe(v), ". No ",
                                 "query moments, so crumb codecs use no metric feedback."),
      .gamma = options.gamma,
      .layers = {}};
  if (!options.note.empty()) absl::StrAppend(&contents.provenance, " ", options.note);
  for (const auto& [id, k_layer] : k.layers) {
    const auto found = v.layers.find(id);
    if (found == v.layers.end()) {
      return Bad(absl::StrCat("layer ", id, " is in ", k.name, " but not in ", v.name));
    }
    const PtLayer& v_layer = found->second;
    if (!v_layer.k_mean.empty()) return Bad(absl::StrCat(v.name, ": k_mean in the file for V"));
    contents.layers.push_back({.layer_id = id,
                               .k = {k_layer.heads, k_layer.dim, k_layer.rotation},
                               .v = {v_layer.heads, v_layer.dim, v_layer.rotation},
                               .kv_heads = k_layer.mean_heads,
                               .k_dim = k_layer.dim,
                               .query_moment = {},
                               .k_mean = k_layer.k_mean});
  }
  for (const auto& [id, layer] : v.layers) {
    if (!k.layers.contains(id)) {
      return Bad(absl::StrCat("layer ", id, " is in ", v.name, " but not in ", k.name));
    }
  }
  return contents;
}

}  // namespace crumb
