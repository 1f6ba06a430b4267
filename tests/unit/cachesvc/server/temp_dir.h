// A directory of its own for one test, removed with what is in it. One thread.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_SERVER_TEMP_DIR_H_
#define CRUMB_TESTS_UNIT_CACHESVC_SERVER_TEMP_DIR_H_

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace crumb {

class TempDir {
 public:
  // kMemory, where the machine has such a place: tests that sync small files thousands of times.
  enum class Place { kMemory, kDisk };
  explicit TempDir(Place place = Place::kMemory) {
    std::error_code error;
    std::string name = "/dev/shm/crumb.XXXXXX";
    if (place == Place::kDisk || access("/dev/shm", W_OK) != 0) {
      name = (std::filesystem::temp_directory_path(error) / "crumb.XXXXXX").string();
    }
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_UNIT_CACHESVC_SERVER_TEMP_DIR_H_
