// Checksummed records in a file. One thread; blocking.
#include "cachesvc/server/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

constexpr uint64_t kMagic = 0x544143424d555243;  // "CRUMBCAT"
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 32;
constexpr uint32_t kRecordMagic = 0x63657263;  // "crec"
constexpr size_t kRecordHeadBytes = 24;        // magic, type, zero, payload bytes, zero, checksum
constexpr size_t kChecksumAt = 16;
constexpr size_t kAlignment = 8;

std::string FileHeader() {
  ByteWriter writer;
  writer.Write<uint64_t>(kMagic);
  writer.Write<uint32_t>(kVersion);
  writer.Write<uint32_t>(0);
  writer.Write<uint64_t>(0);
  writer.Write<uint64_t>(Xxh3(AsBytes(writer.str())));
  return writer.str();
}

void AppendRecord(const CatalogRecord& record, ByteWriter* out) {
  ByteWriter head;
  head.Write<uint32_t>(kRecordMagic);
  head.Write<uint16_t>(record.type);
  head.Write<uint16_t>(0);
  head.Write<uint32_t>(static_cast<uint32_t>(record.payload.size()));
  head.Write<uint32_t>(0);
  head.Write<uint64_t>(Xxh3(AsBytes(head.str()), AsBytes(record.payload)));
  out->WriteBytes(AsBytes(head.str()));
  out->WriteBytes(AsBytes(record.payload));
  out->PadTo(kAlignment);
}

// The record at `at`; its whole length, or 0 if there is no valid one.
size_t ParseRecord(Bytes file, size_t at, CatalogRecord* record) {
  if (file.size() - at < kRecordHeadBytes) return 0;
  ByteReader reader(file.subspan(at, kRecordHeadBytes));
  const auto magic = reader.Read<uint32_t>();
  record->type = reader.Read<uint16_t>();
  const auto zero = reader.Read<uint16_t>();
  const auto payload_bytes = reader.Read<uint32_t>();
  const auto zero_too = reader.Read<uint32_t>();
  const auto checksum = reader.Read<uint64_t>();
  if (magic != kRecordMagic || zero != 0 || zero_too != 0 || payload_bytes > kRecordBytesMax) {
    return 0;
  }
  const size_t padded = (payload_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (file.size() - at - kRecordHeadBytes < padded) return 0;
  const Bytes payload = file.subspan(at + kRecordHeadBytes, payload_bytes);
  if (Xxh3(file.subspan(at, kChecksumAt), payload) != checksum) return 0;
  record->payload.assign(reinterpret_cast<const char*>(payload.data()), payload.size());
  return kRecordHeadBytes + padded;
}

enum class HeaderKind : uint8_t { kGood, kDamaged, kNewer };

HeaderKind CheckHeader(Bytes file) {
  if (file.size() < kHeaderBytes) return HeaderKind::kDamaged;
  ByteReader reader(file.subspan(0, kHeaderBytes));
  const auto magic = reader.Read<uint64_t>();
  const auto version = reader.Read<uint32_t>();
  reader.Read<uint32_t>();
  reader.Read<uint64_t>();
  const auto checksum = reader.Read<uint64_t>();
  if (magic != kMagic || checksum != Xxh3(file.subspan(0, kHeaderBytes - sizeof(uint64_t)))) {
    return HeaderKind::kDamaged;
  }
  return version > kVersion ? HeaderKind::kNewer : HeaderKind::kGood;
}

struct Scan {
  std::vector<CatalogRecord> records;
  uint64_t dropped = 0;
};

// Every valid record; after a bad stretch it goes on at the next one that verifies.
Scan ScanRecords(Bytes file, size_t at) {
  Scan scan;
  bool bad = false;
  while (at < file.size()) {
    CatalogRecord record;
    const size_t length = ParseRecord(file, at, &record);
    if (length != 0) {
      scan.records.push_back(std::move(record));
      at += length;
      bad = false;
      continue;
    }
    if (!bad) ++scan.dropped;
    bad = true;
    at += std::min(kAlignment, file.size() - at);
  }
  return scan;
}

}  // namespace

absl::StatusOr<RecordFile> RecordFile::Open(const Directory& directory, const std::string& name,
                                            std::vector<CatalogRecord>* records) {
  RecordFile out;
  out.directory_ = &directory;
  out.name_ = name;
  records->clear();
  const std::string path = absl::StrCat(directory.path(), "/", name);
  absl::StatusOr<std::string> content = directory.Read(name, kRecordFileBytesMax);
  if (absl::IsNotFound(content.status())) {
    CRUMB_TRY(out.Rewrite({}));
    return out;
  }
  if (!content.ok()) return content.status();
  const HeaderKind header = CheckHeader(AsBytes(*content));
  if (header == HeaderKind::kNewer) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": written by a newer version: run that version"));
  }
  Scan scan = ScanRecords(AsBytes(*content), std::min(kHeaderBytes, content->size()));
  out.dropped_ = scan.dropped + (header == HeaderKind::kDamaged ? 1 : 0);
  if (header == HeaderKind::kDamaged && scan.records.empty() && content->size() > kHeaderBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": not a catalog: move it away, or restore it from a copy"));
  }
  *records = std::move(scan.records);
  if (out.dropped_ != 0) {
    CRUMB_TRY(out.Rewrite(*records));
    return out;
  }
  CRUMB_ASSIGN(out.file_, directory.OpenFile(name, O_WRONLY));
  out.size_bytes_ = content->size();
  return out;
}

absl::Status RecordFile::Append(absl::Span<const CatalogRecord> records) {
  ByteWriter writer;
  for (const CatalogRecord& record : records) {
    if (record.payload.size() > kRecordBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(name_, ": record too long"));
    }
    AppendRecord(record, &writer);
  }
  const std::string path = absl::StrCat(directory_->path(), "/", name_);
  if (size_bytes_ + writer.size() > kRecordFileBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": full"));
  }
  if (lseek(file_.get(), static_cast<off_t>(size_bytes_), SEEK_SET) < 0) {
    return FileError(path, "seek", errno);
  }
  absl::Status written = WriteAll(file_.get(), AsBytes(writer.str()), path);
  if (written.ok() && fdatasync(file_.get()) != 0) written = FileError(path, "fdatasync", errno);
  if (!written.ok()) {
    // Whatever got there is cut off; if that fails too, the next append writes over it.
    [[maybe_unused]] const int cut = ftruncate(file_.get(), static_cast<off_t>(size_bytes_));
    return written;
  }
  size_bytes_ += writer.size();
  return absl::OkStatus();
}

absl::Status RecordFile::Rewrite(absl::Span<const CatalogRecord> records) {
  ByteWriter writer;
  writer.WriteBytes(AsBytes(FileHeader()));
  for (const CatalogRecord& record : records) AppendRecord(record, &writer);
  CRUMB_TRY(directory_->Replace(name_, AsBytes(writer.str())));
  CRUMB_ASSIGN(file_, directory_->OpenFile(name_, O_WRONLY));
  size_bytes_ = writer.size();
  return absl::OkStatus();
}

}  // namespace crumb
