// Traces of requests as published for prefix caches: one JSON object a line with input_length and
// hash_ids, equal ids naming equal prefixes. Read whole, checked, ids made dense in order of first
// use. Any thread.
#ifndef CRUMB_CLIENT_CLI_REPLAY_TRACE_H_
#define CRUMB_CLIENT_CLI_REPLAY_TRACE_H_

#include <cstdint>
#include <istream>
#include <span>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"

namespace crumb::cli {

inline constexpr uint32_t kTraceReadsMax = 1u << 27;  // blocks of all requests

struct Trace {
  std::vector<uint32_t> reads;         // block numbers, request after request
  std::vector<uint32_t> request_ends;  // into reads
  std::vector<uint32_t> parents;       // by block: the one before it in its prefix, or kNoParent
  uint32_t block_tokens = 0;           // as the lengths imply

  static constexpr uint32_t kNoParent = 0xffffffff;
  uint32_t blocks() const { return static_cast<uint32_t>(parents.size()); }
  std::span<const uint32_t> request(size_t index) const;
};

// INVALID_ARGUMENT names the line and what is wrong with it.
absl::StatusOr<Trace> ReadTrace(std::istream& in);
absl::StatusOr<Trace> ReadTraceFile(const std::string& path);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_REPLAY_TRACE_H_
