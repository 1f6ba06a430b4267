# Every third-party package, found once. All of them are Debian 12 packages (deploy/packages.txt).
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(Eigen3 CONFIG REQUIRED)

find_package(nlohmann_json CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(uring REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(ucx REQUIRED IMPORTED_TARGET ucx)
pkg_check_modules(libzip REQUIRED IMPORTED_TARGET libzip)  # its CMake package wants zipcmp too
if(CRUMB_TESTS)
  # Not there on a machine with the packages of [build] alone, where the quickstart must work. tests/run
  # installs them; ctest fails without tests.
  find_package(GTest CONFIG)
  find_package(benchmark CONFIG)
  if(NOT GTest_FOUND OR NOT benchmark_FOUND)
    message(STATUS "Tests are not built: GTest or benchmark is missing (deploy/install_packages test)")
    set(CRUMB_TESTS OFF)
  endif()
endif()
