// Loading and cutting of the sample; see sample.h.
#include "client/demo/sample.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"
#include "client/demo/npz.h"

namespace crumb::demo {
namespace {

constexpr const char* kFileName = "smollm2_qkv_sample.npz";
constexpr std::array<uint32_t, 3> kLayerIds = {0, 15, 29};

absl::StatusOr<const NpyArray*> Find(const NpzFile& file, const std::string& name,
                                     const char* dtype, size_t rank) {
  if (!file.Has(name)) return absl::InvalidArgumentError(absl::StrCat("no array ", name));
  const NpyArray& array = file[name];
  if (array.dtype != dtype || array.shape.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not a ", rank, "-d array of ", dtype));
  }
  return &array;
}

// Copies one [token][head][dim] array; the first one fixes the shape of the others.
absl::StatusOr<std::vector<uint16_t>> Tensor(const NpzFile& file, const std::string& name,
                                             Sample& sample, uint32_t& heads) {
  CRUMB_ASSIGN(const NpyArray* array, Find(file, name, "u2", 3));
  const std::vector<size_t>& shape = array->shape;
  if (heads == 0) heads = static_cast<uint32_t>(std::min<size_t>(shape[1], UINT32_MAX));
  if (shape[0] != sample.tokens || shape[1] != heads || shape[2] != sample.dim) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not of shape [", sample.tokens, ",", heads, ",", sample.dim, "]"));
  }
  const auto values = array->values<uint16_t>();
  return std::vector<uint16_t>(values.begin(), values.end());
}

absl::StatusOr<Sample> Load(const NpzFile& file) {
  Sample sample;
  CRUMB_ASSIGN(const NpyArray* ids, Find(file, "token_ids", "i4", 1));
  const auto values = ids->values<int32_t>();
  sample.token_ids.assign(values.begin(), values.end());
  sample.tokens = static_cast<uint32_t>(std::min<size_t>(values.size(), UINT32_MAX));
  CRUMB_ASSIGN(const NpyArray* first, Find(file, "layer0_k_bf16", "u2", 3));
  sample.dim = static_cast<uint32_t>(std::min<size_t>(first->shape[2], UINT32_MAX));
  for (const uint32_t id : kLayerIds) {
    SampleLayer layer;
    layer.layer_id = id;
    const std::string prefix = absl::StrCat("layer", id);
    CRUMB_ASSIGN(layer.q, Tensor(file, prefix + "_q_bf16", sample, sample.q_heads));
    CRUMB_ASSIGN(layer.k, Tensor(file, prefix + "_k_bf16", sample, sample.kv_heads));
    CRUMB_ASSIGN(layer.v, Tensor(file, prefix + "_v_bf16", sample, sample.kv_heads));
    sample.layers.push_back(std::move(layer));
  }
  if (sample.tokens == 0 || sample.tokens % kPageTokens != 0 || sample.kv_heads == 0 ||
      sample.q_heads % sample.kv_heads != 0 || sample.dim == 0) {
    return absl::InvalidArgumentError("token or head counts do not fit pages of 64 tokens");
  }
  return sample;
}

// Runs `copy` for every row of a page: (row in the sample, row in the page), rows of `dim` values.
template <typename Copy>
void ForEachRow(const Sample& sample, uint32_t page, Copy copy) {
  size_t row = 0;
  for (size_t layer = 0; layer < sample.layers.size(); ++layer) {
    for (const bool is_v : {false, true}) {
      for (uint32_t head = 0; head < sample.kv_heads; ++head) {
        for (uint32_t t = 0; t < kPageTokens; ++t, ++row) {
          const size_t token = size_t{page} * kPageTokens + t;
          copy(layer, is_v, (token * sample.kv_heads + head) * sample.dim, row * sample.dim);
        }
      }
    }
  }
}

}  // namespace

absl::StatusOr<Sample> LoadSample(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kFileName);
  CRUMB_ASSIGN(const NpzFile file, NpzFile::Open(path));
  auto sample = Load(file);
  if (!sample.ok()) {
    return absl::Status(sample.status().code(),
                        absl::StrCat(path, ": ", sample.status().message()));
  }
  return sample;
}

void WritePage(const Sample& sample, uint32_t page, MutableBytes raw) {
  CRUMB_CHECK(page < sample.page_count() && raw.size() == sample.page_bytes());
  const size_t row_bytes = sample.dim * sizeof(uint16_t);
  ForEachRow(sample, page, [&](size_t layer, bool is_v, size_t from, size_t to) {
    const SampleLayer& source = sample.layers[layer];
    const std::vector<uint16_t>& values = is_v ? source.v : source.k;
    std::memcpy(raw.data() + to * sizeof(uint16_t), values.data() + from, row_bytes);
  });
}

void ReadPage(Bytes raw, uint32_t page, Sample& sample) {
  CRUMB_CHECK(page < sample.page_count() && raw.size() == sample.page_bytes());
  const size_t row_bytes = sample.dim * sizeof(uint16_t);
  ForEachRow(sample, page, [&](size_t layer, bool is_v, size_t to, size_t from) {
    SampleLayer& target = sample.layers[layer];
    std::vector<uint16_t>& values = is_v ? target.v : target.k;
    std::memcpy(values.data() + to, raw.data() + from * sizeof(uint16_t), row_bytes);
  });
}

std::vector<std::string> PrefixKeys(const Sample& sample) {
  std::vector<std::string> keys;
  for (uint32_t page = 0; page < sample.page_count(); ++page) {
    const size_t tokens = size_t{page + 1} * kPageTokens;
    const Bytes prefix(reinterpret_cast<const uint8_t*>(sample.token_ids.data()),
                       tokens * sizeof(int32_t));
    keys.push_back("smollm2/" + Hex(Sha256Of(prefix)));
  }
  return keys;
}

}  // namespace crumb::demo
