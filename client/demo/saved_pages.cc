// One line per page: codec, namespace, page number, SHA-256; see saved_pages.h.
#include "client/demo/saved_pages.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace crumb::demo {
namespace {

constexpr absl::string_view kFirstLine = "crumb-demo pages 1";
constexpr size_t kFieldBytesMax = 256;

absl::Status Bad(size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

absl::StatusOr<SavedPage> ParseLine(absl::string_view text, size_t line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, ' ');
  if (fields.size() != 4) return Bad(line, "not 'codec namespace page sha256'");
  SavedPage page;
  page.codec = std::string(fields[0]);
  page.name_space = std::string(fields[1]);
  if (fields[0].empty() || fields[1].empty() || fields[0].size() > kFieldBytesMax ||
      fields[1].size() > kFieldBytesMax) {
    return Bad(line, "codec or namespace is empty or overlong");
  }
  if (!absl::SimpleAtoi(fields[2], &page.page)) return Bad(line, "the page is no number");
  if (!ParseHex({fields[3].data(), fields[3].size()}, absl::MakeSpan(page.hash))) {
    return Bad(line, "the SHA-256 is not 64 hexadecimal digits");
  }
  return page;
}

}  // namespace

std::string FormatSavedPages(const std::vector<SavedPage>& pages) {
  std::string out = absl::StrCat(kFirstLine, "\n");
  for (const SavedPage& page : pages) {
    absl::StrAppend(&out, page.codec, " ", page.name_space, " ", page.page, " ", Hex(page.hash),
                    "\n");
  }
  return out;
}

absl::StatusOr<std::vector<SavedPage>> ParseSavedPages(const std::string& text) {
  if (text.empty() || text.back() != '\n') {
    return absl::InvalidArgumentError("cut short: the last line does not end");
  }
  std::vector<SavedPage> pages;
  size_t line = 0;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size() - 1), '\n')) {
    ++line;
    if (line == 1) {
      if (part != kFirstLine) return Bad(line, "not a file that crumb-demo --save wrote");
      continue;
    }
    CRUMB_ASSIGN(SavedPage page, ParseLine(part, line));
    pages.push_back(std::move(page));
  }
  if (pages.empty()) return absl::InvalidArgumentError("it names no pages");
  return pages;
}

}  // namespace crumb::demo
