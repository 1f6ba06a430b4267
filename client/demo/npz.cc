// Reader of .npz archives over libzip, bounded in entries and bytes.
#include "client/demo/npz.h"

#include <zip.h>

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace crumb::demo {
namespace {

constexpr uint64_t kArrayBytesMax = 1ull << 30;  // of one array, and of a whole archive
constexpr zip_int64_t kEntriesMax = 4096;
constexpr char kMagic[] = "\x93NUMPY\x01\x00";
constexpr size_t kPreambleBytes = 10;  // magic, version, u16 header length

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("npy: ", what));
}

// The text between `open` and `close` after `key` in the header's dictionary.
absl::StatusOr<std::string> Field(const std::string& header, const std::string& key, char open,
                                  char close) {
  const size_t at = header.find("'" + key + "'");
  const size_t begin = at == std::string::npos ? at : header.find(open, at + key.size() + 2);
  const size_t end = begin == std::string::npos ? begin : header.find(close, begin + 1);
  if (end == std::string::npos) return Bad(absl::StrCat("no field ", key));
  return header.substr(begin + 1, end - begin - 1);
}

size_t DtypeBytes(const std::string& dtype) {
  static constexpr const char* kKnown[] = {"u1", "i1", "u2", "i4", "i8", "f4", "f8"};
  for (const char* known : kKnown) {
    if (dtype == known) return static_cast<size_t>(dtype[1] - '0');
  }
  return 0;
}

using Archive = std::unique_ptr<zip_t, decltype(&zip_discard)>;
using Entry = std::unique_ptr<zip_file_t, decltype(&zip_fclose)>;

absl::StatusOr<std::string> ReadEntry(zip_t* archive, uint64_t index) {
  zip_stat_t stat;
  zip_stat_init(&stat);
  if (zip_stat_index(archive, index, 0, &stat) != 0 || stat.size > kArrayBytesMax) {
    return Bad("entry cannot be read");
  }
  Entry entry(zip_fopen_index(archive, index, 0), &zip_fclose);
  if (entry == nullptr) return Bad("entry cannot be opened");
  std::string data(stat.size, '\0');
  const zip_int64_t got = zip_fread(entry.get(), data.data(), data.size());
  if (got != static_cast<zip_int64_t>(data.size())) return Bad("entry is cut");
  char beyond = 0;  // reading the end is what makes libzip compare the CRC
  if (zip_fread(entry.get(), &beyond, 1) != 0) return Bad("entry does not match its CRC or size");
  return data;
}

}  // namespace

size_t NpyArray::elements() const {
  size_t count = 1;
  for (const size_t extent : shape) count *= extent;
  return count;
}

absl::StatusOr<NpyArray> ParseNpy(Bytes file) {
  if (file.size() < kPreambleBytes || std::memcmp(file.data(), kMagic, 8) != 0) {
    return Bad("not a version 1 file");
  }
  const size_t header_bytes = size_t{file[8]} | size_t{file[9]} << 8;
  if (header_bytes > file.size() - kPreambleBytes) return Bad("header is cut");
  const std::string header(reinterpret_cast<const char*>(file.data()) + kPreambleBytes,
                           header_bytes);
  const Bytes data = file.subspan(kPreambleBytes + header_bytes);

  CRUMB_ASSIGN(const std::string descr, Field(header, "descr", '\'', '\''));
  CRUMB_ASSIGN(const std::string shape, Field(header, "shape", '(', ')'));
  if (header.find("'fortran_order': False") == std::string::npos) return Bad("Fortran order");
  if (descr.size() != 3 || (descr[0] != '<' && descr[0] != '|')) return Bad("dtype " + descr);

  NpyArray array;
  array.dtype = descr.substr(1);
  const size_t element_bytes = DtypeBytes(array.dtype);
  if (element_bytes == 0) return Bad("dtype " + descr);
  for (const auto part : absl::StrSplit(shape, ',', absl::SkipWhitespace())) {
    uint64_t extent = 0;
    if (!absl::SimpleAtoi(part, &extent) || extent > kArrayBytesMax) return Bad("shape " + shape);
    array.shape.push_back(extent);
    if (array.elements() > kArrayBytesMax) return Bad("shape " + shape);
  }
  array.size_bytes = array.elements() * element_bytes;
  if (array.size_bytes != data.size()) return Bad("length does not match the shape");
  array.storage.resize((array.size_bytes + 7) / 8);
  if (!data.empty()) std::memcpy(array.storage.data(), data.data(), data.size());
  return array;
}

absl::StatusOr<NpzFile> NpzFile::Open(const std::string& path) {
  int error = 0;
  Archive archive(zip_open(path.c_str(), ZIP_RDONLY, &error), &zip_discard);
  if (archive == nullptr) {
    zip_error_t reason;
    zip_error_init_with_code(&reason, error);
    const std::string text = zip_error_strerror(&reason);
    zip_error_fini(&reason);
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened as zip: ", text));
  }
  NpzFile file;
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  if (count < 0 || count > kEntriesMax) return Bad(absl::StrCat(path, " has ", count, " entries"));
  uint64_t total = 0;
  for (zip_int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint64_t>(i);
    const char* entry_name = zip_get_name(archive.get(), index, 0);
    if (entry_name == nullptr) return Bad(absl::StrCat(path, ": an entry has no name"));
    std::string name = entry_name;
    CRUMB_ASSIGN(const std::string data, ReadEntry(archive.get(), index));
    total += data.size();
    if (total > kArrayBytesMax) return Bad(absl::StrCat(path, " unpacks to over 1 GiB"));
    auto array = ParseNpy({reinterpret_cast<const uint8_t*>(data.data()), data.size()});
    if (!array.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", name, ": ", array.status().message()));
    }
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    file.arrays_.emplace(std::move(name), std::move(*array));
  }
  return file;
}

const NpyArray& NpzFile::operator[](const std::string& name) const {
  const auto found = arrays_.find(name);
  CRUMB_CHECK(found != arrays_.end());
  return found->second;
}

std::vector<std::string> NpzFile::names() const {
  std::vector<std::string> out;
  for (const auto& [name, array] : arrays_) out.push_back(name);
  return out;
}

}  // namespace crumb::demo
