// Chunks into codecs. Bounded before anything is kept.
#include "client/src/layout_codecs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"

namespace crumb::client {
namespace {

constexpr int kReadersMax = 1024;
constexpr int kSetsMax = 64;

template <typename... Args>
absl::Status Bad(const Args&... args) {
  return absl::DataLossError(absl::StrCat("GetCodecs: the daemon's answer ", args...));
}

absl::StatusOr<CodecDescriptor> DescriptorOf(const std::string& canonical) {
  absl::StatusOr<CodecDescriptor> made = CodecDescriptor::FromCanonical(AsBytes(canonical));
  if (made.ok()) return made;
  return Bad("has a codec that this client does not know: ", std::string(made.status().message()),
             "; install matching versions");
}

}  // namespace

std::shared_ptr<const RotationSet> LayoutCodecs::FindRotations(
    const CodecDescriptor& descriptor) const {
  for (const auto& set : rotations) {
    if (set->hash() == descriptor.rotation_set) return set;
  }
  return nullptr;
}

absl::Status CodecsReader::TakeHeader(const v1::CodecsHeader& header) {
  if (header.readers_size() > kReadersMax || header.rotation_bytes_size() > kSetsMax) {
    return Bad("has ", header.readers_size(), " codecs and ", header.rotation_bytes_size(),
               " rotation sets; at most ", kReadersMax, " and ", kSetsMax, " are taken");
  }
  CRUMB_ASSIGN(codecs_.put, DescriptorOf(header.put()));
  for (const std::string& canonical : header.readers()) {
    CRUMB_ASSIGN(const CodecDescriptor reader, DescriptorOf(canonical));
    codecs_.readers.push_back(reader);
  }
  CRUMB_ASSIGN(codecs_.effort, ParseEffort(header.effort()));
  codecs_.packs_known = header.packs_known();
  codecs_.packs_unknown = header.packs_unknown();
  for (const uint64_t bytes : header.rotation_bytes()) {
    if (bytes > kRotationFileBytesMax - bytes_) {
      return Bad("has rotation sets of over ", kRotationFileBytesMax, " bytes");
    }
    bytes_ += bytes;
    file_bytes_.push_back(bytes);
  }
  begun_ = true;
  return absl::OkStatus();
}

absl::Status CodecsReader::Take(const v1::CodecsChunk& chunk) {
  if (begun_ == chunk.has_header()) return Bad("does not start with its one header");
  if (chunk.has_header()) CRUMB_TRY(TakeHeader(chunk.header()));
  if (chunk.data().size() > bytes_ - data_.size()) return Bad("is longer than it said");
  data_ += chunk.data();
  return absl::OkStatus();
}

absl::StatusOr<LayoutCodecs> CodecsReader::Finish() {
  if (!begun_ || data_.size() != bytes_) return Bad("ended early");
  uint64_t at = 0;
  for (const uint64_t bytes : file_bytes_) {
    const Bytes file = AsBytes(data_).subspan(at, bytes);
    at += bytes;
    CRUMB_ASSIGN(std::shared_ptr<const RotationSet> set, RotationSet::Parse(file));
    codecs_.rotations.push_back(std::move(set));
  }
  for (const CodecDescriptor& reader : codecs_.readers) {
    if (reader.rotation_set != Sha256{} && codecs_.FindRotations(reader) == nullptr) {
      return Bad("lacks the rotation set of ", ToString(reader.kind));
    }
  }
  const auto is_put = [this](const CodecDescriptor& one) { return one.id() == codecs_.put.id(); };
  if (std::none_of(codecs_.readers.begin(), codecs_.readers.end(), is_put)) {
    return Bad("packs with a codec that it does not read");
  }
  return std::move(codecs_);
}

}  // namespace crumb::client
