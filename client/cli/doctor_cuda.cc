// Check of the CUDA driver, loaded at run time: crumbctl needs none. The few entry points used are
// declared here as the driver API documents them (CUDA Driver API, Initialization, Version,
// Device).
#include <dlfcn.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli/doctor.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

constexpr int kDevicesMax = 64;

struct Closer {
  void operator()(void* handle) const { ::dlclose(handle); }
};

template <typename Function>
bool Load(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(::dlsym(library, name));
  return *out != nullptr;
}

struct Driver {
  int (*init)(unsigned int) = nullptr;
  int (*version)(int*) = nullptr;
  int (*count)(int*) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*memory)(size_t*, int) = nullptr;
};

}  // namespace

Check CheckCuda(const char* library) {
  Check check{.name = "CUDA"};
  const std::unique_ptr<void, Closer> handle(::dlopen(library, RTLD_NOW | RTLD_LOCAL));
  if (handle == nullptr) {
    check.text = "no driver on this host: crumbd runs on CPU and NVMe alone";
    return check;
  }
  Driver driver;
  if (!Load(handle.get(), "cuInit", &driver.init) ||
      !Load(handle.get(), "cuDriverGetVersion", &driver.version) ||
      !Load(handle.get(), "cuDeviceGetCount", &driver.count) ||
      !Load(handle.get(), "cuDeviceGetName", &driver.name) ||
      !Load(handle.get(), "cuDeviceTotalMem_v2", &driver.memory)) {
    check.level = Level::kFail;
    check.text = absl::StrCat(library, " is no CUDA driver");
    check.remedy = "reinstall the NVIDIA driver";
    return check;
  }
  if (const int error = driver.init(0); error != 0) {
    check.level = Level::kWarn;
    check.text = absl::StrCat("the driver does not start (error ", error, ")");
    check.remedy = "is the kernel module loaded, and are /dev/nvidia* visible here?";
    check.hint = "nvidia-smi";
    return check;
  }
  int version = 0;
  int count = 0;
  if (driver.version(&version) != 0 || driver.count(&count) != 0 || count <= 0) {
    check.level = Level::kWarn;
    check.text = "the driver sees no device";
    check.remedy = "make a GPU visible to this process (CUDA_VISIBLE_DEVICES, device cgroup)";
    return check;
  }
  check.text = absl::StrCat("driver for CUDA ", version / 1000, ".", version % 1000 / 10);
  for (int device = 0; device < count && device < kDevicesMax; ++device) {
    char name[128] = {};
    size_t bytes = 0;
    if (driver.name(name, sizeof(name) - 1, device) != 0) continue;
    if (driver.memory(&bytes, device) != 0) bytes = 0;
    absl::StrAppend(&check.text, "; ", device, ": ", name, " ",
                    HumanBytes(static_cast<double>(bytes)));
  }
  return check;
}

}  // namespace crumb::cli
