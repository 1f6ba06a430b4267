// What a fake daemon knows, shared by its services and its wire sides under one lock.
#ifndef CRUMB_TESTS_INTEG_CLIENT_FAKE_STORE_H_
#define CRUMB_TESTS_INTEG_CLIENT_FAKE_STORE_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/net/region_set.h"
#include "cachesvc/net/transport.h"
#include "crumb/v1/cache.pb.h"
#include "tests/integ/client/fake_daemon.h"

namespace crumb {

struct FakeLayout {
  v1::LayoutInfo info;
  std::shared_ptr<const Layout> shape;
};

struct SessionState {
  PeerId peer;  // of the wire side that it uses
  bool over_ucx = false;
  std::map<uint32_t, std::shared_ptr<const RegionSet>> regions;
};

using ValueKey = std::pair<uint32_t, std::string>;  // layout handle, digest and part

inline ValueKey KeyOf(uint32_t layout, const std::string& digest, uint32_t part) {
  return {layout, digest + std::to_string(part)};
}
inline std::string DigestBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}
inline std::string NameBytes(const v1::BlockName& name) {
  return name.digest().empty() ? DigestBytes(DigestOf(AsBytes(name.key()))) : name.digest();
}

// Everything the two planes share.
struct Store {
  std::mutex mutex;
  std::condition_variable changed;
  FakeFaults faults;
  std::string status;
  std::map<uint64_t, SessionState> sessions;
  std::vector<FakeLayout> layouts;
  std::map<ValueKey, std::string> values;
  uint64_t next_session = 1000;
  size_t held = 0;
  bool stopping = false;

  // Blocks the calling thread while a hold is on. False: it ends in the daemon's death.
  bool WaitOut(std::unique_lock<std::mutex>* lock) {
    if (!faults.hold) return !stopping;
    ++held;
    changed.wait(*lock, [this] { return !faults.hold || stopping; });
    --held;
    return !stopping;
  }
};

}  // namespace crumb

#endif  // CRUMB_TESTS_INTEG_CLIENT_FAKE_STORE_H_
