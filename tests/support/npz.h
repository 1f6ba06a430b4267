// Test data: the numpy reader with a test's manners (it aborts with a message instead of guessing)
// and the folder tests/data. Tests only; any thread.
#ifndef CRUMB_TESTS_SUPPORT_NPZ_H_
#define CRUMB_TESTS_SUPPORT_NPZ_H_

#include <string>

#include "client/demo/npz.h"

namespace crumb::testing {

using demo::NpyArray;
using demo::ParseNpy;

class NpzFile : public demo::NpzFile {
 public:
  static absl::StatusOr<NpzFile> Open(const std::string& path);
  // Opens a file below the test data folder (environment CRUMB_TEST_DATA); aborts if it cannot.
  static NpzFile OpenTestData(const std::string& relative_path);

 private:
  explicit NpzFile(demo::NpzFile file) : demo::NpzFile(std::move(file)) {}
};

// Absolute path of a file below the test data folder; environment CRUMB_TEST_DATA, else tests/data.
std::string TestDataPath(const std::string& relative_path);
// The whole file; aborts if it cannot be read.
std::string ReadTestData(const std::string& relative_path);

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_SUPPORT_NPZ_H_
