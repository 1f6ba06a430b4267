// Last words of a broken invariant: one line on stderr, then abort so that a core is left.
#include "cachesvc/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace crumb {

void CheckFailed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "crumb: internal error at %s:%d: %s\n", file, line, expression);
  std::fflush(stderr);
  std::abort();
}

}  // namespace crumb
