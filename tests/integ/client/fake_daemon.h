// A daemon of a few hundred lines for tests of the client: the real services and the real UCX
// transport over a map in memory, with faults on demand that a real daemon must never show. The raw
// codec only. Thread-safe; owns its threads.
#ifndef CRUMB_TESTS_INTEG_CLIENT_FAKE_DAEMON_H_
#define CRUMB_TESTS_INTEG_CLIENT_FAKE_DAEMON_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cachesvc/base/types.h"

namespace crumb {

struct FakeFaults {
  bool wrong_checksum = false;   // gets: the checksum sent is not that of the bytes
  bool flip_byte = false;        // gets: a byte changes on the way
  bool short_stream = false;     // gRPC gets: the last byte is missing
  bool long_stream = false;      // gRPC gets: a byte too many
  bool no_header = false;        // gRPC gets: data without a header
  bool hold = false;             // requests are taken and not answered until this is cleared
  bool ignore_cancel = false;    // wire planes: a held request stays held
  bool garbage_replies = false;  // wire planes: replies that do not parse
  bool wrong_id = false;         // ... of a request that nobody made
  bool extra_block = false;      // ... with a block too many
  bool twice = false;            // ... sent twice
  uint32_t value_bytes = 0;      // ... that claim so many bytes
  bool drop_session = false;     // verbs answer that they do not know the session
  BlockResult put_result = BlockResult::kOk;
};

class FakeDaemon {
 public:
  struct Options {
    std::string socket;  // unix socket to listen on
    bool ucx = true;
    bool uds = true;  // a data socket beside `socket`
    uint32_t wire_version = 1;
  };
  static std::unique_ptr<FakeDaemon> Start(const Options& options);
  virtual ~FakeDaemon() = default;

  virtual void Set(const FakeFaults& faults) = 0;
  // What Status answers from now on, instead of a document of another version's.
  virtual void SetStatus(const std::string& json) = 0;
  // What a hold keeps back.
  virtual size_t held() const = 0;
  virtual size_t sessions() const = 0;
  virtual size_t values() const = 0;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_INTEG_CLIENT_FAKE_DAEMON_H_
