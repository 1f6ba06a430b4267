// Makes torch.save files in memory, honest and hostile, without torch: a writer of the pickle
// opcodes and a writer of zips. Tests only; one thread.
#ifndef CRUMB_TESTS_UNIT_GPU_CODEC_PT_BUILDER_H_
#define CRUMB_TESTS_UNIT_GPU_CODEC_PT_BUILDER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachesvc/base/types.h"

namespace crumb::testing {

inline Bytes View(const std::string& data) {
  return {reinterpret_cast<const uint8_t*>(data.data()), data.size()};
}

// Appends opcodes; the caller decides whether they make sense.
class PickleWriter {
 public:
  PickleWriter& Raw(std::string_view bytes);
  PickleWriter& Proto() { return Raw(std::string_view("\x80\x02", 2)); }
  PickleWriter& Stop() { return Raw("."); }
  PickleWriter& Mark() { return Raw("("); }
  PickleWriter& EmptyDict() { return Raw("}"); }
  PickleWriter& SetItems() { return Raw("u"); }
  PickleWriter& Tuple() { return Raw("t"); }
  PickleWriter& Reduce() { return Raw("R"); }
  PickleWriter& Int(int64_t value);  // the shortest of BININT1, BININT2, BININT, LONG1
  PickleWriter& Text(std::string_view text);
  PickleWriter& Global(std::string_view module, std::string_view name);
  PickleWriter& Put(uint32_t index);
  PickleWriter& Get(uint32_t index);

  struct TensorSpec {
    std::string key = "0";
    std::string type = "FloatStorage";
    int64_t elements = 0;
    int64_t offset = 0;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  PickleWriter& Tensor(const TensorSpec& spec);

  const std::string& str() const { return out_; }

 private:
  std::string out_;
};

using ZipEntries = std::vector<std::pair<std::string, std::string>>;
enum class ZipMethod { kStored, kDeflated };
// Aborts if libzip refuses.
std::string MakeZip(const ZipEntries& entries, ZipMethod method = ZipMethod::kStored);

std::string FloatBytes(const std::vector<float>& values);

// What a small, honest rotation file holds.
struct PtSpec {
  int format_version = 1;
  std::string objective = "qqt_r_h_pbr";
  std::string grouping = "layer";
  uint32_t heads = 0;  // 0: [d,d]; else [heads,d,d]
  uint32_t dim = 8;
  std::vector<uint32_t> layer_ids = {0, 1, 2};
  bool text_keys = false;
  bool k_mean = false;
  bool companions = false;  // q_rotation = rotation
  float companion_error = 0.0f;
  float matrix_error = 0.0f;  // added to one element of the last layer
};
// Matrices are Hadamard, with columns rotated by the layer's index so that layers differ.
std::vector<float> PtSpecMatrix(const PtSpec& spec, uint32_t layer_index);
ZipEntries MakePtEntries(const PtSpec& spec);
std::string MakePt(const PtSpec& spec);

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_GPU_CODEC_PT_BUILDER_H_
