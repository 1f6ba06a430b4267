// Which codec new pages of a layout get, and why: what was asked for if the operator allows it,
// else the default rules. PROMISE: never silent; whatever differs from what was asked for, or from
// codec.default_precision, is said in the note. One thread: control.
#ifndef CRUMB_CACHESVC_SERVER_CODEC_CHOICE_H_
#define CRUMB_CACHESVC_SERVER_CODEC_CHOICE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/server/catalog.h"
#include "cachesvc/server/config.h"
#include "cachesvc/server/evaluation.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/page_codec.h"

namespace crumb {

// Two parts of one key are served by the same codecs.
std::string ShapeKey(const PartShape& shape);

// Codecs by shape and descriptor: layouts that differ in a namespace share them. One thread.
class CodecCache {
 public:
  explicit CodecCache(CodecBackend backend = CodecBackend::kAuto) : backend_(backend) {}

  // One codec per descriptor; those that somebody still uses are not built again.
  absl::StatusOr<std::vector<std::shared_ptr<const PageCodec>>> Build(
      const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
      const std::shared_ptr<const RotationSet>& rotations);

 private:
  const CodecBackend backend_;
  std::map<std::string, std::weak_ptr<const PageCodec>> codecs_;
};

struct CodecQuestion {
  const Layout* layout = nullptr;
  CodecCache* cache = nullptr;
  CodecWish wish;
  const CodecConfig* config = nullptr;
  // The set named by the wish, else the newest one of the model and revision; may be null.
  std::shared_ptr<const RotationSet> rotations;
  absl::Span<const Evaluation> evaluations = {};  // recorded; those that fit decide about 2 bits
  QualityBounds bounds = {};
};

struct CodecChoice {
  std::vector<CodecDescriptor> ladder;  // wanted precision first, raw last
  Effort effort = Effort::kNormal;
  std::shared_ptr<const RotationSet> rotations;  // null: the ladder uses none
  std::string note;                              // why; empty if as asked
  // [part][i]: the ladder's codecs.
  std::vector<std::vector<std::shared_ptr<const PageCodec>>> codecs;
};

// The backend that codec.backend names, auto resolved. REQUIRES: the configuration was checked.
CodecBackend BackendOf(const CodecConfig& config);

// "raw", "int4", "k3v2", "int2", as the configuration has them.
Precision ParsePrecision(const std::string& text);

// INVALID_ARGUMENT: unknown codec, effort or metadata. FAILED_PRECONDITION: asked for by name, but
// the operator has not accepted 2-bit pages, or the layout or the set cannot serve it: the message
// has the remedy.
absl::StatusOr<CodecChoice> ChooseCodec(const CodecQuestion& question);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_CODEC_CHOICE_H_
