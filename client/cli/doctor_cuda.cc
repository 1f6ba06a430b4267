// Check of the CUDA driver, loaded at run time: crumbctl needs none. The few entry points used are
// declared here as the driver API documents them (CUDA Driver API, Initialization, Version,
// Device).
#include <dlfcn.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/doctor.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

constexpr int kDevicesMax = 64;
constexpr char kFound[] = "driver for CUDA ";

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
  check.text = absl::StrCat(kFound, version / 1000, ".", version % 1000 / 10);
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

Check CheckDaemonGpu(const std::string& status_json, const Check& cuda) {
  Check check{.name = "GPU of crumbd"};
  const nlohmann::json document = nlohmann::json::parse(status_json, nullptr, false);
  const nlohmann::json gpu =
      document.is_object() ? document.value("gpu", nlohmann::json()) : document;
  const auto text = [&gpu](const char* key) {
    return gpu.is_object() && gpu.contains(key) && gpu[key].is_string()
               ? gpu[key].get<std::string>()
               : std::string();
  };
  if (const std::string fault = text("fault"); !fault.empty()) {
    check.level = Level::kFail;
    check.text = fault;
    check.remedy = "start crumbd again; if that fails look at the GPU and the kernel's log (Xid)";
    check.hint = "nvidia-smi; dmesg | grep -i xid";
    return check;
  }
  const std::string description = text("description");
  check.text = description.empty() ? "not known to this crumbd" : description;
  const bool on = gpu.is_object() && gpu.contains("enabled") && gpu["enabled"] == true;
  if (on) {
    absl::StrAppend(&check.text, "; HBM tier: ", text("hbm"));
    return check;
  }
  const bool meant = description.find("gpu.enabled is false") != std::string::npos;
  if (meant || cuda.text.rfind(kFound, 0) != 0) return check;
  check.level = Level::kWarn;
  check.remedy =
      "this host has a GPU that crumbd does not use: run a build with CUDA (crumbd --version), see "
      "its log, or say that it is meant (gpu.enabled: false)";
  return check;
}

}  // namespace crumb::cli
