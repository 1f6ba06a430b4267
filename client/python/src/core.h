// Core: the module's face of a Hub. Every method may be called from any Python thread; those that
// wait give the interpreter's lock away. Refuses, with words, to serve a forked child or a closed
// client; a forked child never runs the Client's end, which would speak for its parent.
#ifndef CRUMB_CLIENT_PYTHON_SRC_CORE_H_
#define CRUMB_CLIENT_PYTHON_SRC_CORE_H_

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/python/src/blocks.h"
#include "client/python/src/hub.h"
#include "client/python/src/results.h"
#include "crumb/client.h"

namespace crumb::python {

// Throws ForkError in the child of a process that had a client already: gRPC does not survive it.
void CheckFork();

// A request but for its blocks.
struct Query {
  Verb verb = Verb::kLookup;
  const client::Layout* layout = nullptr;
  uint32_t region_set = 0;
  client::RequestOptions options;
};

class Core {
 public:
  explicit Core(const client::Options& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  void Close();
  bool closed() const { return closed_; }
  // One use of the Client, alone and without the interpreter's lock; throws what it answers.
  void Use(const std::function<client::Status(client::Client*)>& use);
  // Layouts of this client: another one's handle may mean something else here, so it is refused.
  void Know(const client::Layout& layout) { hashes_[layout.handle] = layout.hash_hex; }
  void CheckKnown(const client::Layout& layout) const;
  Results Ask(const Query& query, const BlockBatch& batch);
  client::Ticket Submit(const Query& query, const BlockBatch& batch);
  std::vector<Results> Drain(double seconds);
  void Cancel(client::Ticket ticket);
  int fd();

 private:
  Hub* hub();  // throws ForkError or ClosedError

  const pid_t pid_;
  std::unique_ptr<Hub> hub_;
  std::unordered_map<uint32_t, std::string> hashes_;  // by handle; under the interpreter's lock
  bool closed_ = false;
};

}  // namespace crumb::python

#endif  // CRUMB_CLIENT_PYTHON_SRC_CORE_H_
