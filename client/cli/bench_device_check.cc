// The reference beside what a GPU made.
#include "client/cli/bench_device_check.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"

namespace crumb::cli {
namespace {

float ValueAt(Bytes page, size_t index) {
  const auto bits =
      static_cast<uint16_t>(page[2 * index] | static_cast<uint16_t>(page[2 * index + 1]) << 8);
  return Bf16ToFloat(bits);
}

// Squared difference of two pages over the energy of a third.
double Difference(Bytes a, Bytes b, Bytes of) {
  double sum = 0, energy = 0;
  for (size_t i = 0; i < of.size() / 2; ++i) {
    const double one = static_cast<double>(ValueAt(a, i)) - static_cast<double>(ValueAt(b, i));
    const auto value = static_cast<double>(ValueAt(of, i));
    sum += one * one;
    energy += value * value;
  }
  return energy > 0 ? sum / energy : sum;
}

std::vector<float> Reflection(uint32_t dim, Rng* rng) {
  std::vector<double> v(dim);
  double norm = 0;
  for (double& value : v) {
    value = static_cast<double>(rng->Below(2000)) / 1000.0 - 1.0;
    norm += value * value;
  }
  std::vector<float> matrix;
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      matrix.push_back(static_cast<float>((i == j ? 1.0 : 0.0) - 2.0 * v[i] * v[j] / norm));
    }
  }
  return matrix;
}

}  // namespace

DeviceReference::DeviceReference(PartShape shape, CodecKind kind, Effort effort,
                                 std::shared_ptr<const RotationSet> set)
    : shape_(std::move(shape)), kind_(kind), effort_(effort), set_(std::move(set)) {}

absl::StatusOr<const PageCodec*> DeviceReference::CodecFor(client::Precision precision) {
  CodecKind kind = kind_;
  // A page that does not fit its codec is stored further up; the ladder ends at raw.
  while (static_cast<int>(PrecisionOf(kind)) != static_cast<int>(precision)) {
    if (kind == CodecKind::kRaw) {
      return absl::InvalidArgumentError(absl::StrCat("a page came back as ",
                                                     client::ToString(precision), ", which ",
                                                     ToString(kind_), " never becomes"));
    }
    kind = StepUp(kind);
  }
  std::unique_ptr<PageCodec>& codec = codecs_[kind];
  if (codec == nullptr) {
    const Sha256 hash = set_ == nullptr ? Sha256{} : set_->hash();
    CRUMB_ASSIGN(codec, PageCodec::Create(shape_, CodecDescriptor::Default(kind, hash), set_));
  }
  return codec.get();
}

absl::StatusOr<bool> DeviceReference::Check(Bytes put, Bytes got, client::Precision precision,
                                            DeviceCheckTally* tally) {
  CRUMB_CHECK(put.size() == got.size());
  CRUMB_ASSIGN(const PageCodec* codec, CodecFor(precision));
  const std::unique_ptr<PageCodec::Scratch> scratch = codec->MakeScratch();
  payload_.resize(codec->payload_bytes());
  decoded_.resize(put.size());
  const EncodeReport report =
      codec->Encode(put, shape_.page_tokens, effort_,
                    MutableBytes(payload_.data(), payload_.size()), scratch.get());
  CRUMB_CHECK(report.result == BlockResult::kOk);
  CRUMB_CHECK(codec->Decode(Bytes(payload_.data(), payload_.size()), shape_.page_tokens,
                            Frame::kOriginal, MutableBytes(decoded_.data(), decoded_.size()),
                            scratch.get()));
  ++tally->pages;
  if (std::equal(got.begin(), got.end(), decoded_.begin())) {
    ++tally->exact;
    return true;
  }
  const double difference = Difference(got, decoded_, put);
  if (difference >= tally->worst) {
    tally->worst = difference;
    tally->error = Difference(got, put, put);
  }
  // Written so that a NaN is wrong.
  const bool right = precision != client::Precision::kRaw && difference <= kDeviceDifferenceMax;
  if (!right) ++tally->wrong;
  return right;
}

bool WantsRotation(CodecKind kind) {
  return kind == CodecKind::kOscarInt2 || kind == CodecKind::kCrumbInt2 ||
         kind == CodecKind::kCrumbK3V2 || kind == CodecKind::kCrumbInt4;
}

absl::StatusOr<std::shared_ptr<const RotationSet>> MakeUpRotations(uint32_t layers, uint32_t dim,
                                                                   const std::string& model) {
  RotationSet::Contents contents;
  contents.model = model;
  contents.revision = "1";
  contents.provenance = "made up by crumbctl bench";
  Rng rng(1);
  for (uint32_t id = 0; id < layers; ++id) {
    RotationLayer& layer = contents.layers.emplace_back();
    layer.layer_id = id;
    layer.k = {1, dim, Reflection(dim, &rng)};
    layer.v = {1, dim, Reflection(dim, &rng)};
    layer.kv_heads = 1;
    layer.k_dim = dim;
    layer.k_mean.assign(dim, 0.125f);
    // Queries that look in some directions more than in others.
    for (uint32_t i = 0; i < dim; ++i) {
      for (uint32_t j = 0; j < dim; ++j) {
        const double own = i == j ? 1.0 + i % 11 : 0.0;
        layer.query_moment.push_back(static_cast<float>(own + 8.0 / (1.0 + i + j)));
      }
    }
  }
  return RotationSet::Make(std::move(contents));
}

}  // namespace crumb::cli
