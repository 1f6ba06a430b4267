// Reading, comparing and writing golden files. Tests only.
#include "tests/golden/golden.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string_view>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"

namespace crumb::golden {
namespace {

constexpr size_t kBytesPerLine = 32;

struct Settings {
  std::string directory;
  bool regenerate = false;
};

Settings& settings() {
  static Settings instance;  // arguments of this process; owns nothing else
  return instance;
}

void WriteFile(const std::string& path, const std::string& comment, Bytes bytes) {
  std::ofstream out(path, std::ios::trunc);
  out << "# " << comment << "\n";
  for (size_t i = 0; i < bytes.size(); i += kBytesPerLine) {
    out << Hex(bytes.subspan(i, kBytesPerLine)) << "\n";
  }
  out.close();
  ASSERT_TRUE(out.good()) << "cannot write " << path;
}

// False if the file is missing or is not hex.
bool ReadFile(const std::string& path, std::string* out) {
  std::ifstream in(path);
  if (!in) return false;
  std::string line;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::string bytes(line.size() / 2, '\0');
    if (!ParseHex(line, MutableBytes(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()))) {
      return false;
    }
    *out += bytes;
  }
  return true;
}

}  // namespace

bool Init(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--regenerate") {
      settings().regenerate = true;
    } else if (settings().directory.empty() && !argument.starts_with("--")) {
      settings().directory = argument;
    } else {
      settings().directory.clear();
      break;
    }
  }
  if (!settings().directory.empty()) return true;
  std::fprintf(stderr, "usage: %s [--regenerate] DIR\n", argv[0]);
  return false;
}

void Expect(const std::string& name, const std::string& comment, Bytes bytes) {
  const std::string path = settings().directory + "/" + name;
  if (settings().regenerate) {
    WriteFile(path, comment, bytes);
    return;
  }
  std::string want;
  ASSERT_TRUE(ReadFile(path, &want)) << path << " is missing or not hex; see tests/golden/golden.h";
  ASSERT_EQ(bytes.size(), want.size()) << name << ": the length changed";
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(bytes[i], static_cast<uint8_t>(want[i])) << name << ": byte " << i << " changed";
  }
}

std::string Read(const std::string& name) {
  const std::string path = settings().directory + "/" + name;
  std::string content;
  if (!ReadFile(path, &content)) {
    ADD_FAILURE() << path << " is missing or not hex; see tests/golden/golden.h";
    content.clear();
  }
  return content;
}

int Main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!Init(argc, argv)) return 2;
  return RUN_ALL_TESTS();
}

}  // namespace crumb::golden
