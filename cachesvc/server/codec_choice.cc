// The default rules of codecs. One thread: control.
#include "cachesvc/server/codec_choice.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace crumb {
namespace {

constexpr char kImport[] = "import one with crumbctl rotation import";
constexpr char kAccept[] =
    "no evaluation of this model at 2 bits is recorded: record one (crumbctl quality record) or "
    "set codec.int2: accept to allow it";

// 2-bit codes somewhere in the page.
bool IsInt2(CodecKind kind) {
  const Precision precision = PrecisionOf(kind);
  return precision == Precision::kInt2 || precision == Precision::kK3V2;
}

bool IsCrumb(CodecKind kind) {
  return kind == CodecKind::kCrumbInt2 || kind == CodecKind::kCrumbK3V2 ||
         kind == CodecKind::kCrumbInt4;
}

bool TakesSet(CodecKind kind) { return kind == CodecKind::kOscarInt2 || IsCrumb(kind); }

// Why 2-bit codes may not be used: empty if the operator said so, or if the evaluation recorded for
// this model, rotation set and codec is good enough.
std::string WhyNotEvaluated(const CodecQuestion& question, CodecKind kind) {
  if (question.config->int2 == "accept") return {};
  const Identity& identity = question.layout->identity();
  const Sha256 set = TakesSet(kind) && question.rotations ? question.rotations->hash() : Sha256{};
  for (const Evaluation& one : question.evaluations) {
    if (one.model != identity.model || one.revision != identity.revision || one.codec != kind ||
        one.rotation != set) {
      continue;
    }
    if (Within(one, question.bounds)) return {};
    return absl::StrCat("the recorded evaluation says ", Describe(one),
                        ", more than quality.perplexity_permille_max (",
                        question.bounds.perplexity_permille_max, ") and quality.kl_millinats_max (",
                        question.bounds.kl_millinats_max,
                        ") allow: calibrate anew, or set codec.int2: accept to allow it");
  }
  return kAccept;
}

CodecKind WantedByDefault(const CodecConfig& config) {
  switch (ParsePrecision(config.default_precision)) {
    case Precision::kRaw:
      return CodecKind::kRaw;
    case Precision::kInt4:
      return CodecKind::kCrumbInt4;
    case Precision::kK3V2:
      return CodecKind::kCrumbK3V2;
    case Precision::kInt2:
      return CodecKind::kCrumbInt2;
  }
  return CodecKind::kRaw;
}

// Why no lossy codec serves this layout; empty if one may.
std::string RawOnly(const Layout& layout) {
  const Identity& identity = layout.identity();
  if (identity.dtype != RawDtype::kBf16) {
    return absl::StrCat(ToString(identity.dtype), " pages are kept as they are");
  }
  for (const AttentionGroup& group : identity.groups) {
    if (group.kind == AttentionKind::kMla || group.v_dim == 0)
      return "MLA pages are kept as they are";
  }
  return {};
}

std::vector<CodecDescriptor> LadderFrom(CodecKind kind, const Sha256& rotation_set) {
  std::vector<CodecDescriptor> ladder;
  for (int step = 0; step < 8 && kind != CodecKind::kRaw; ++step) {
    ladder.push_back(CodecDescriptor::Default(kind, rotation_set));
    kind = StepUp(kind);
  }
  ladder.push_back(CodecDescriptor::Default(CodecKind::kRaw, Sha256{}));
  return ladder;
}

// Builds the ladder for every part; the error is the first codec's that cannot serve its part.
absl::Status Build(const CodecQuestion& question, CodecChoice* choice) {
  choice->codecs.clear();
  for (const PartShape& part : question.layout->parts()) {
    CRUMB_ASSIGN(auto codecs, question.cache->Build(part, choice->ladder, choice->rotations));
    choice->codecs.push_back(std::move(codecs));
  }
  return absl::OkStatus();
}

CodecChoice Make(CodecKind kind, std::shared_ptr<const RotationSet> rotations, Effort effort) {
  CodecChoice choice;
  choice.ladder = LadderFrom(kind, rotations ? rotations->hash() : Sha256{});
  choice.rotations = std::move(rotations);
  choice.effort = effort;
  return choice;
}

absl::Status ApplyMetadata(const CodecWish& wish, CodecKind kind, CodecChoice* choice) {
  if (wish.metadata.empty()) return absl::OkStatus();
  if (kind != CodecKind::kOscarInt2) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata \"", wish.metadata, "\": only oscar-int2 has a choice of it"));
  }
  if (wish.metadata == "bf16") return absl::OkStatus();
  if (wish.metadata != "fp32") {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata \"", wish.metadata,
                     "\": write bf16 or fp32 (fp16 has too small a range for scales)"));
  }
  choice->ladder.front().meta = MetaForm::kFp32;
  return absl::OkStatus();
}

absl::StatusOr<CodecChoice> ChooseAsked(const CodecQuestion& question, Effort effort) {
  const absl::StatusOr<CodecKind> parsed = ParseCodecKind(question.wish.codec);
  if (!parsed.ok()) return parsed.status();
  const CodecKind kind = *parsed;
  const std::string asked = ToString(kind);
  if (kind != CodecKind::kRaw) {
    const std::string raw_only = RawOnly(*question.layout);
    if (!raw_only.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("codec ", asked, ": ", raw_only, ": ask for raw, or for nothing"));
    }
  }
  const std::string not_evaluated = IsInt2(kind) ? WhyNotEvaluated(question, kind) : "";
  if (!not_evaluated.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("codec ", asked, ": ", not_evaluated));
  }
  const Identity& identity = question.layout->identity();
  const std::string model = absl::StrCat(identity.model, " at ", identity.revision);
  if (kind == CodecKind::kOscarInt2 && question.rotations == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("codec ", asked, " needs a rotation set for ", model, ": ", kImport));
  }
  if (!TakesSet(kind) && !question.wish.rotation.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec ", asked, " uses no rotation set: leave rotation empty"));
  }
  CodecChoice choice = Make(kind, TakesSet(kind) ? question.rotations : nullptr, effort);
  CRUMB_TRY(ApplyMetadata(question.wish, kind, &choice));
  const absl::Status possible = Build(question, &choice);
  if (!possible.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("codec ", asked, ": ", possible.message()));
  }
  if (IsInt2(kind) && TakesSet(kind) && (!choice.rotations || !choice.rotations->calibrated())) {
    choice.note = absl::StrCat(asked,
                               choice.rotations ? " with a rotation set that has no query "
                                                  "moments and means for "
                                                : " without a rotation set for ",
                               model, ": uncalibrated");
  }
  return choice;
}

// One level of the default rules: nothing if `why` says it cannot be.
std::string WhyNotInt2(const CodecQuestion& question, CodecKind kind) {
  const Identity& identity = question.layout->identity();
  const std::string model = absl::StrCat(identity.model, " at ", identity.revision);
  if (question.rotations == nullptr) {
    return absl::StrCat("no rotation set for ", model, ": ", kImport);
  }
  if (!question.rotations->calibrated()) {
    return absl::StrCat("the rotation set for ", model,
                        " has no query moments and means: import a calibrated one");
  }
  return WhyNotEvaluated(question, kind);
}

absl::StatusOr<CodecChoice> ChooseDefault(const CodecQuestion& question, Effort effort) {
  const CodecKind wanted = WantedByDefault(*question.config);
  std::string note = wanted == CodecKind::kRaw ? "" : RawOnly(*question.layout);
  if (wanted != CodecKind::kRaw && note.empty()) {
    if (IsInt2(wanted)) note = WhyNotInt2(question, wanted);
    if (IsInt2(wanted) && note.empty()) {
      CodecChoice choice = Make(wanted, question.rotations, effort);
      const absl::Status possible = Build(question, &choice);
      if (possible.ok()) return choice;
      note = std::string(possible.message());
    }
    // crumb-int4 needs no calibration; a set that was named is used all the same.
    CodecChoice choice =
        Make(CodecKind::kCrumbInt4, question.wish.rotation.empty() ? nullptr : question.rotations,
             effort);
    const absl::Status possible = Build(question, &choice);
    if (possible.ok()) {
      choice.note = std::move(note);
      return choice;
    }
    note = std::string(possible.message());
  }
  CodecChoice choice = Make(CodecKind::kRaw, nullptr, effort);
  CRUMB_TRY(Build(question, &choice));
  choice.note = std::move(note);
  return choice;
}

}  // namespace

std::string ShapeKey(const PartShape& shape) {
  std::string key = absl::StrCat(static_cast<int>(shape.dtype), "/", shape.page_tokens);
  for (const LayerShape& layer : shape.layers) {
    absl::StrAppend(&key, "/", layer.layer_id, ",", layer.head_first, ",", layer.heads, ",",
                    layer.k_dim, ",", layer.v_dim);
  }
  return key;
}

CodecBackend BackendOf(const CodecConfig& config) {
  const auto wanted = ParseCodecBackend(config.backend);
  const auto backend = wanted.ok() ? ResolveCodecBackend(*wanted) : wanted;
  return backend.ok() ? *backend : *ResolveCodecBackend(CodecBackend::kAuto);
}

Precision ParsePrecision(const std::string& text) {
  if (text == "raw") return Precision::kRaw;
  if (text == "int4") return Precision::kInt4;
  return text == "k3v2" ? Precision::kK3V2 : Precision::kInt2;
}

absl::StatusOr<std::vector<std::shared_ptr<const PageCodec>>> CodecCache::Build(
    const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
    const std::shared_ptr<const RotationSet>& rotations) {
  std::erase_if(codecs_, [](const auto& entry) { return entry.second.expired(); });
  const std::string shape_key = ShapeKey(shape);
  std::vector<std::shared_ptr<const PageCodec>> found;
  for (const CodecDescriptor& descriptor : descriptors) {
    const auto at = codecs_.find(absl::StrCat(descriptor.id(), "/", shape_key));
    if (at != codecs_.end()) found.push_back(at->second.lock());
  }
  if (found.size() == descriptors.size()) return found;
  CRUMB_ASSIGN(auto made, PageCodec::CreateAll(shape, descriptors, rotations, backend_));
  for (const auto& codec : made) {
    codecs_[absl::StrCat(codec->descriptor().id(), "/", shape_key)] = codec;
  }
  return made;
}

absl::StatusOr<CodecChoice> ChooseCodec(const CodecQuestion& question) {
  const std::string& effort_text =
      question.wish.effort.empty() ? question.config->effort : question.wish.effort;
  CRUMB_ASSIGN(const Effort effort, ParseEffort(effort_text));
  if (!question.wish.codec.empty()) return ChooseAsked(question, effort);
  if (!question.wish.metadata.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata \"", question.wish.metadata, "\": name codec oscar-int2 with it"));
  }
  return ChooseDefault(question, effort);
}

}  // namespace crumb
