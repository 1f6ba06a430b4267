// libzip behind bounds: sizes are judged from the directory before anything is unpacked, and an
// entry that unpacks to more or less than it announced is refused.
#include "gpu/codec/pt_archive.h"

#include <zip.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace crumb {
namespace {

constexpr absl::string_view kPickleSuffix = "/data.pkl";
constexpr size_t kEntryNameBytesMax = 512;

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::Status BadEntry(absl::string_view entry, absl::string_view what) {
  return Bad(absl::StrCat("zip entry '", absl::CHexEscape(entry), "': ", what));
}

absl::StatusOr<zip_stat_t> StatEntry(zip_t* archive, uint64_t index) {
  zip_stat_t info;
  zip_stat_init(&info);
  constexpr uint64_t kWanted = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                               ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if (zip_stat_index(archive, index, 0, &info) != 0 || (info.valid & kWanted) != kWanted) {
    return Bad(absl::StrCat("zip entry ", index, ": directory record is damaged"));
  }
  const absl::string_view entry = info.name;
  if (entry.size() > kEntryNameBytesMax) return Bad("zip entry with an overlong name");
  if (info.encryption_method != ZIP_EM_NONE) return BadEntry(entry, "encrypted");
  if (info.comp_method != ZIP_CM_STORE && info.comp_method != ZIP_CM_DEFLATE) {
    return BadEntry(entry, absl::StrCat("compression method ", info.comp_method,
                                        "; only stored and deflated entries are read"));
  }
  return info;
}

struct CloseFile {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

absl::StatusOr<std::string> Unpack(zip_t* archive, const zip_stat_t& info) {
  const std::unique_ptr<zip_file_t, CloseFile> file(zip_fopen_index(archive, info.index, 0));
  if (file == nullptr) return BadEntry(info.name, zip_strerror(archive));
  std::string data(info.size, '\0');
  uint64_t done = 0;
  while (done < data.size()) {
    const zip_int64_t got = zip_fread(file.get(), data.data() + done, data.size() - done);
    if (got < 0) return BadEntry(info.name, zip_file_strerror(file.get()));
    if (got == 0) return BadEntry(info.name, "ends before its announced size");
    done += static_cast<uint64_t>(got);
  }
  // Reading the end is what makes libzip compare the CRC.
  char beyond = 0;
  const zip_int64_t rest = zip_fread(file.get(), &beyond, 1);
  if (rest < 0) return BadEntry(info.name, zip_file_strerror(file.get()));
  if (rest > 0) return BadEntry(info.name, "unpacks to more than its announced size");
  return data;
}

}  // namespace

void PtArchive::Discard::operator()(zip* archive) const { zip_discard(archive); }

absl::StatusOr<PtArchive> PtArchive::Open(Bytes file) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(file.data(), file.size(), 0, &error);
  zip_t* archive = nullptr;
  if (source != nullptr) {
    archive = zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error);
    if (archive == nullptr) zip_source_free(source);
  }
  const std::string reason = zip_error_strerror(&error);
  zip_error_fini(&error);
  if (archive == nullptr) {
    return Bad(
        absl::StrCat("not a readable zip (", reason, "): truncated, or not written by torch.save"));
  }
  PtArchive out(archive);
  CRUMB_TRY(out.Survey(file.size()));
  return out;
}

absl::Status PtArchive::Survey(uint64_t file_bytes) {
  const zip_int64_t entries = zip_get_num_entries(archive_.get(), 0);
  if (entries <= 0 || static_cast<uint64_t>(entries) > kEntriesMax) {
    return Bad(absl::StrCat("zip with ", entries, " entries; 1 to ", kEntriesMax, " are possible"));
  }
  uint64_t unpacked = 0;
  bool found = false;
  for (uint64_t i = 0; i < static_cast<uint64_t>(entries); ++i) {
    CRUMB_ASSIGN(const zip_stat_t info, StatEntry(archive_.get(), i));
    if (info.size > kUnpackedBytesMax) return BadEntry(info.name, "unpacks beyond 1 GiB");
    unpacked += info.size;  // <= 2^14 x 2^30
    const absl::string_view entry = info.name;
    if (!absl::EndsWith(entry, kPickleSuffix)) continue;
    if (found) return Bad("zip with two data.pkl");
    found = true;
    root_ = std::string(entry.substr(0, entry.size() - kPickleSuffix.size()));
  }
  const uint64_t by_ratio = kUnpackedBytesFree + file_bytes * kUnpackedRatioMax;
  const uint64_t unpacked_max = std::min(kUnpackedBytesMax, by_ratio);
  if (unpacked > unpacked_max) {
    return Bad(absl::StrCat("zip of ", file_bytes, " bytes unpacks to ", unpacked,
                            ", more than the ", unpacked_max, " allowed: a zip bomb?"));
  }
  if (!found) return Bad("zip without data.pkl: not written by torch.save");
  return absl::OkStatus();
}

absl::StatusOr<std::string> PtArchive::Read(absl::string_view path, uint64_t bytes_max) const {
  const std::string entry = absl::StrCat(root_, "/", path);
  const zip_int64_t index = zip_name_locate(archive_.get(), entry.c_str(), ZIP_FL_ENC_RAW);
  if (index < 0) {
    return absl::NotFoundError(
        absl::StrCat("zip entry '", absl::CHexEscape(entry), "' is missing"));
  }
  CRUMB_ASSIGN(const zip_stat_t info, StatEntry(archive_.get(), static_cast<uint64_t>(index)));
  if (info.size > bytes_max) {
    return BadEntry(entry, absl::StrCat(info.size, " bytes; at most ", bytes_max, " are read"));
  }
  return Unpack(archive_.get(), info);
}

}  // namespace crumb
