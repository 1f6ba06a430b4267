// Checks of a rotation set's contents. Everything here runs once per set, on the control path.
#include "gpu/codec/rotation_set.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpu/codec/read_file.h"

namespace crumb {
namespace {

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("rotation set: ", what));
}

std::string Where(const RotationLayer& layer, absl::string_view tensor) {
  return absl::StrCat("layer ", layer.layer_id, " ", tensor, ": ");
}

absl::Status CheckText(absl::string_view field, const std::string& text, size_t bytes_max) {
  if (text.size() > bytes_max) {
    return Bad(absl::StrCat(field, " has ", text.size(), " bytes; at most ", bytes_max));
  }
  // Printed in logs, terminals and JSON.
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return Bad(absl::StrCat(field, " holds a control character; use printable text"));
    }
  }
  return absl::OkStatus();
}

bool DimIsValid(uint32_t dim) { return dim >= 4 && dim <= kRotationDimMax && dim % 4 == 0; }

absl::Status CheckRotation(const std::string& where, const LayerRotation& rotation) {
  if (rotation.heads == 0) {
    if (rotation.dim != 0 || !rotation.matrix.empty()) {
      return Bad(absl::StrCat(where, "a matrix without heads"));
    }
    return absl::OkStatus();
  }
  if (rotation.heads > kRotationHeadsMax) {
    return Bad(absl::StrCat(where, rotation.heads, " heads; at most ", kRotationHeadsMax));
  }
  if (!DimIsValid(rotation.dim)) {
    return Bad(absl::StrCat(where, "dimension ", rotation.dim, "; a multiple of 4 from 4 to ",
                            kRotationDimMax, " is needed"));
  }
  const size_t area = size_t{rotation.dim} * rotation.dim;
  if (rotation.matrix.size() != rotation.heads * area) {
    return Bad(absl::StrCat(where, rotation.matrix.size(), " elements instead of ",
                            rotation.heads * area));
  }
  for (uint32_t head = 0; head < rotation.heads; ++head) {
    const auto matrix = absl::MakeConstSpan(rotation.matrix).subspan(head * area, area);
    const double error = OrthogonalityError(matrix, rotation.dim);
    if (!(error <= kOrthogonalityMax)) {
      return Bad(absl::StrFormat("%shead %u is not orthogonal: max |R R^T - I| is %.3g, above %.3g",
                                 where, head, error, kOrthogonalityMax));
    }
  }
  return absl::OkStatus();
}

// M + ridge must factor as L D L^T with positive D, or the encoder's feedback has no meaning.
// The ridge (1e-3 of the mean diagonal) absorbs FP32 rounding; the encoder adds 3e-2.
bool IsPositiveSemiDefinite(absl::Span<const float> moment, uint32_t dim, double trace) {
  const double ridge = 1e-3 * trace / dim;
  std::vector<double> a(moment.begin(), moment.end());
  for (uint32_t i = 0; i < dim; ++i) a[size_t{i} * dim + i] += ridge;
  for (uint32_t k = 0; k < dim; ++k) {
    const double* pivot_row = a.data() + size_t{k} * dim;
    if (!(pivot_row[k] > 0.0)) return false;
    for (uint32_t i = k + 1; i < dim; ++i) {
      double* row = a.data() + size_t{i} * dim;
      const double factor = row[k] / pivot_row[k];
      if (factor == 0.0) continue;
      for (uint32_t j = k + 1; j < dim; ++j) row[j] -= factor * pivot_row[j];
    }
  }
  return true;
}

absl::Status CheckMoment(const std::string& where, absl::Span<const float> moment, uint32_t dim) {
  double trace = 0.0;
  double largest = 0.0;
  for (const float value : moment) {
    if (!std::isfinite(value)) return Bad(absl::StrCat(where, "NaN or Inf in the query moment"));
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  for (uint32_t i = 0; i < dim; ++i) {
    trace += moment[size_t{i} * dim + i];
    for (uint32_t j = 0; j < i; ++j) {
      const double gap = std::abs(static_cast<double>(moment[size_t{i} * dim + j]) -
                                  static_cast<double>(moment[size_t{j} * dim + i]));
      if (gap > 1e-4 * largest) {
        return Bad(
            absl::StrFormat("%sthe query moment is not symmetric: element %u,%u", where, i, j));
      }
    }
  }
  if (!(trace > 0.0) || !IsPositiveSemiDefinite(moment, dim, trace)) {
    return Bad(absl::StrCat(where, "the query moment is not positive semi-definite"));
  }
  return absl::OkStatus();
}

absl::Status CheckStatistics(RotationLayer& layer) {
  if (layer.query_moment.empty() && layer.k_mean.empty()) {
    layer.kv_heads = 0;
    layer.k_dim = layer.k.dim;
    return absl::OkStatus();
  }
  const std::string where = Where(layer, "K statistics");
  if (layer.k_dim == 0) layer.k_dim = layer.k.dim;
  if (!DimIsValid(layer.k_dim) || (layer.k.heads != 0 && layer.k.dim != layer.k_dim)) {
    return Bad(absl::StrCat(where, "dimension ", layer.k_dim, " beside a rotation of dimension ",
                            layer.k.dim));
  }
  if (layer.kv_heads == 0 || layer.kv_heads > kRotationHeadsMax ||
      (layer.k.heads > 1 && layer.kv_heads > 1 && layer.k.heads != layer.kv_heads)) {
    return Bad(absl::StrCat(where, layer.kv_heads, " kv heads beside a rotation of ", layer.k.heads,
                            " heads"));
  }
  const size_t area = size_t{layer.k_dim} * layer.k_dim;
  if (!layer.k_mean.empty() && layer.k_mean.size() != size_t{layer.kv_heads} * layer.k_dim) {
    return Bad(absl::StrCat(where, layer.k_mean.size(), " elements of the mean instead of ",
                            size_t{layer.kv_heads} * layer.k_dim));
  }
  for (const float value : layer.k_mean) {
    if (!std::isfinite(value)) return Bad(absl::StrCat(where, "NaN or Inf in the mean"));
  }
  if (layer.query_moment.empty()) return absl::OkStatus();
  if (layer.query_moment.size() != layer.kv_heads * area) {
    return Bad(absl::StrCat(where, layer.query_moment.size(),
                            " elements of the query moment instead of ", layer.kv_heads * area));
  }
  for (uint32_t head = 0; head < layer.kv_heads; ++head) {
    const auto moment = absl::MakeConstSpan(layer.query_moment).subspan(head * area, area);
    CRUMB_TRY(CheckMoment(absl::StrCat(where, "head ", head, ": "), moment, layer.k_dim));
  }
  return absl::OkStatus();
}

absl::Status CheckLayer(RotationLayer& layer) {
  CRUMB_TRY(CheckRotation(Where(layer, "R_K"), layer.k));
  CRUMB_TRY(CheckRotation(Where(layer, "R_V"), layer.v));
  CRUMB_TRY(CheckStatistics(layer));
  if (layer.k.heads == 0 && layer.v.heads == 0 && layer.kv_heads == 0) {
    return Bad(absl::StrCat("layer ", layer.layer_id, " holds nothing"));
  }
  return absl::OkStatus();
}

absl::Status CheckContents(RotationSet::Contents& contents) {
  CRUMB_TRY(CheckText("model", contents.model, kRotationNameBytesMax));
  CRUMB_TRY(CheckText("revision", contents.revision, kRotationNameBytesMax));
  CRUMB_TRY(CheckText("objective", contents.objective, kRotationNameBytesMax));
  CRUMB_TRY(CheckText("provenance", contents.provenance, kRotationProvenanceBytesMax));
  if (contents.model.empty() || contents.revision.empty()) {
    return Bad("model and revision must be named: a set fits one version of one model");
  }
  if (!(contents.gamma >= 0.0f && contents.gamma <= 1.0f)) {
    return Bad(absl::StrCat("gamma is ", contents.gamma, "; a value from 0 to 1 is needed"));
  }
  if (contents.layers.empty() || contents.layers.size() > kRotationLayersMax) {
    return Bad(absl::StrCat(contents.layers.size(), " layers; 1 to ", kRotationLayersMax,
                            " are possible"));
  }
  for (size_t i = 1; i < contents.layers.size(); ++i) {
    if (contents.layers[i - 1].layer_id >= contents.layers[i].layer_id) {
      return Bad(
          absl::StrCat("layer ids are not strictly ascending at ", contents.layers[i].layer_id));
    }
  }
  uint64_t bytes = 0;
  for (const RotationLayer& layer : contents.layers) {
    bytes += sizeof(float) * (uint64_t{layer.k.matrix.size()} + layer.v.matrix.size() +
                              layer.query_moment.size() + layer.k_mean.size());
  }
  if (bytes > kRotationFileBytesMax / 2) {
    return Bad(absl::StrCat(bytes, " bytes of data; at most ", kRotationFileBytesMax / 2));
  }
  for (RotationLayer& layer : contents.layers) CRUMB_TRY(CheckLayer(layer));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RotationSet>> RotationSet::Make(Contents contents) {
  CRUMB_TRY(CheckContents(contents));
  struct Maker final : RotationSet {};  // the constructor is private to this class
  const auto set = std::make_shared<Maker>();
  set->contents_ = std::move(contents);
  // The trailer of the file is the hash of everything before it.
  const std::string file = set->Serialize();
  std::copy_n(reinterpret_cast<const uint8_t*>(file.data()) + file.size() - set->hash_.size(),
              set->hash_.size(), set->hash_.begin());
  return set;
}

absl::StatusOr<std::shared_ptr<const RotationSet>> RotationSet::Load(const std::string& path) {
  CRUMB_ASSIGN(const std::string file, ReadWholeFile(path, kRotationFileBytesMax));
  auto set = Parse({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
  if (!set.ok()) {
    return absl::Status(set.status().code(), absl::StrCat(path, ": ", set.status().message()));
  }
  return set;
}

const RotationLayer* RotationSet::FindLayer(uint32_t layer_id) const {
  const auto& layers = contents_.layers;
  const auto found =
      std::lower_bound(layers.begin(), layers.end(), layer_id,
                       [](const RotationLayer& layer, uint32_t id) { return layer.layer_id < id; });
  return found != layers.end() && found->layer_id == layer_id ? &*found : nullptr;
}

bool RotationSet::calibrated() const {
  return std::all_of(contents_.layers.begin(), contents_.layers.end(), [](const auto& layer) {
    return !layer.query_moment.empty() && !layer.k_mean.empty();
  });
}

Sha256 RotationSet::MatrixHash(absl::Span<const float> matrix) {
  return Sha256Of({reinterpret_cast<const uint8_t*>(matrix.data()), matrix.size() * sizeof(float)});
}

}  // namespace crumb
