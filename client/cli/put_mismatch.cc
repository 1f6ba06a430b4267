// See put_mismatch.h. The file is of unknown origin: its header is range-checked before use.
#include "client/cli/put_mismatch.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/page_header.h"
#include "gpu/codec/descriptor.h"

namespace crumb::cli {
namespace {

constexpr char kPutRaw[] = "put the raw page (--form raw), or get it again with --form ";

// Hexadecimal as headers and `layout ls` show it: the first bytes of the hash, in their order.
std::string LayoutPrefix(const PageHeader& header) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&header.identity_prefix);
  return Hex(Bytes(bytes, sizeof(header.identity_prefix)));
}

// "" where the layout names a codec that this program does not know.
std::string PrecisionOfLayout(const client::Layout& layout) {
  const absl::StatusOr<CodecKind> kind = ParseCodecKind(layout.codec);
  return kind.ok() ? ToString(PrecisionOf(*kind)) : "";
}

class Differences {
 public:
  template <typename A, typename B>
  void Compare(const char* what, const A& expected, const B& got) {
    const std::string a = absl::StrCat(expected), b = absl::StrCat(got);
    if (a != b) all_.push_back(absl::StrCat(what, ": expected ", a, ", got ", b));
  }
  bool empty() const { return all_.empty(); }
  std::string text() const { return absl::StrJoin(all_, "; "); }

 private:
  std::vector<std::string> all_;
};

std::string OfPacked(const client::Layout& layout, uint32_t part, Bytes file) {
  Differences found;
  found.Compare("bytes", layout.payload_bytes[part], file.size());
  if (found.empty()) {
    return absl::StrCat("the payload is as long as ", layout.codec,
                        " makes it, and does not decode; ", kPutRaw, "packed");
  }
  return absl::StrCat(found.text(), " (a payload of ", layout.codec, ", layout ", layout.name,
                      ", part ", part, "); ", kPutRaw, "packed from this layout");
}

std::string OfPage(const client::Layout& layout, uint32_t part, uint32_t token_count, Bytes file) {
  if (file.size() <= kPageHeaderBytes) {
    return absl::StrCat("bytes: expected a header of ", kPageHeaderBytes, " and a payload, got ",
                        file.size(), "; ", kPutRaw, "page");
  }
  const PageHeader header = LoadHeader(file);
  if (const PageCheck check = CheckHeaderFields(header); check != PageCheck::kOk) {
    return absl::StrCat("the file does not begin with a page header (", ToString(check), "); ",
                        kPutRaw, "page");
  }
  Differences found;
  found.Compare("layout", layout.hash_hex.substr(0, 2 * sizeof(header.identity_prefix)),
                LayoutPrefix(header));
  found.Compare("part", part, header.part);
  found.Compare("raw bytes", layout.raw_bytes[part], header.raw_bytes);
  found.Compare("bytes", uint64_t{kPageHeaderBytes} + header.payload_bytes, file.size());
  if (token_count != 0) found.Compare("token count", token_count, header.token_count);
  if (header.token_count > layout.page_tokens) {
    found.Compare("token count", absl::StrCat("at most ", layout.page_tokens), header.token_count);
  }
  // A layout also reads pages of the wider codecs that it falls back to.
  const std::string precision = PrecisionOfLayout(layout);
  if (header.payload_bytes != layout.payload_bytes[part] &&
      precision == ToString(header.precision)) {
    found.Compare("payload bytes", layout.payload_bytes[part], header.payload_bytes);
  }
  if (!found.empty()) {
    return absl::StrCat(found.text(),
                        "; put it under the layout, part and token count it was made "
                        "for, or put the raw page (--form raw)");
  }
  return absl::StrFormat(
      "size, layout, part and token count agree, so the key, the tenant or the codec differs: got "
      "key %s, tenant %016x, codec %016x (%s), expected %s of layout %s; put it under the key it "
      "was got from, by the same tenant, or put the raw page (--form raw)",
      Hex(header.key.bytes), header.tenant_prefix, header.codec_id, ToString(header.precision),
      layout.codec, layout.name);
}

}  // namespace

std::string ExplainMismatch(const client::Layout& layout, uint32_t part, uint32_t token_count,
                            client::Form form, Bytes file) {
  switch (form) {
    case client::Form::kPacked:
      return OfPacked(layout, part, file);
    case client::Form::kPage:
      return OfPage(layout, part, token_count, file);
    case client::Form::kRaw:
      break;
  }
  return absl::StrCat("bytes: expected ", layout.raw_bytes[part], ", got ", file.size(),
                      "; see crumbctl layout ls");
}

}  // namespace crumb::cli
