// Results: what a request came to, a result per key. Holds the Client's own completion, so that a
// batch costs one object; single results become Python objects when they are looked at. Immutable.
#ifndef CRUMB_CLIENT_PYTHON_SRC_RESULTS_H_
#define CRUMB_CLIENT_PYTHON_SRC_RESULTS_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "crumb/types.h"

namespace crumb::python {

class Results {
 public:
  // `count` results, whatever the completion has: a request that was refused, lost or timed out
  // says its own code for each that is missing.
  Results(client::Completion completion, size_t count, std::string message);
  static Results Refused(const client::Status& status, size_t count);

  client::Ticket ticket() const { return done_.ticket; }
  client::Code code() const { return done_.code; }
  const std::string& message() const { return message_; }
  uint32_t prefix() const { return done_.prefix; }
  uint32_t raw_tail_tokens() const { return done_.raw_tail_tokens; }
  const std::vector<client::Result>& all() const { return done_.results; }
  size_t size() const { return done_.results.size(); }
  static bool IsHit(client::Code code) {
    return code == client::Code::kOk || code == client::Code::kExists;
  }
  bool ok() const;
  size_t hits() const;
  // These, then those of `next`: of one batch that went as several requests.
  void Append(const Results& next);
  std::string Describe() const;

 private:
  client::Completion done_;
  std::string message_;
};

}  // namespace crumb::python

#endif  // CRUMB_CLIENT_PYTHON_SRC_RESULTS_H_
