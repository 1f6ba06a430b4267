// Test data by name. Tests only.
#include "tests/support/npz.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crumb::testing {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "test data: %s\n", message.c_str());
  std::abort();
}

}  // namespace

absl::StatusOr<NpzFile> NpzFile::Open(const std::string& path) {
  CRUMB_ASSIGN(demo::NpzFile file, demo::NpzFile::Open(path));
  return NpzFile(std::move(file));
}

NpzFile NpzFile::OpenTestData(const std::string& relative_path) {
  auto file = Open(TestDataPath(relative_path));
  if (!file.ok()) Die(std::string(file.status().message()));
  return std::move(*file);
}

std::string TestDataPath(const std::string& relative_path) {
  const char* root = std::getenv("CRUMB_TEST_DATA");
  return absl::StrCat(root != nullptr ? root : "tests/data", "/", relative_path);
}

std::string ReadTestData(const std::string& relative_path) {
  const std::string path = TestDataPath(relative_path);
  std::ifstream in(path, std::ios::binary);
  if (!in) Die(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace crumb::testing
