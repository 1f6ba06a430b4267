// Data directory, its lock, and the cluster secret: made once, private, refused when damaged.
#include "cachesvc/server/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "cachesvc/server/data_dir.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
}

TEST(DataDir, IsMadePrivateAndLocked) {
  TempDir temp;
  const mode_t old = umask(0);
  {
    const auto first = DataDir::Open(temp / "data");
    umask(old);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(ModeOf(temp / "data"), 0700u);
    EXPECT_EQ(ModeOf(temp / "data/lock"), 0600u);
    const auto second = DataDir::Open(temp / "data");
    ASSERT_FALSE(second.ok());
    EXPECT_THAT(std::string(second.status().message()),
                HasSubstr("pid " + std::to_string(getpid())));
  }
  EXPECT_TRUE(DataDir::Open(temp / "data").ok());  // the lock ends with its holder
}

TEST(DataDir, AnEmptyOpenDirectoryBecomesPrivateAForeignOneDoesNot) {
  TempDir temp;
  ASSERT_EQ(mkdir((temp / "empty").c_str(), 0755), 0);
  const auto empty = DataDir::Open(temp / "empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(ModeOf(temp / "empty"), 0700u);
  EXPECT_EQ(empty->notes().size(), 1u);
  ASSERT_EQ(mkdir((temp / "etc").c_str(), 0755), 0);
  ASSERT_EQ(mkdir((temp / "etc/ssl").c_str(), 0755), 0);
  const auto foreign = DataDir::Open(temp / "etc");
  ASSERT_TRUE(foreign.ok());
  EXPECT_EQ(ModeOf(temp / "etc"), 0755u);
  ASSERT_EQ(foreign->notes().size(), 1u);
  EXPECT_THAT(foreign->notes()[0], HasSubstr("chmod 700"));
}

TEST(DataDir, LinksAndFilesInItsPlaceAreRefused) {
  TempDir temp;
  Write(temp / "file", "x");
  EXPECT_FALSE(DataDir::Open(temp / "file").ok());
  ASSERT_EQ(mkdir((temp / "data").c_str(), 0700), 0);
  Write(temp / "victim", "precious");
  ASSERT_EQ(symlink((temp / "victim").c_str(), (temp / "data/lock").c_str()), 0);
  EXPECT_FALSE(DataDir::Open(temp / "data").ok());
  EXPECT_EQ(Content(temp / "victim"), "precious");
}

class SecretTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto directory = Directory::Open(temp_ / "data");
    ASSERT_TRUE(directory.ok());
    directory_ = *std::move(directory);
  }
  std::string path() const { return temp_ / "data/secret"; }
  absl::Status Refused() {
    const auto secret = LoadOrMakeSecret(directory_);
    EXPECT_FALSE(secret.ok());
    return secret.status();
  }

  TempDir temp_;
  Directory directory_;
};

TEST_F(SecretTest, IsMadeOnceAndReadBack) {
  const mode_t old = umask(0);
  const auto made = LoadOrMakeSecret(directory_);
  umask(old);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(ModeOf(path()), 0600u);
  const auto read = LoadOrMakeSecret(directory_);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(made->bytes, read->bytes);
  EXPECT_NE(made->bytes, ClusterSecret{}.bytes);
  auto other = Directory::Open(temp_ / "other");
  ASSERT_TRUE(other.ok());
  EXPECT_NE(LoadOrMakeSecret(*other)->bytes, made->bytes);
}

TEST_F(SecretTest, EveryFlippedByteAndEveryCutIsRefusedAndLeftAlone) {
  ASSERT_TRUE(LoadOrMakeSecret(directory_).ok());
  const std::string good = Content(path());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x40);
    Write(path(), bad);
    EXPECT_EQ(Refused().code(), absl::StatusCode::kFailedPrecondition) << i;
    EXPECT_EQ(Content(path()), bad);
  }
  for (size_t size = 0; size < good.size(); ++size) {
    Write(path(), good.substr(0, size));
    EXPECT_FALSE(Refused().ok()) << size;
  }
  Write(path(), good + "x");
  EXPECT_THAT(std::string(Refused().message()), HasSubstr("wrong length"));
  Write(path(), std::string(100'000, 'x'));
  EXPECT_THAT(std::string(Refused().message()), HasSubstr("over the limit"));
}

TEST_F(SecretTest, ReadableByOthersIsRefusedWithTheRemedy) {
  ASSERT_TRUE(LoadOrMakeSecret(directory_).ok());
  ASSERT_EQ(chmod(path().c_str(), 0640), 0);
  EXPECT_THAT(std::string(Refused().message()), HasSubstr("chmod 600"));
}

TEST_F(SecretTest, LinksFoldersAndPipesAreRefused) {
  Write(temp_ / "victim", "precious");
  ASSERT_EQ(symlink((temp_ / "victim").c_str(), path().c_str()), 0);
  EXPECT_THAT(std::string(Refused().message()), HasSubstr("symbolic link"));
  EXPECT_EQ(Content(temp_ / "victim"), "precious");
  ASSERT_EQ(unlink(path().c_str()), 0);
  ASSERT_EQ(mkdir(path().c_str(), 0700), 0);
  EXPECT_FALSE(Refused().ok());
  ASSERT_EQ(rmdir(path().c_str()), 0);
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_FALSE(Refused().ok());
}

TEST_F(SecretTest, ATemporaryFileOfACrashIsNoObstacle) {
  Write(temp_ / "data/secret.tmp", "half");
  ASSERT_TRUE(LoadOrMakeSecret(directory_).ok());
  EXPECT_NE(access((temp_ / "data/secret.tmp").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace crumb
