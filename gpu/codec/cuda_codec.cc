// Tables of a codec on its device. Control path, but for the launches; see the header.
#include "gpu/codec/cuda_codec.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "gpu/codec/crumb_tables.h"
#include "gpu/codec/cuda_image.h"
#include "gpu/codec/cuda_metric_image.h"
#include "gpu/codec/cuda_upload.h"
#include "gpu/codec/kind_traits.h"
#include "gpu/codec/page_report.h"
#include "gpu/codec/quantise_affine.h"
#include "gpu/device/cuda_status.h"

namespace crumb {
namespace {

constexpr uint32_t kGroupMin = 16;
constexpr uint64_t kConstantAlignment = 256;

static_assert(kCudaMetaBf16 == static_cast<uint8_t>(MetaForm::kBf16));
static_assert(kCudaMetaFp32 == static_cast<uint8_t>(MetaForm::kFp32));
static_assert(kCudaMetaByte == static_cast<uint8_t>(MetaForm::kByte));

template <typename... Parts>
absl::Status Refuse(const TensorLayout& tensor, const Parts&... parts) {
  return absl::FailedPreconditionError(
      absl::StrCat("layer ", tensor.layer_id, tensor.is_v ? " V" : " K",
                   " has no GPU kernel: ", parts..., "; the codec of the CPU serves it"));
}

absl::Status CheckTensor(const TensorLayout& tensor) {
  if (!CudaDim(tensor.dim)) {
    return Refuse(tensor, "head dim ", tensor.dim, " is none of 64, 128 and 256");
  }
  const uint32_t group = tensor.dim / tensor.groups;
  if (tensor.groups > 1 && group < kGroupMin) {
    return Refuse(tensor, "groups of ", group, " elements are smaller than ", kGroupMin);
  }
  return absl::OkStatus();
}

// What the affine encoders are made for. A lane's neighbouring elements must lie in one group, and
// groups be made of such runs.
absl::Status CheckEncodable(const TensorLayout& tensor, const CodecDescriptor& descriptor) {
  if (descriptor.lloyd_max) return Refuse(tensor, "lloyd_max is for reading only");
  if (descriptor.clip_method == ClipMethod::kBisect) {
    return Refuse(tensor, "its clip is found by sorting, not by bisection");
  }
  if (tensor.groups == 1) return absl::OkStatus();
  if (tensor.pack.packing != Packing::kPlanar) {
    return Refuse(tensor, "interleaved codes with several scales in a row");
  }
  const uint32_t planes = tensor.pack.bits == 4 ? 2 : 4;
  const uint32_t run = tensor.dim / planes / 4;
  const uint32_t group = tensor.dim / tensor.groups;
  if (group % run == 0 && (group & (group - 1)) == 0) return absl::OkStatus();
  return Refuse(tensor, "groups of ", group, " elements are no power of two of at least ", run);
}

}  // namespace

// Collects what lies in device memory, then uploads it in two copies.
class CudaCodec::Builder {
 public:
  explicit Builder(CudaCodec* codec)
      : codec_(*codec), plan_(codec->plan_), crumb_(codec->IsCrumb()) {}

  absl::Status Build(int device, KnownMetrics* known) {
    scales_ = Append(kCrumbScale.data(), sizeof(kCrumbScale));
    for (size_t t = 0; t < plan_.layout().tensors().size(); ++t) {
      CRUMB_TRY(CheckTensor(plan_.layout().tensors()[t]));
    }
    for (const TensorLayout& tensor : plan_.layout().tensors()) {
      if (crumb_ || !codec_.encodes()) break;
      codec_.encode_status_ = CheckEncodable(tensor, plan_.descriptor());
    }
    if (crumb_) {
      std::shared_ptr<const QueryMetrics>& metrics = (*known)[plan_.descriptor().rotation_set];
      if (metrics == nullptr) {
        CRUMB_ASSIGN(metrics, plan_.MakeMetrics());
      }
      query_metrics_ = metrics;
    }
    for (size_t t = 0; t < plan_.layout().tensors().size(); ++t) means_.push_back(MeansOf(t));
    AddTable(&codec_.decode_, false);
    if (codec_.encodes()) AddTable(&codec_.encode_, true);
    CRUMB_ASSIGN(codec_.constants_, UploadCodecTable(device, constants_.data(), constants_.size()));
    codec_.scales_ = reinterpret_cast<const float*>(codec_.constants_.data() + scales_);
    CRUMB_TRY(UploadTable(device, &codec_.decode_));
    return codec_.encodes() ? UploadTable(device, &codec_.encode_) : absl::OkStatus();
  }

 private:
  // Offset in the constants; addresses exist only once all of them are known.
  uint64_t Append(const void* data, uint64_t bytes) {
    const uint64_t at =
        (constants_.size() + kConstantAlignment - 1) / kConstantAlignment * kConstantAlignment;
    constants_.resize(at + bytes);
    std::memcpy(constants_.data() + at, data, bytes);
    return at;
  }

  // One image per distinct matrix, form and direction.
  uint64_t ImageOf(const TensorLayout& tensor, absl::Span<const float> rotation, bool encode) {
    const bool operand = encode && crumb_ && !tensor.is_v;
    const auto key =
        std::make_tuple(rotation.data(), tensor.dim, tensor.pack.bits == 4, encode, operand);
    const auto [it, added] = images_.try_emplace(key, 0);
    if (added) {
      const std::vector<uint16_t> image = !encode   ? CudaDecodeImage(tensor.pack, rotation)
                                          : operand ? CudaOperandImage(tensor.pack, rotation)
                                                    : CudaEncodeImage(tensor.pack, rotation);
      it->second = Append(image.data(), 2 * image.size());
    }
    return it->second;
  }

  // The static means of a tensor's heads, all of them, in a row; 0: none.
  uint64_t MeansOf(size_t t) {
    const TensorLayout& tensor = plan_.layout().tensors()[t];
    if (plan_.MeanOf(t, 0).empty()) return 0;
    std::vector<float> means;
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      const absl::Span<const float> mean = plan_.MeanOf(t, head);
      means.insert(means.end(), mean.begin(), mean.end());
    }
    CRUMB_CHECK(means.size() == size_t{tensor.heads} * tensor.dim);
    return Append(means.data(), 4 * means.size());
  }

  // The metric of a head of K, one more than its offset; 0: none.
  uint64_t MetricOf(size_t t, uint32_t head) {
    const TensorLayout& tensor = plan_.layout().tensors()[t];
    if (tensor.is_v || (*query_metrics_)[t][head].empty()) return 0;
    const std::vector<uint8_t> image = CudaMetricImage((*query_metrics_)[t][head], tensor.dim);
    return Append(image.data(), image.size()) + 1;
  }

  CudaTensor TensorOf(size_t t, uint64_t means) const {
    const TensorLayout& tensor = plan_.layout().tensors()[t];
    const CodecDescriptor& descriptor = plan_.descriptor();
    const float ratio = tensor.is_v ? descriptor.clip_v : descriptor.clip_k;
    const bool clips = descriptor.clip_method != ClipMethod::kNone && ratio > 0.0f;
    CudaTensor out = {};
    out.offset = tensor.offset;
    out.head_bytes = tensor.head_bytes;
    out.code_row_bytes = tensor.code_row_bytes;
    out.meta_offset = tensor.meta_offset;
    out.meta_row_bytes = tensor.meta_row_bytes;
    out.side_offset = tensor.side_offset;
    out.has_side = tensor.side_bytes != 0 ? 1 : 0;
    out.is_v = tensor.is_v ? 1 : 0;
    out.group = tensor.dim / tensor.groups;
    // The magnitude at that rank of the rising order is the (dim - rank)-th largest.
    if (clips) out.rank = tensor.dim - static_cast<uint32_t>(ClipIndex(ratio, tensor.dim));
    out.mean = reinterpret_cast<const float*>(means);  // an offset until the upload
    out.mean_step = tensor.dim;
    out.tensor = static_cast<uint32_t>(t);
    return out;
  }

  void AddTable(Direction* direction, bool encode) {
    std::vector<std::pair<CudaForm, CudaHeads>> all;
    const auto& tensors = plan_.layout().tensors();
    for (size_t t = 0; t < tensors.size(); ++t) {
      const CudaTensor tensor = TensorOf(t, means_[t]);
      for (uint32_t head = 0; head < tensors[t].heads;) {
        const absl::Span<const float> rotation = plan_.RotationOf(t, head);
        uint32_t end = head + 1;
        while (end < tensors[t].heads && plan_.RotationOf(t, end).data() == rotation.data()) ++end;
        // The crumb encoders have tables for each head of K.
        if (encode && crumb_ && !tensors[t].is_v) end = head + 1;
        CudaHeads heads = {tensor, head, end - head, nullptr, nullptr};
        if (encode && crumb_) heads.metric = reinterpret_cast<const void*>(MetricOf(t, head));
        if (!rotation.empty()) {
          // Offsets are one more than they are, so that the first differs from none.
          heads.image = reinterpret_cast<const void*>(ImageOf(tensors[t], rotation, encode) + 1);
        }
        const CudaForm form = {.dim = tensors[t].dim,
                               .bits = tensors[t].pack.bits,
                               .grouped = tensors[t].groups > 1,
                               .base = false,
                               .search = heads.metric != nullptr,
                               .values = encode && crumb_ && tensors[t].is_v};
        all.emplace_back(form, heads);
        head = end;
      }
    }
    Arrange(all, direction);
  }

  // Entries of one form side by side: a form is one launch.
  static void Arrange(const std::vector<std::pair<CudaForm, CudaHeads>>& all,
                      Direction* direction) {
    for (const auto& [form, unused] : all) {
      const auto same = [&](const Group& group) { return group.form == form; };
      auto& groups = direction->groups;
      if (std::none_of(groups.begin(), groups.end(), same)) groups.push_back({.form = form});
    }
    for (Group& group : direction->groups) {
      group.first = static_cast<uint32_t>(direction->table.size());
      bool base = false;
      for (const auto& [form, heads] : all) {
        if (!(form == group.form)) continue;
        direction->table.push_back(heads);
        group.heads_most = std::max(group.heads_most, heads.count);
        group.heads_all += heads.count;
        base = base || heads.tensor.mean != nullptr || heads.tensor.has_side != 0;
      }
      group.count = static_cast<uint32_t>(direction->table.size()) - group.first;
      group.form.base = base;
    }
  }

  absl::Status UploadTable(int device, Direction* direction) {
    const std::byte* base = codec_.constants_.data();
    for (CudaHeads& heads : direction->table) {
      if (heads.image != nullptr) heads.image = base + reinterpret_cast<uint64_t>(heads.image) - 1;
      if (heads.metric != nullptr) {
        heads.metric = base + reinterpret_cast<uint64_t>(heads.metric) - 1;
      }
      if (heads.tensor.mean != nullptr) {
        heads.tensor.mean =
            reinterpret_cast<const float*>(base + reinterpret_cast<uint64_t>(heads.tensor.mean));
      }
    }
    const uint64_t bytes = direction->table.size() * sizeof(CudaHeads);
    CRUMB_ASSIGN(direction->heads, UploadCodecTable(device, direction->table.data(), bytes));
    return absl::OkStatus();
  }

  CudaCodec& codec_;
  const CodecPlan& plan_;
  const bool crumb_;
  std::shared_ptr<const QueryMetrics> query_metrics_;
  std::vector<uint8_t> constants_;
  std::map<std::tuple<const float*, uint32_t, bool, bool, bool>, uint64_t> images_;
  std::vector<uint64_t> means_;  // [tensor], for both directions
  uint64_t scales_ = 0;
};

absl::StatusOr<std::unique_ptr<CudaCodec>> CudaCodec::Create(
    const PartShape& shape, const CodecDescriptor& descriptor,
    std::shared_ptr<const RotationSet> rotations, int device) {
  if (descriptor.kind == CodecKind::kRaw) {
    return absl::FailedPreconditionError("codec raw has no kernel: copy its pages");
  }
  CRUMB_ASSIGN(CodecPlan plan, CodecPlan::Make(shape, descriptor, std::move(rotations)));
  KnownMetrics known;
  return Make(std::move(plan), &known, device);
}

std::vector<absl::StatusOr<std::unique_ptr<CudaCodec>>> CudaCodec::CreateAll(
    const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
    std::shared_ptr<const RotationSet> rotations, int device) {
  std::vector<absl::StatusOr<std::unique_ptr<CudaCodec>>> made;
  KnownMetrics known;
  for (const CodecDescriptor& descriptor : descriptors) {
    if (descriptor.kind == CodecKind::kRaw) {
      made.emplace_back(absl::FailedPreconditionError("codec raw has no kernel: copy its pages"));
      continue;
    }
    absl::StatusOr<CodecPlan> plan = CodecPlan::Make(shape, descriptor, rotations);
    if (plan.ok()) {
      made.push_back(Make(std::move(*plan), &known, device));
    } else {
      made.emplace_back(plan.status());
    }
  }
  return made;
}

absl::StatusOr<std::unique_ptr<CudaCodec>> CudaCodec::Make(CodecPlan plan, KnownMetrics* known,
                                                           int device) {
  std::unique_ptr<CudaCodec> codec(new CudaCodec(std::move(plan)));
  CRUMB_TRY(Builder(codec.get()).Build(device, known));
  const auto ask = [device](cudaDeviceAttr attribute, uint32_t* out) {
    int value = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&value, attribute, device);
    *out = static_cast<uint32_t>(value);
    return CudaStatus(error, "asking for the device's attributes", device);
  };
  CRUMB_TRY(ask(cudaDevAttrMultiProcessorCount, &codec->multiprocessors_));
  CRUMB_TRY(ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, &codec->shared_bytes_));
  CRUMB_TRY(CudaStatus(KernelsOverlap(&codec->overlaps_), "asking for the kernels' code", device));
  codec->device_ = device;
  CRUMB_TRY(codec->Prepare());
  return codec;
}

bool CudaCodec::IsCrumb() const {
  return TraitsOf(plan_.descriptor().kind).family == CodecFamily::kCrumb;
}

// Kernels of this codec's head dims alone: others may want more shared memory than the device has.
absl::Status CudaCodec::Prepare() {
  for (const Direction* direction : {&decode_, &encode_}) {
    const bool encode = direction == &encode_;
    for (const Group& group : direction->groups) {
      const int error =
          encode && IsCrumb()
              ? PrepareCrumbEncode(group.form, plan_.layout().page_tokens(), shared_bytes_)
              : PrepareCodecKernels(group.form.dim, encode);
      if (error == 0) continue;
      (void)cudaGetLastError();  // else the next launch would report it as its own
      if (error != cudaErrorInvalidValue && error != cudaErrorInvalidConfiguration) {
        return CudaStatus(error, "preparing kernels", device_);
      }
      const absl::Status status = absl::FailedPreconditionError(
          absl::StrCat("CUDA device ", device_, " has too little shared memory to ",
                       encode ? "encode" : "decode", " head dim ", group.form.dim, " in pages of ",
                       plan_.layout().page_tokens(), " tokens; the codec of the CPU serves it"));
      if (!encode) return status;
      encode_status_ = status;
    }
  }
  return absl::OkStatus();
}

CudaLaunch CudaCodec::LaunchOf(const CudaPages& pages, const Direction& direction,
                               const Group& group, StreamHandle stream) const {
  CudaLaunch launch;
  launch.form = group.form;
  launch.batch.places = pages.places;
  launch.batch.pages = pages.pages;
  launch.batch.slots = pages.slots;
  launch.batch.reports = pages.reports;
  launch.batch.page_count = pages.count;
  launch.batch.page_tokens = plan_.layout().page_tokens();
  launch.batch.tokens_per_slot = pages.tokens_per_slot;
  launch.batch.straight = pages.tokens_per_slot % kCudaRowsPerWarp == 0 ? 1 : 0;
  launch.batch.aligned = pages.aligned ? 1 : 0;
  launch.batch.meta = static_cast<uint8_t>(plan_.descriptor().meta);
  launch.batch.interleaved = plan_.descriptor().packing == Packing::kInterleaved ? 1 : 0;
  launch.heads = reinterpret_cast<const CudaHeads*>(direction.heads.data()) + group.first;
  launch.heads_count = group.count;
  launch.heads_most = group.heads_most;
  launch.scales = scales_;
  launch.multiprocessors = multiprocessors_;
  launch.stream = stream;
  launch.overlaps = overlaps_;
  return launch;
}

absl::Status CudaCodec::Decode(const CudaPages& pages, Frame frame, StreamHandle stream) const {
  CRUMB_CHECK(pages.tokens_per_slot != 0);
  for (const Group& group : decode_.groups) {
    CudaLaunch launch = LaunchOf(pages, decode_, group, stream);
    launch.batch.rotated_frame = frame == Frame::kRotated ? 1 : 0;
    CRUMB_TRY(CudaStatus(LaunchDecode(launch), "launching decode", device_));
  }
  return absl::OkStatus();
}

absl::Status CudaCodec::Encode(const CudaPages& pages, Effort effort, StreamHandle stream) const {
  CRUMB_CHECK(encodes() && pages.reports != nullptr && pages.tokens_per_slot != 0);
  for (const Group& group : encode_.groups) {
    const CudaLaunch launch = LaunchOf(pages, encode_, group, stream);
    if (IsCrumb()) {
      CudaCrumbLaunch crumb;
      crumb.base = launch;
      crumb.search.gamma = plan_.Gamma();
      crumb.search.effort = static_cast<uint8_t>(effort);
      crumb.search.flags_static = plan_.descriptor().centring != Centring::kNone ? 1 : 0;
      const uint64_t units = uint64_t{pages.count} * group.heads_all;
      CRUMB_CHECK(units <= std::numeric_limits<uint32_t>::max());
      crumb.search.units = static_cast<uint32_t>(units);
      crumb.shared_bytes = shared_bytes_;
      crumb.follows = group.form.values && &group != encode_.groups.data();
      CRUMB_TRY(CudaStatus(LaunchCrumbEncode(crumb), "launching encode", device_));
      continue;
    }
    CRUMB_TRY(CudaStatus(LaunchAffineEncode(launch), "launching encode", device_));
  }
  return absl::OkStatus();
}

absl::Status CudaCodec::ResetReports(const CudaPages& pages, StreamHandle stream) const {
  return CudaStatus(LaunchResetReports(pages.reports, pages.count, stream),
                    "resetting page reports", device_);
}

EncodeReport CudaCodec::ReportOf(const CudaPageReport& report) const {
  return EncodeReportOf(report, plan_.layout());
}

}  // namespace crumb
