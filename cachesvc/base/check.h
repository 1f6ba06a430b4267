// CRUMB_CHECK: our own invariants. Always on; prints file, line and the expression, then aborts.
// PROMISE: never used on bytes from outside; those are errors, not bugs.
#ifndef CRUMB_CACHESVC_BASE_CHECK_H_
#define CRUMB_CACHESVC_BASE_CHECK_H_

namespace crumb {
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression);
}  // namespace crumb

#define CRUMB_CHECK(expr) \
  (static_cast<bool>(expr) ? static_cast<void>(0) : ::crumb::CheckFailed(__FILE__, __LINE__, #expr))

#endif  // CRUMB_CACHESVC_BASE_CHECK_H_
