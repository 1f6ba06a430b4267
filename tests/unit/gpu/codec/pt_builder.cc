// Opcode numbers from the pickle protocol; zip writing by libzip.
#include "tests/unit/gpu/codec/pt_builder.h"

#include <zip.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cachesvc/base/bytes.h"
#include "gpu/codec/rotation_set.h"

namespace crumb::testing {
namespace {

template <typename T>
std::string Little(T value) {
  ByteWriter out;
  out.Write(value);
  return out.str();
}

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "pt_builder: %s\n", what);
  std::abort();
}

}  // namespace

PickleWriter& PickleWriter::Raw(std::string_view bytes) {
  out_.append(bytes);
  return *this;
}

PickleWriter& PickleWriter::Int(int64_t value) {
  if (value >= 0 && value < 256) return Raw("K").Raw(Little(static_cast<uint8_t>(value)));
  if (value >= 0 && value < 65536) return Raw("M").Raw(Little(static_cast<uint16_t>(value)));
  if (value >= INT32_MIN && value <= INT32_MAX) {
    return Raw("J").Raw(Little(static_cast<int32_t>(value)));
  }
  return Raw("\x8a\x08").Raw(Little(value));
}

PickleWriter& PickleWriter::Text(std::string_view text) {
  return Raw("X").Raw(Little(static_cast<uint32_t>(text.size()))).Raw(text);
}

PickleWriter& PickleWriter::Global(std::string_view module, std::string_view name) {
  return Raw("c").Raw(module).Raw("\n").Raw(name).Raw("\n");
}

PickleWriter& PickleWriter::Put(uint32_t index) {
  if (index < 256) return Raw("q").Raw(Little(static_cast<uint8_t>(index)));
  return Raw("r").Raw(Little(index));
}

PickleWriter& PickleWriter::Get(uint32_t index) {
  if (index < 256) return Raw("h").Raw(Little(static_cast<uint8_t>(index)));
  return Raw("j").Raw(Little(index));
}

PickleWriter& PickleWriter::Tensor(const TensorSpec& spec) {
  Global("torch._utils", "_rebuild_tensor_v2").Mark();
  Mark().Text("storage").Global("torch", spec.type).Text(spec.key).Text("cpu").Int(spec.elements);
  Tuple().Raw("Q").Int(spec.offset);
  Mark();
  for (const int64_t size : spec.sizes) Int(size);
  Tuple().Mark();
  for (const int64_t stride : spec.strides) Int(stride);
  Tuple().Raw("\x89").Global("collections", "OrderedDict").Raw(")").Reduce();
  return Tuple().Reduce();
}

std::string MakeZip(const ZipEntries& entries, ZipMethod method) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* buffer = zip_source_buffer_create(nullptr, 0, 0, &error);
  if (buffer == nullptr) Die("no buffer");
  zip_source_keep(buffer);
  zip_t* archive = zip_open_from_source(buffer, ZIP_TRUNCATE, &error);
  if (archive == nullptr) Die("cannot open a zip in memory");
  for (const auto& [name, data] : entries) {
    zip_source_t* source = zip_source_buffer(archive, data.data(), data.size(), 0);
    const zip_int64_t index = zip_file_add(archive, name.c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) Die(zip_strerror(archive));
    const auto at = static_cast<zip_uint64_t>(index);
    zip_file_set_mtime(archive, at, 946684800, 0);  // the same bytes on every run
    zip_set_file_compression(archive, at,
                             method == ZipMethod::kStored ? ZIP_CM_STORE : ZIP_CM_DEFLATE, 9);
  }
  if (zip_close(archive) != 0) Die("cannot write a zip");
  zip_stat_t info;
  zip_stat_init(&info);
  if (zip_source_stat(buffer, &info) != 0 || zip_source_open(buffer) != 0) Die("no zip made");
  std::string out(info.size, '\0');
  if (zip_source_read(buffer, out.data(), out.size()) != static_cast<zip_int64_t>(out.size())) {
    Die("zip cut");
  }
  zip_source_close(buffer);
  zip_source_free(buffer);
  zip_error_fini(&error);
  return out;
}

std::string FloatBytes(const std::vector<float>& values) {
  std::string out(values.size() * sizeof(float), '\0');
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

std::vector<float> PtSpecMatrix(const PtSpec& spec, uint32_t layer_index) {
  const std::vector<float> hadamard = HadamardMatrix(spec.dim);
  const uint32_t heads = spec.heads == 0 ? 1 : spec.heads;
  std::vector<float> out;
  for (uint32_t head = 0; head < heads; ++head) {
    for (uint32_t row = 0; row < spec.dim; ++row) {
      for (uint32_t column = 0; column < spec.dim; ++column) {
        const uint32_t from = (column + layer_index + 3 * head) % spec.dim;
        out.push_back(hadamard[size_t{row} * spec.dim + from]);
      }
    }
  }
  if (layer_index + 1 == spec.layer_ids.size()) out[1] += spec.matrix_error;
  return out;
}

ZipEntries MakePtEntries(const PtSpec& spec) {
  PickleWriter pickle;
  ZipEntries data;
  const int64_t dim = spec.dim;
  const auto tensor = [&](const std::vector<float>& values, std::vector<int64_t> sizes) {
    PickleWriter::TensorSpec out{.key = std::to_string(data.size()),
                                 .elements = static_cast<int64_t>(values.size()),
                                 .sizes = std::move(sizes),
                                 .strides = {}};
    int64_t stride = 1;
    for (size_t i = out.sizes.size(); i > 0; --i) {
      out.strides.insert(out.strides.begin(), stride);
      stride *= out.sizes[i - 1];
    }
    data.emplace_back("archive/data/" + out.key, FloatBytes(values));
    pickle.Tensor(out);
  };
  std::vector<int64_t> shape = {dim, dim};
  if (spec.heads != 0) shape.insert(shape.begin(), spec.heads);
  pickle.Proto().EmptyDict().Put(0).Mark();
  pickle.Text("format_version").Int(spec.format_version);
  pickle.Text("objective").Text(spec.objective).Text("source_grouping").Text(spec.grouping);
  pickle.Text("layers").EmptyDict().Mark();
  for (uint32_t i = 0; i < spec.layer_ids.size(); ++i) {
    const uint32_t id = spec.layer_ids[i];
    spec.text_keys ? pickle.Text(std::to_string(id)) : pickle.Int(id);
    std::vector<float> matrix = PtSpecMatrix(spec, i);
    pickle.EmptyDict().Mark().Text("layer_id").Int(id).Text("rotation");
    tensor(matrix, shape);
    pickle.Text("eigenvalues");
    tensor(std::vector<float>(spec.dim, 1.0f), {dim});
    if (spec.k_mean) {
      pickle.Text("k_mean");
      tensor(std::vector<float>(spec.dim, 0.5f + static_cast<float>(i)), {dim});
    }
    if (spec.companions) {
      matrix[0] += spec.companion_error;
      pickle.Text("q_rotation");
      tensor(matrix, shape);
    }
    pickle.SetItems();
  }
  pickle.SetItems().SetItems().Stop();
  ZipEntries entries = {{"archive/data.pkl", pickle.str()}, {"archive/byteorder", "little"}};
  entries.insert(entries.end(), data.begin(), data.end());
  entries.emplace_back("archive/version", "3\n");
  return entries;
}

std::string MakePt(const PtSpec& spec) { return MakeZip(MakePtEntries(spec)); }

}  // namespace crumb::testing
