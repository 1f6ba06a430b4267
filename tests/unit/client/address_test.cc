// Addresses: what is accepted, what is refused with which words, and the order of the usual places.
#include "client/src/address.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace crumb::client {
namespace {

TEST(Address, AcceptsSocketsAndHosts) {
  for (const char* good : {"unix:/run/crumb/crumbd.sock", "127.0.0.1:7411", "localhost:1",
                           "node-3.example.org:65535", "[::1]:7411"}) {
    EXPECT_TRUE(CheckServer(good).ok()) << good;
  }
}

TEST(Address, RefusesEverythingElseAndNamesIt) {
  const std::string long_path = "unix:/" + std::string(107, 'x');
  for (const std::string& bad :
       {std::string(""), std::string("unix:"), long_path, std::string("host"), std::string("host:"),
        std::string(":7411"), std::string("host:0"), std::string("host:65536"),
        std::string("host:7x"), std::string("host:-1"), std::string("host:+5"),
        std::string("ho st:1"), std::string("xds:///a:1"), std::string("[::1:5"),
        std::string("a/b:3")}) {
    const auto result = CheckServer(bad);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_NE(result.status().message().find("unix:PATH or HOST:PORT"), absl::string_view::npos);
  }
}

TEST(Address, GrpcHearsAResolvableTarget) {
  EXPECT_EQ(GrpcTarget("unix:/a"), "unix:/a");
  EXPECT_EQ(GrpcTarget("h:1"), "dns:///h:1");
}

class Places : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/crumb-address-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    dir_ = path;
    places_.system_dir = dir_ + "/system";
    places_.runtime_dir = dir_ + "/runtime";
    ASSERT_EQ(::system(("mkdir -p " + dir_ + "/system " + dir_ + "/runtime/crumb").c_str()), 0);
  }
  void TearDown() override {
    for (int fd : sockets_) ::close(fd);
    EXPECT_EQ(::system(("rm -rf " + dir_).c_str()), 0);
  }
  void MakeSocket(const std::string& path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.c_str(), path.size());
    ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    sockets_.push_back(fd);
  }
  std::string dir_;
  ServerPlaces places_;
  std::vector<int> sockets_;
};

TEST_F(Places, AreTriedInTheDocumentedOrder) {
  EXPECT_EQ(*ResolveServer("", places_), "127.0.0.1:7411");
  MakeSocket(dir_ + "/system/crumbd.sock");
  EXPECT_EQ(*ResolveServer("", places_), "unix:" + dir_ + "/system/crumbd.sock");
  MakeSocket(dir_ + "/runtime/crumb/crumbd.sock");
  EXPECT_EQ(*ResolveServer("", places_), "unix:" + dir_ + "/runtime/crumb/crumbd.sock");
  places_.crumb_server = "other:5";
  EXPECT_EQ(*ResolveServer("", places_), "other:5");
  EXPECT_EQ(*ResolveServer("asked:6", places_), "asked:6");
}

TEST_F(Places, ABadCrumbServerIsAnErrorNotAFallback) {
  places_.crumb_server = "nonsense";
  EXPECT_FALSE(ResolveServer("", places_).ok());
}

}  // namespace
}  // namespace crumb::client
