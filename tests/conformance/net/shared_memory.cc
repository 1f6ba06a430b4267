// Shared memory and folders for tests of unix sockets.
#include "tests/conformance/net/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace crumb {

SharedMemory::SharedMemory(size_t bytes, SharedKind kind)
    : fd_(memfd_create("crumb-test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  EXPECT_GE(fd_, 0);
  EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0);
  if (kind == SharedKind::kSealed) {
    EXPECT_EQ(fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  }
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  EXPECT_NE(at, MAP_FAILED);
  bytes_ = MutableBytes(static_cast<uint8_t*>(at), bytes);
}

SharedMemory::~SharedMemory() {
  munmap(bytes_.data(), bytes_.size());
  close(fd_);
}

SocketFolder::SocketFolder() {
  std::string name = "/tmp/crumb-uds-XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  folder_ = name;
}

SocketFolder::~SocketFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace crumb
