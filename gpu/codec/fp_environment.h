// Runs the codec in the default floating-point environment whatever the calling thread has set
// (rounding mode, flush-to-zero, denormals-are-zero), and puts the caller's back afterwards: codes
// must not depend on who calls. One per Encode or Decode; same thread.
#ifndef CRUMB_GPU_CODEC_FP_ENVIRONMENT_H_
#define CRUMB_GPU_CODEC_FP_ENVIRONMENT_H_

#include <cfenv>

#include "cachesvc/base/check.h"

namespace crumb {

class DefaultFpEnvironment {
 public:
  DefaultFpEnvironment() {
    CRUMB_CHECK(std::fegetenv(&saved_) == 0);
    CRUMB_CHECK(std::fesetenv(FE_DFL_ENV) == 0);
  }
  ~DefaultFpEnvironment() { std::fesetenv(&saved_); }
  DefaultFpEnvironment(const DefaultFpEnvironment&) = delete;
  DefaultFpEnvironment& operator=(const DefaultFpEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_FP_ENVIRONMENT_H_
