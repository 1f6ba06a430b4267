// A data socket under test: the listening transport, honest clients and raw ones. Clients lend on a
// thread of their own while the transport is turned here.
#ifndef CRUMB_TESTS_CONFORMANCE_NET_UDS_FIXTURE_H_
#define CRUMB_TESTS_CONFORMANCE_NET_UDS_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/net/uds_transport.h"
#include "tests/conformance/net/shared_memory.h"
#include "tests/conformance/net/uds_raw_peer.h"
#include "tests/conformance/net/whole_region.h"

namespace crumb {

class UdsTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kSet = 3;

  struct Client {
    std::unique_ptr<UdsTransport> transport;
    PeerId daemon;  // at the client
    PeerId peer;    // at the server
    Region region;
  };

  void Start(const UdsOptions& options = {});
  std::string path() const { return folder_.path("data"); }
  // Connected, heard, its memory lent and registered under kSet.
  Client Connect(const SharedMemory& memory);
  Client ConnectOnly();
  absl::StatusOr<Region> Lend(Client* client, const SharedRange& range);
  absl::Status Register(const Client& client, const Region& region);
  Transfer Whole(const Client& client, std::vector<uint8_t>* local, uint64_t token);
  // True if a pull and a push of all its memory give exact bytes.
  bool Served(const Client& client, const SharedMemory& memory);

  void Step();
  // Turns until `done`, sleeping on the transport's descriptor in between; false after a minute.
  template <typename Predicate>
  bool Until(Predicate done) {
    for (int i = 0; i < 60'000; ++i) {
      if (done()) return true;
      Step();
      Doze();
    }
    return done();
  }

  SocketFolder folder_;
  std::unique_ptr<UdsTransport> server_;
  Segment segment_;
  uint64_t next_token_ = 1;
  std::map<uint64_t, std::vector<std::string>> messages_;  // by peer
  std::map<uint64_t, BlockResult> done_;                   // by token
  std::map<uint64_t, int> downs_;                          // by peer

 private:
  void Doze();
};

size_t OpenDescriptors();
size_t MappingsOfTests();  // of SharedMemory, in this process

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_NET_UDS_FIXTURE_H_
