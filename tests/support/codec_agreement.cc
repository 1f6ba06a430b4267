// Compares backends page by page. Tests only.
#include "tests/support/codec_agreement.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "cachesvc/base/check.h"
#include "gpu/codec/affine_head.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/pack.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/row_frame.h"
#include "gpu/codec/vector_rotate.h"

namespace crumb::testing {
namespace {

int UlpDistance(uint16_t a, uint16_t b) {
  const auto ordered = [](uint16_t bits) {
    return (bits & 0x8000) != 0 ? -static_cast<int>(bits & 0x7fff) : static_cast<int>(bits);
  };
  return std::abs(ordered(a) - ordered(b));
}

uint16_t Word(const uint8_t* bytes, size_t index) {
  uint16_t bits;
  std::memcpy(&bits, bytes + 2 * index, 2);
  return bits;
}

// One unit in the last place of a BF16 value.
double Ulp(float value) { return value == 0.0f ? 0.0 : std::ldexp(1.0, std::ilogb(value) - 7); }

// `inner` may be empty, or the products that a base was added to: where both nearly cancel, one
// unit of the product is many of the sum.
ValueAgreement CompareRows(const uint8_t* got, const uint8_t* want, const std::vector<float>& inner,
                           size_t rows, size_t dim) {
  ValueAgreement result;
  for (size_t row = 0; row < rows; ++row) {
    double largest = 0.0;
    for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
      largest = std::max(largest, std::abs(double{Bf16ToFloat(Word(want, i))}));
    }
    for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
      const uint16_t a = Word(got, i), b = Word(want, i);
      const int distance = UlpDistance(a, b);
      const double apart = std::abs(double{Bf16ToFloat(a)} - double{Bf16ToFloat(b)});
      result.different += distance != 0 ? 1 : 0;
      const double allowed = std::max(largest * 0x1p-16, inner.empty() ? 0.0 : Ulp(inner[i]));
      result.beyond += distance > 1 && apart > allowed ? 1 : 0;
      ++result.values;
    }
  }
  return result;
}

// The rotated rows of every head of a page, [tensor][head][tokens][dim] BF16.
class RotatedPage {
 public:
  RotatedPage(const CodecCase& page, const CodecDescriptor& descriptor)
      : page_(page), plan_(*CodecPlan::Make(page.part, descriptor, page.set)) {}

  const CodecPlan& plan() const { return plan_; }
  Bytes RowsOf(const TensorLayout& tensor, uint32_t head) const {
    return absl::MakeConstSpan(page_.raw).subspan(tensor.raw_offset + head * tensor.raw_head_bytes,
                                                  size_t{page_.tokens} * tensor.raw_row_bytes);
  }

  std::vector<uint8_t> Reference(size_t t, uint32_t head) const {
    const TensorLayout& tensor = plan_.layout().tensors()[t];
    const size_t dim = tensor.dim, size = page_.tokens * dim;
    std::vector<float> x(size), y(size);
    LoadRows(RowsOf(tensor, head), absl::MakeSpan(x));
    std::vector<double> matrix, work(MultiplyWork(dim));
    if (!plan_.RotationOf(t, head).empty()) {
      matrix.resize(dim * dim);
      ExpandMatrix(plan_.RotationOf(t, head), dim, RotateDirection::kForward,
                   absl::MakeSpan(matrix));
    }
    ToRotated({dim, matrix, plan_.MeanOf(t, head)}, x, absl::MakeSpan(y), absl::MakeSpan(work));
    std::vector<uint8_t> bytes(2 * size);
    StoreRows(y, absl::MakeSpan(bytes));
    return bytes;
  }

  // What the backend's encoder starts from: the reference where its kernels do not take the rows.
  std::vector<uint8_t> Vector(size_t t, uint32_t head, const VectorKernels& kernels) {
    const TensorLayout& tensor = plan_.layout().tensors()[t];
    const VectorPlan vectors = VectorPlan::Make(kernels, plan_, nullptr, &forms_);
    std::vector<uint16_t> x(size_t{page_.tokens} * tensor.dim);
    std::memcpy(x.data(), RowsOf(tensor, head).data(), 2 * x.size());
    work_.Reserve(page_.tokens, tensor.dim);
    HeadScan scan;
    kernels.scan(x.data(), x.size(), &scan);
    const absl::Span<const float> mean = plan_.MeanOf(t, head);
    const uint16_t* y = !Comfortable(scan)
                            ? nullptr
                            : RotateRows({.kernels = &kernels,
                                          .rotation = vectors.head(t, head).rotation.get(),
                                          .base = mean.empty() ? nullptr : mean.data(),
                                          .rows = page_.tokens,
                                          .dim = tensor.dim},
                                         x.data(), &work_);
    if (y == nullptr) return Reference(t, head);
    std::vector<uint8_t> bytes(2 * x.size());
    std::memcpy(bytes.data(), y, bytes.size());
    return bytes;
  }

 private:
  const CodecCase& page_;
  const CodecPlan plan_;
  PackedForms forms_;
  VectorWork work_;
};

std::unique_ptr<PageCodec> Codec(const CodecCase& page, const CodecDescriptor& descriptor,
                                 CodecBackend backend) {
  auto codec = PageCodec::Create(page.part, descriptor, page.set, backend);
  CRUMB_CHECK(codec.ok());
  return *std::move(codec);
}

struct Encoded {
  std::vector<uint8_t> payload;
  EncodeReport report;
};

Encoded Encode(const CodecCase& page, const PageCodec& codec, Effort effort) {
  Encoded out;
  out.payload.resize(codec.payload_bytes());
  const auto scratch = codec.MakeScratch();
  out.report =
      codec.Encode(page.raw, page.tokens, effort, absl::MakeSpan(out.payload), scratch.get());
  CRUMB_CHECK(out.report.result == BlockResult::kOk);
  return out;
}

std::vector<uint8_t> Decode(const CodecCase& page, const PageCodec& codec,
                            const std::vector<uint8_t>& payload, Frame frame) {
  std::vector<uint8_t> raw(page.raw.size());
  const auto scratch = codec.MakeScratch();
  CRUMB_CHECK(codec.Decode(payload, page.tokens, frame, absl::MakeSpan(raw), scratch.get()));
  return raw;
}

// The products of decoded rows (rotated frame) with R^T, of all heads of a tensor.
std::vector<float> Products(const CodecPlan& plan, size_t t, const std::vector<uint8_t>& rotated) {
  const TensorLayout& tensor = plan.layout().tensors()[t];
  const size_t dim = tensor.dim, head_size = tensor.raw_head_bytes / 2;
  std::vector<float> rows(head_size * tensor.heads);
  LoadRows(absl::MakeConstSpan(rotated).subspan(tensor.raw_offset, 2 * rows.size()),
           absl::MakeSpan(rows));
  std::vector<double> matrix(dim * dim), work(MultiplyWork(dim));
  for (uint32_t head = 0; head < tensor.heads; ++head) {
    if (plan.RotationOf(t, head).empty()) continue;
    ExpandMatrix(plan.RotationOf(t, head), dim, RotateDirection::kInverse, absl::MakeSpan(matrix));
    Unrotate({dim, matrix, {}}, absl::MakeSpan(rows).subspan(head * head_size, head_size),
             absl::MakeSpan(work));
  }
  return rows;
}

// Error of a decoded page: K in the metric of its head, V plain.
double PageError(const CodecCase& page, const PayloadLayout& layout,
                 const std::vector<uint8_t>& back) {
  double sum = 0.0;
  for (const TensorLayout& tensor : layout.tensors()) {
    const size_t dim = tensor.dim;
    const RotationLayer* layer = page.set->FindLayer(tensor.layer_id);
    for (size_t row = 0; row < size_t{tensor.heads} * layout.page_tokens(); ++row) {
      std::vector<double> e(dim);
      for (size_t i = 0; i < dim; ++i) {
        const size_t at = tensor.raw_offset / 2 + row * dim + i;
        e[i] = double{Bf16ToFloat(Word(page.raw.data(), at))} -
               double{Bf16ToFloat(Word(back.data(), at))};
      }
      const size_t head = row / layout.page_tokens();
      const bool plain = tensor.is_v || layer->query_moment.empty();
      const float* moment = plain ? nullptr : layer->query_moment.data() + head * dim * dim;
      for (size_t i = 0; i < dim; ++i) {
        double along = e[i];
        if (moment != nullptr) {
          along = 0.0;
          for (size_t j = 0; j < dim; ++j) along += double{moment[i * dim + j]} * e[j];
        }
        sum += e[i] * along;
      }
    }
  }
  return sum;
}

bool Near(double a, double b) { return std::abs(a - b) <= 0.01 * std::max(a, b); }

void CompareBlocks(const PayloadLayout& layout, uint32_t tokens, const Encoded& got,
                   const Encoded& want, SearchAgreement* result) {
  for (const TensorLayout& tensor : layout.tensors()) {
    std::vector<uint8_t> a(tensor.dim), b(tensor.dim);
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      const size_t block = tensor.offset + size_t{head} * tensor.head_bytes;
      for (size_t row = 0; row < tokens; ++row) {
        const size_t at = block + row * tensor.code_row_bytes;
        UnpackRow(tensor.pack, {got.payload.data() + at, tensor.code_row_bytes}, absl::MakeSpan(a));
        UnpackRow(tensor.pack, {want.payload.data() + at, tensor.code_row_bytes},
                  absl::MakeSpan(b));
        for (size_t i = 0; i < tensor.dim; ++i) result->codes_equal += a[i] == b[i] ? 1 : 0;
        result->codes += tensor.dim;
        const size_t meta = block + tensor.meta_offset + row * tensor.meta_row_bytes;
        result->meta_equal += std::memcmp(got.payload.data() + meta, want.payload.data() + meta,
                                          tensor.meta_row_bytes) == 0
                                  ? 1
                                  : 0;
        ++result->meta;
      }
    }
  }
}

}  // namespace

void ValueAgreement::Add(const ValueAgreement& other) {
  values += other.values;
  different += other.different;
  beyond += other.beyond;
}

void SearchAgreement::Add(const SearchAgreement& other) {
  codes += other.codes;
  codes_equal += other.codes_equal;
  meta += other.meta;
  meta_equal += other.meta_equal;
  error += other.error;
  error_reference += other.error_reference;
  reports_agree &= other.reports_agree;
}

ValueAgreement CompareRotation(const CodecCase& page, const CodecDescriptor& descriptor,
                               CodecBackend backend) {
  RotatedPage rotated(page, descriptor);
  ValueAgreement result;
  const auto& tensors = rotated.plan().layout().tensors();
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (uint32_t head = 0; head < tensors[t].heads; ++head) {
      const std::vector<uint8_t> want = rotated.Reference(t, head);
      const std::vector<uint8_t> got = rotated.Vector(t, head, *KernelsOf(backend));
      result.Add(CompareRows(got.data(), want.data(), {}, page.tokens, tensors[t].dim));
    }
  }
  return result;
}

uint64_t CountWrongBytes(const CodecCase& page, const CodecDescriptor& descriptor,
                         CodecBackend backend) {
  RotatedPage rotated(page, descriptor);
  const auto codec = Codec(page, descriptor, backend);
  const Encoded got = Encode(page, *codec, Effort::kNormal);
  std::vector<uint8_t> want(got.payload.size(), 0);
  CodecScratch scratch;
  const auto& tensors = rotated.plan().layout().tensors();
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorLayout& tensor = tensors[t];
    scratch.Reserve(page.tokens, tensor.dim);
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      const std::vector<uint8_t> y = rotated.Vector(t, head, *KernelsOf(backend));
      LoadRows(y, absl::MakeSpan(scratch.rows_y).first(y.size() / 2));
      const MutableBytes block = absl::MakeSpan(want).subspan(
          tensor.offset + size_t{head} * tensor.head_bytes, tensor.head_bytes);
      for (size_t row = 0; row < page.tokens; ++row) {
        EncodeAffineRow(tensor, descriptor, row, &scratch, block);
      }
    }
  }
  uint64_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) wrong += want[i] != got.payload[i] ? 1 : 0;
  return wrong;
}

ValueAgreement CompareDecoders(const CodecCase& page, const CodecDescriptor& descriptor,
                               CodecBackend backend, bool rotated) {
  const auto reference = Codec(page, descriptor, CodecBackend::kReference);
  const auto vector = Codec(page, descriptor, backend);
  const Encoded encoded = Encode(page, *reference, Effort::kNormal);
  const Frame frame = rotated ? Frame::kRotated : Frame::kOriginal;
  const std::vector<uint8_t> want = Decode(page, *reference, encoded.payload, frame);
  const std::vector<uint8_t> got = Decode(page, *vector, encoded.payload, frame);
  const std::vector<uint8_t> rows = Decode(page, *reference, encoded.payload, Frame::kRotated);
  const CodecPlan plan = *CodecPlan::Make(page.part, descriptor, page.set);
  ValueAgreement result;
  for (size_t t = 0; t < plan.layout().tensors().size(); ++t) {
    const TensorLayout& tensor = plan.layout().tensors()[t];
    const std::vector<float> inner = rotated ? std::vector<float>{} : Products(plan, t, rows);
    result.Add(CompareRows(got.data() + tensor.raw_offset, want.data() + tensor.raw_offset, inner,
                           size_t{tensor.heads} * plan.layout().page_tokens(), tensor.dim));
  }
  return result;
}

namespace {

SearchAgreement CompareEncoded(const CodecCase& page, const CodecDescriptor& descriptor,
                               const PageCodec& reference, const Encoded& want,
                               const Encoded& got) {
  const PayloadLayout layout = *PayloadLayout::Make(page.part, descriptor);
  SearchAgreement result;
  CompareBlocks(layout, page.tokens, got, want, &result);
  result.error = PageError(page, layout, Decode(page, reference, got.payload, Frame::kOriginal));
  result.error_reference =
      PageError(page, layout, Decode(page, reference, want.payload, Frame::kOriginal));
  return result;
}

}  // namespace

SearchAgreement ComparePayload(const CodecCase& page, const CodecDescriptor& descriptor,
                               Effort effort, const std::vector<uint8_t>& payload) {
  const auto reference = Codec(page, descriptor, CodecBackend::kReference);
  const Encoded want = Encode(page, *reference, effort);
  return CompareEncoded(page, descriptor, *reference, want, {payload, want.report});
}

SearchAgreement CompareEncoders(const CodecCase& page, const CodecDescriptor& descriptor,
                                CodecBackend backend, Effort effort) {
  const auto reference = Codec(page, descriptor, CodecBackend::kReference);
  const auto vector = Codec(page, descriptor, backend);
  const Encoded want = Encode(page, *reference, effort);
  const Encoded got = Encode(page, *vector, effort);
  SearchAgreement result = CompareEncoded(page, descriptor, *reference, want, got);
  const EncodeReport &a = got.report, &b = want.report;
  result.reports_agree = a.fits == b.fits && Near(a.error_k, b.error_k) &&
                         Near(a.error_v, b.error_v) && Near(a.energy_k, b.energy_k) &&
                         Near(a.energy_v, b.energy_v) && Near(a.metric_error_k, b.metric_error_k);
  return result;
}

}  // namespace crumb::testing
