// A small file system of its own for one test, mounted where the test says, and others that fill
// it. Needs the right to mount; where that is missing, why() says so and the test is skipped. One
// thread.
#ifndef CRUMB_TESTS_INTEG_SERVER_MOUNTED_VOLUME_H_
#define CRUMB_TESTS_INTEG_SERVER_MOUNTED_VOLUME_H_

#include <cstdint>
#include <string>
#include <vector>

namespace crumb::testing {

// Runs a program to its end; its words go nowhere. -1: it does not exist.
int RunProgram(const std::vector<std::string>& arguments);

class MountedVolume {
 public:
  // kTmpfs reserves the blocks of a file beforehand, kExt2 (on a loop device) cannot.
  enum class Kind { kTmpfs, kExt2 };
  // `folder` is empty or absent; the image of kExt2 lies beside it.
  MountedVolume(Kind kind, std::string folder, uint64_t bytes);
  ~MountedVolume();
  MountedVolume(const MountedVolume&) = delete;
  MountedVolume& operator=(const MountedVolume&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& why() const { return why_; }
  const std::string& path() const { return folder_; }

  // Somebody else's file takes all that is free, or only until `leave` is left. False: it did not.
  bool Fill(uint64_t leave = 0);
  void Clear();
  uint64_t FreeBytes() const;

 private:
  std::string Filler() const { return folder_ + "/others"; }

  const std::string folder_, image_;
  bool mounted_ = false;
  std::string why_;
};

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_INTEG_SERVER_MOUNTED_VOLUME_H_
