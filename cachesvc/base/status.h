// Error propagation at interfaces: two macros over absl::Status, nothing else.
#ifndef CRUMB_CACHESVC_BASE_STATUS_H_
#define CRUMB_CACHESVC_BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status from the enclosing function if it is not OK.
#define CRUMB_TRY(expr)                                                     \
  do {                                                                      \
    if (::absl::Status crumb_try_status_ = (expr); !crumb_try_status_.ok()) \
      return crumb_try_status_;                                             \
  } while (false)

#define CRUMB_CONCAT_INNER(a, b) a##b
#define CRUMB_CONCAT(a, b) CRUMB_CONCAT_INNER(a, b)

// CRUMB_ASSIGN(auto value, MakeValue()): assigns the value or returns the status.
#define CRUMB_ASSIGN(lhs, expr) CRUMB_ASSIGN_INNER(CRUMB_CONCAT(crumb_or_, __LINE__), lhs, expr)
#define CRUMB_ASSIGN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                       \
  if (!tmp.ok()) return tmp.status();      \
  lhs = std::move(tmp).value()

#endif  // CRUMB_CACHESVC_BASE_STATUS_H_
