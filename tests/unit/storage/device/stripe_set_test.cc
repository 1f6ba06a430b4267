// Sets of real files: the first start, the next one in any order, and every wrong set there is,
// which is refused and stays as it was. Every path lies in a fresh directory.
#include "storage/device/stripe_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "cachesvc/base/hash.h"
#include "storage/device/aligned_buffer.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlock = 4096;
constexpr uint64_t kEach = 4 << 20;
constexpr uint64_t kDataEach = kEach - kStripeLabelBytes;

// A log's head, for these tests: zeros, or "LOG"; "NEW" is a log of a newer format.
absl::Status AcceptLog(Bytes head) {
  const bool log = head.size() >= 3 && std::memcmp(head.data(), "LOG", 3) == 0;
  const bool zero = std::all_of(head.begin(), head.end(), [](uint8_t byte) { return byte == 0; });
  if (log || zero) return absl::OkStatus();
  return absl::FailedPreconditionError("is a log of a newer format");
}

class StripeSetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/crumb-set-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  StripeSetOptions Options(const std::vector<std::string>& names) const {
    StripeSetOptions options;
    for (const std::string& name : names) options.paths.push_back(Path(name));
    options.bytes = kEach * names.size();
    options.unit_bytes = 64 << 10;
    options.each.depth = 16;
    options.each.lock_wait_ms = 0;
    options.each.accept = &AcceptLog;
    return options;
  }
  std::string Content(const std::string& name) const {
    std::ostringstream out;
    out << std::ifstream(Path(name), std::ios::binary).rdbuf();
    return out.str();
  }
  std::map<std::string, std::string> Everything() const {
    std::map<std::string, std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      out[entry.path().filename()] = Content(entry.path().filename());
    }
    return out;
  }
  void Write(const std::string& name, uint64_t at, const std::string& text) const {
    std::fstream file(Path(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file << text;
  }
  int Do(BlockDevice* device, const IoRequest& request) const {
    EXPECT_TRUE(device->Queue(request));
    std::array<IoCompletion, 4> done;
    for (int i = 0; i < 1000; ++i) {
      device->Submit();
      pollfd entry = {device->wake_fd(), POLLIN, 0};
      EXPECT_EQ(::poll(&entry, 1, 10'000), 1);
      if (device->Poll(absl::MakeSpan(done)) == 1) return done[0].error;
    }
    ADD_FAILURE() << "never completed";
    return -1;
  }
  // Makes a set whose every unit holds its number.
  void Make(const std::vector<std::string>& names) {
    absl::StatusOr<FileDevice> set = OpenStripeSet(Options(names));
    ASSERT_TRUE(set.ok()) << set.status();
    for (uint64_t at = 0; at < set->device->size_bytes(); at += 64 << 10) {
      std::memset(buffer_.data(), static_cast<int>(at >> 16), 64 << 10);
      if (at == 0) std::memcpy(buffer_.data(), "LOG", 3);
      ASSERT_EQ(Do(set->device.get(), {IoOp::kWriteDurable, at, buffer_.data(), 64 << 10, 1}), 0);
    }
  }
  void ExpectWhole(const StripeSetOptions& options) {
    absl::StatusOr<FileDevice> set = OpenStripeSet(options);
    ASSERT_TRUE(set.ok()) << set.status();
    for (uint64_t at = 0; at < set->device->size_bytes(); at += 64 << 10) {
      ASSERT_EQ(Do(set->device.get(), {IoOp::kRead, at, buffer_.data(), 64 << 10, 1}), 0);
      ASSERT_EQ(buffer_.data()[kBlock], static_cast<uint8_t>(at >> 16)) << at;
    }
  }
  // The message of a refusal that left every file as it was.
  std::string Refusal(const StripeSetOptions& options) {
    const std::map<std::string, std::string> before = Everything();
    const absl::StatusOr<FileDevice> set = OpenStripeSet(options);
    EXPECT_FALSE(set.ok());
    EXPECT_EQ(Everything(), before) << "a refused set was changed";
    return std::string(set.status().message());
  }
  std::string Refusal(const std::vector<std::string>& names) { return Refusal(Options(names)); }

  std::string folder_;
  AlignedBuffer buffer_{64 << 10};
};

TEST_F(StripeSetTest, ANewSetIsLabelledSizedAndPrivate) {
  const absl::StatusOr<FileDevice> set = OpenStripeSet(Options({"a", "b", "c"}));
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->device->size_bytes(), 3 * kDataEach);
  EXPECT_EQ(set->bytes_before, 0u);
  EXPECT_THAT(set->description, HasSubstr("new set of 3 members striped in units of 65536 bytes"));
  EXPECT_THAT(set->description, HasSubstr(Path("b") + ": 4194304 bytes"));
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(std::filesystem::file_size(Path(name)), kEach);
    EXPECT_EQ(static_cast<int>(std::filesystem::status(Path(name)).permissions()), 0600);
  }
}

TEST_F(StripeSetTest, TheCapIsOverAllMembers) {
  StripeSetOptions options = Options({"a", "b", "c"});
  options.bytes = 16'000'000;
  ASSERT_TRUE(OpenStripeSet(options).ok());
  uint64_t sum = 0;
  for (const char* name : {"a", "b", "c"}) sum += std::filesystem::file_size(Path(name));
  EXPECT_LE(sum, options.bytes);
  EXPECT_GT(sum, options.bytes - 3 * kBlock);
}

TEST_F(StripeSetTest, LabelsAndNotThePathsSayWhoIsWho) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b", "c"}));
  ASSERT_NO_FATAL_FAILURE(ExpectWhole(Options({"a", "b", "c"})));
  ASSERT_NO_FATAL_FAILURE(ExpectWhole(Options({"c", "a", "b"})));
  std::filesystem::rename(Path("a"), Path("x"));  // as disks that come up under other names
  std::filesystem::rename(Path("b"), Path("a"));
  ASSERT_NO_FATAL_FAILURE(ExpectWhole(Options({"a", "x", "c"})));
  const absl::StatusOr<FileDevice> set = OpenStripeSet(Options({"a", "x", "c"}));
  ASSERT_TRUE(set.ok());
  EXPECT_THAT(set->description, HasSubstr("in the order of their labels"));
  EXPECT_GE(set->bytes_before, set->device->size_bytes());
}

TEST_F(StripeSetTest, AMissingMemberIsNamed) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  std::filesystem::rename(Path("b"), Path("gone"));
  const std::string absent = Refusal({"a", "b"});
  EXPECT_THAT(absent, HasSubstr(Path("b") + ": is empty, but " + Path("a") + " is member 1 of 2"));
  EXPECT_THAT(absent, HasSubstr("mount it or name its path"));
  std::ofstream(Path("b")) << "";
  EXPECT_THAT(Refusal({"a", "b"}), HasSubstr("a member is missing or was replaced"));
  std::filesystem::resize_file(Path("b"), kEach);
  EXPECT_THAT(Refusal({"a", "b"}), HasSubstr("a member is missing or was replaced"));
  EXPECT_THAT(Refusal({"b", "a"}), HasSubstr("a member is missing or was replaced"));
}

TEST_F(StripeSetTest, AnotherCountIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b", "c"}));
  EXPECT_THAT(Refusal({"a", "b"}), HasSubstr("is member 1 of 3, and 2 paths are given"));
  EXPECT_THAT(Refusal({"a", "b", "c", "d"}), HasSubstr("and 4 paths are given: name all 3"));
  EXPECT_FALSE(std::filesystem::exists(Path("d")));
}

TEST_F(StripeSetTest, MembersOfTwoSetsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  ASSERT_NO_FATAL_FAILURE(Make({"c", "d"}));
  EXPECT_THAT(Refusal({"a", "d"}), HasSubstr(Path("d") + ": belongs to another striped set"));
}

TEST_F(StripeSetTest, ACopyIsFound) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  std::filesystem::copy_file(Path("a"), Path("copy"));
  EXPECT_THAT(Refusal({"a", "copy"}), HasSubstr("one is a copy"));
}

TEST_F(StripeSetTest, OneFileTwiceIsFoundUnderAnyName) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  EXPECT_THAT(Refusal({"a", "a"}), HasSubstr("are one file"));
  std::filesystem::create_hard_link(Path("a"), Path("hard"));
  EXPECT_THAT(Refusal({"a", "hard"}), HasSubstr("are one file"));
  EXPECT_THAT(Refusal({"new", "new"}), HasSubstr("are one file"));
}

TEST_F(StripeSetTest, ALogOfItsOwnAndForeignDataAreNoMembers) {
  std::ofstream(Path("log")) << "LOG" << std::string(100'000, '\0');
  EXPECT_THAT(Refusal({"log", "b"}), HasSubstr("is a log of its own and no member"));
  std::ofstream(Path("photo")) << "JPEG of the summer";
  EXPECT_THAT(Refusal({"a", "photo"}), HasSubstr("holds data that is no member"));
  EXPECT_FALSE(std::filesystem::exists(Path("a")));
  std::ofstream(Path("deep")) << std::string(2 << 20, '\0') << "data behind an empty head";
  std::filesystem::resize_file(Path("deep"), 3 << 20);
  EXPECT_THAT(Refusal({"deep", "b"}), HasSubstr("holds data behind an empty head"));
}

TEST_F(StripeSetTest, AMemberIsNoLogByItself) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  const std::string head = Content("b").substr(0, kFileHeadBytes);
  const absl::Status status =
      RefuseStripeMember(Bytes(reinterpret_cast<const uint8_t*>(head.data()), head.size()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("is member 2 of 2 of a striped set"));
  EXPECT_TRUE(RefuseStripeMember(Bytes(reinterpret_cast<const uint8_t*>("LOG"), 3)).ok());
  EXPECT_TRUE(RefuseStripeMember({}).ok());
}

TEST_F(StripeSetTest, NewerFormatsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  Write("a", kStripeLabelBytes, "NEW");  // what the set holds
  EXPECT_THAT(Refusal({"a", "b"}), HasSubstr("is a log of a newer format"));
  EXPECT_THAT(Refusal({"b", "a"}), HasSubstr("is a log of a newer format"));
  Write("a", kStripeLabelBytes, "LOG");
  StripeLabel label{.format_version = 2, .set_id = 1, .count = 2};
  const std::string bytes(reinterpret_cast<const char*>(&label), sizeof(label) - 8);
  const uint64_t sum = Xxh3(Bytes(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
  Write("b", 0, bytes + std::string(reinterpret_cast<const char*>(&sum), 8));
  EXPECT_THAT(Refusal({"a", "b"}), HasSubstr("of a newer format than 1"));
}

TEST_F(StripeSetTest, ADamagedLabelIsMadeWholeFromItsCopy) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  const std::string good = Content("b").substr(0, kFileHeadBytes);
  for (const uint64_t offset : kStripeLabelOffsets) {
    for (uint64_t at = offset; at < offset + sizeof(StripeLabel); at += 37) {
      Write("b", at, std::string(1, static_cast<char>(good[at] ^ 0x10)));
      ASSERT_NO_FATAL_FAILURE(ExpectWhole(Options({"a", "b"}))) << at;
      ASSERT_EQ(Content("b").substr(0, kFileHeadBytes), good) << at;
    }
  }
  for (const uint64_t offset : kStripeLabelOffsets) Write("b", offset, "X");
  EXPECT_THAT(Refusal({"a", "b"}), HasSubstr("or a member whose label is destroyed"));
}

// Every moment in which the first formatting can end: labels are written one sector at a time.
TEST_F(StripeSetTest, ACrashInTheFirstFormattingIsRecognised) {
  ASSERT_TRUE(OpenStripeSet(Options({"a", "b", "c"})).ok());
  const std::vector<std::string> names = {"a", "b", "c"};
  std::map<std::string, std::string> formed, forming;
  for (const std::string& name : names) {
    formed[name] = Content(name);
    AlignedBuffer head(kFileHeadBytes);
    const auto parsed = ParseStripeHead(
        Bytes(reinterpret_cast<const uint8_t*>(formed[name].data()), kFileHeadBytes));
    ASSERT_TRUE(parsed.ok());
    StripeLabel label = parsed->label;
    label.state = StripeState::kForming;
    StoreStripeLabel(label, head.span());
    forming[name] = std::string(reinterpret_cast<const char*>(head.data()), head.size());
  }
  constexpr size_t kWrites = 12;  // 3 members, 2 states, 2 copies
  for (size_t crash = 0; crash < kWrites; ++crash) {
    for (const std::string& name : names) {
      std::ofstream(Path(name), std::ios::trunc) << std::string(kFileHeadBytes, '\0');
      std::filesystem::resize_file(Path(name), kEach);
    }
    for (size_t write = 0; write < crash; ++write) {
      const std::string& name = names[write % 6 / 2];
      const uint64_t offset = kStripeLabelOffsets[write % 2];
      const std::string& from = write < 6 ? forming[name] : formed[name];
      Write(name, offset, from.substr(offset, sizeof(StripeLabel)));
    }
    const absl::StatusOr<FileDevice> set = OpenStripeSet(Options(names));
    ASSERT_TRUE(set.ok()) << crash << ": " << set.status();
    const bool again = crash <= 6;
    EXPECT_EQ(set->description.find("new set") == 0, again) << crash;
    if (again) continue;
    for (const std::string& name : names) {  // the same set went on
      EXPECT_EQ(Content(name).substr(0, kFileHeadBytes), formed[name].substr(0, kFileHeadBytes));
    }
  }
}

TEST_F(StripeSetTest, GrowingAndShrinkingKeepsWhatIsInside) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  StripeSetOptions options = Options({"a", "b"});
  options.bytes = 2 * kEach + (2 << 20);
  const uint64_t before = 2 * kDataEach;
  {
    const absl::StatusOr<FileDevice> set = OpenStripeSet(options);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ(set->device->size_bytes(), before + (2 << 20));
    EXPECT_EQ(set->bytes_before, before);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectWhole(Options({"a", "b"})));
}

TEST_F(StripeSetTest, ACutMemberMakesAGapWhereItsFirstUnitIsMissing) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  std::filesystem::resize_file(Path("b"), kStripeLabelBytes + 3 * (64 << 10) + kBlock);
  const absl::StatusOr<FileDevice> set = OpenStripeSet(Options({"b", "a"}));
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->bytes_before, (3u * 2 + 1) * (64 << 10) + kBlock);
  EXPECT_EQ(std::filesystem::file_size(Path("b")), kEach);
}

TEST_F(StripeSetTest, AnOldSetKeepsItsUnit) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  StripeSetOptions options = Options({"a", "b"});
  options.unit_bytes = 1 << 20;
  ASSERT_NO_FATAL_FAILURE(ExpectWhole(options));
}

TEST_F(StripeSetTest, AMemberInUseStopsTheSet) {
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  const absl::StatusOr<FileDevice> set = OpenStripeSet(Options({"a", "b"}));
  ASSERT_TRUE(set.ok());
  EXPECT_THAT(Refusal({"b", "c"}), HasSubstr(Path("b") + ": in use by another process"));
}

TEST_F(StripeSetTest, WithoutRoomNothingStaysBehind) {
  StripeSetOptions options = Options({"a", "b"});
  options.bytes = 1ull << 55;
  EXPECT_THAT(Refusal(options), HasSubstr("cannot get"));
  ASSERT_NO_FATAL_FAILURE(Make({"a", "b"}));
  EXPECT_THAT(Refusal(options), HasSubstr("cannot get"));
  ASSERT_NO_FATAL_FAILURE(ExpectWhole(Options({"a", "b"})));
}

TEST_F(StripeSetTest, WrongOptionsAreRefused) {
  EXPECT_THAT(Refusal({"a"}), HasSubstr("2 to 16 are possible"));
  EXPECT_THAT(Refusal(std::vector<std::string>(17, "a")), HasSubstr("2 to 16 are possible"));
  StripeSetOptions options = Options({"a", "b"});
  options.bytes = 2 << 20;
  EXPECT_THAT(Refusal(options), HasSubstr("raise nvme.bytes"));
}

}  // namespace
}  // namespace crumb
