// Golden files: bytes of formats that never change once released. One file per format, lower-case
// hex, 32 bytes a line, `#` lines are comments.
//
// To add a file, or to change a format on purpose (which needs a new format version):
//   build/dev/tests/golden/golden_base_test --regenerate tests/golden
// (or the golden_*_test that the format belongs to)
// and review the difference line by line before committing it.
#ifndef CRUMB_TESTS_GOLDEN_GOLDEN_H_
#define CRUMB_TESTS_GOLDEN_GOLDEN_H_

#include <string>

#include "cachesvc/base/types.h"

namespace crumb::golden {

// Reads "[--regenerate] DIR" from a test program's arguments. False: usage was printed.
bool Init(int argc, char** argv);

// Compares `bytes` with DIR/name, naming the first byte that differs; or writes the file when
// regenerating, with `comment` on top. Reports through gtest.
void Expect(const std::string& name, const std::string& comment, Bytes bytes);

// What DIR/name holds, to be parsed; empty after a failure, which is reported through gtest.
std::string Read(const std::string& name);

// Runs everything with gtest; what a golden test's main returns.
int Main(int argc, char** argv);

}  // namespace crumb::golden

#endif  // CRUMB_TESTS_GOLDEN_GOLDEN_H_
