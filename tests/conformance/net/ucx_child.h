// A UCX peer in a process of its own, for tests that kill, stop and outlive it. The child is this
// same program: main() calls RunUcxChild first. Must never kill anything but its own child. One
// thread.
#ifndef CRUMB_TESTS_CONFORMANCE_NET_UCX_CHILD_H_
#define CRUMB_TESTS_CONFORMANCE_NET_UCX_CHILD_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "cachesvc/net/ucx_transport.h"

namespace crumb {

// What a child does once it is connected.
enum class ChildRole : uint8_t {
  kLender,  // lends memory, echoes messages, answers Verify
  kDriver,  // pulls and pushes the parent's memory without end
};

// The bytes that a child's memory holds at first, and that Verify compares with.
void FillPattern(uint64_t seed, MutableBytes out);

class UcxChild {
 public:
  struct Options {
    std::string tls = "";
    ChildRole role = ChildRole::kLender;
    size_t memory_bytes = 1 << 20;
    uint64_t seed = 1;
  };
  // Starts the process and connects it to `transport`; null after a test failure. A driver gets
  // `lent`, the parent's memory.
  static std::unique_ptr<UcxChild> Start(const Options& options, UcxTransport* transport,
                                         const Region& lent = {});
  // Ends it by closing its standard input, or by force if it does not end.
  ~UcxChild();

  PeerId peer() const { return peer_; }
  const Region& region() const { return region_; }
  // SIGKILL, then waits until it is gone.
  void Kill();
  // SIGSTOP or SIGCONT.
  void Signal(int signal);
  // Asks the child whether its memory holds the pattern of `seed`.
  bool Verify(uint64_t seed);

 private:
  bool Exchange(const Options& options, UcxTransport* transport, const Region& lent);

  pid_t pid_ = -1;
  int in_ = -1;   // to the child
  int out_ = -1;  // from the child
  PeerId peer_;
  Region region_;
};

// True if this process is a child: it has done its work, and main returns `*exit_code`.
bool RunUcxChild(int argc, char** argv, int* exit_code);

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_NET_UCX_CHILD_H_
