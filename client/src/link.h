// A link to a daemon: the control side, the data plane, and what was registered there. Opened in
// one go from a plan that names everything, on any thread, so that a helper thread can do it while
// the worker goes on; used by one thread afterwards.
#ifndef CRUMB_CLIENT_SRC_LINK_H_
#define CRUMB_CLIENT_SRC_LINK_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/clock.h"
#include "client/src/control.h"
#include "client/src/data_plane.h"
#include "client/src/layout_spec.h"
#include "client/src/shared_map.h"
#include "crumb/options.h"

namespace crumb::client {

struct Lent {
  uint32_t layout = 0;  // the client's handle
  std::shared_ptr<const LentMemory> memory;
  CodecPlace place = CodecPlace::kAuto;  // of GPU memory, as asked for
};

// Copies, so that the owner may change its own meanwhile.
struct LinkPlan {
  Options options;
  std::string server;
  std::shared_ptr<CallStopper> stopper;
  std::vector<LayoutEntry> layouts;  // handle - 1
  std::map<uint32_t, Lent> lent;     // by region set
  SharedMap shared;
  std::shared_ptr<GpuGate> gate;  // made with the first GPU memory
  GpuSide* gpu = nullptr;         // null: nobody lends GPU memory
  const Clock* clock = nullptr;
};

struct Link {
  std::unique_ptr<Control> control;  // null in tests with a plane of their own
  std::unique_ptr<Plane> plane;      // goes before the control side
  std::string name;
  std::vector<LayoutEntry> layouts;  // as this session knows them
  // GPU memory that this daemon does not take, and why.
  std::map<uint32_t, std::string> refused;  // by region set

  Link() = default;
  Link(Link&&) = default;
  Link& operator=(Link&& other) noexcept;
  ~Link() { plane.reset(); }
};

using LinkOpener = std::function<absl::StatusOr<Link>(const LinkPlan& plan)>;

// Every step has a deadline: connect_ms to connect, deadline_ms per layout and region set.
absl::StatusOr<Link> OpenLink(const LinkPlan& plan);

// Everything that the plan has lent, to a link that knows the plan's layouts; GPU memory that the
// daemon refuses goes into `refused`.
absl::Status LendAgain(const LinkPlan& plan, Link* link);

// Lends `lent` of `layout`; what it points to is the plan's and the caller's.
LendOrder OrderFor(const LinkPlan& plan, uint32_t region_set, const LayoutEntry& layout,
                   const Lent& lent);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_LINK_H_
