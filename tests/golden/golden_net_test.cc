// Frozen bytes of cachesvc/net: connection blobs and copy messages. A failure here means that two
// releases would not understand each other.
#include <gtest/gtest.h>

#include <numeric>

#include "cachesvc/base/bytes.h"
#include "cachesvc/net/copy_wire.h"
#include "cachesvc/net/frames.h"
#include "tests/golden/golden.h"

namespace crumb {
namespace {

std::vector<uint8_t> Counting(size_t bytes) {
  std::vector<uint8_t> out(bytes);
  std::iota(out.begin(), out.end(), uint8_t{1});
  return out;
}

TEST(Golden, ConnectionBlobs) {
  const std::vector<uint8_t> address = Counting(50), key = Counting(10);
  const std::string hello = EncodeHello({.cookie = 0x1122334455667788u,
                                         .queue_slots = 256,
                                         .queue_bytes = 20480,
                                         .one_sided = true,
                                         .process = {.host = 0xaabbccdd, .start = 77, .pid = 4321},
                                         .address = address});
  golden::Expect("net_hello.hex", "hello: one-sided, 50 bytes of worker address", AsBytes(hello));
  const std::string rkey = EncodeRkey({.address = 0x7f0000001000u, .bytes = 0x200000, .key = key});
  golden::Expect("net_rkey.hex", "memory key: 2 MiB, 10 bytes of packed key", AsBytes(rkey));
}

TEST(Golden, CopyMessages) {
  const std::vector<uint8_t> payload = Counting(48);
  std::vector<uint8_t> body(sizeof(CopyHeader) + 2 * sizeof(CopyRange) + payload.size());
  WriteCopyHeader(
      {.cookie = 0x1122334455667788u, .operation = 0x300000007u, .count = 2, .bytes = 48},
      body.data());
  WriteCopyRange(0, {.address = 0x7f0000001000u, .bytes = 16}, body.data());
  WriteCopyRange(1, {.address = 0x7f0000002000u, .bytes = 32}, body.data());
  std::copy(payload.begin(), payload.end(), body.end() - 48);
  golden::Expect("net_copy_write.hex", "write of two ranges, 16 and 32 bytes", body);
  body.resize(sizeof(CopyHeader));
  WriteCopyHeader(
      {.cookie = 0x8877665544332211u, .operation = 0x300000007u, .count = kCopyRefused, .bytes = 0},
      body.data());
  golden::Expect("net_copy_answer.hex", "answer: refused", body);
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) { return crumb::golden::Main(argc, argv); }
