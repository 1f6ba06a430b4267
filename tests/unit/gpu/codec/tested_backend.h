// Which backend a run of a codec test is about: --backend=NAME, the reference without it. Tests
// only; set before the first test starts.
#ifndef CRUMB_TESTS_UNIT_GPU_CODEC_TESTED_BACKEND_H_
#define CRUMB_TESTS_UNIT_GPU_CODEC_TESTED_BACKEND_H_

#include "gpu/codec/codec_backend.h"

namespace crumb::codec_test {

CodecBackend TestedBackend();

}  // namespace crumb::codec_test

#endif  // CRUMB_TESTS_UNIT_GPU_CODEC_TESTED_BACKEND_H_
