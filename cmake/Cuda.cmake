# CUDA, where it is wanted and there: the language, the toolkit's libraries and our flags for nvcc.
# Sets CRUMB_CUDA to OFF for this run if it cannot be had; the next configure looks again.
if(NOT CRUMB_CUDA)
  return()
endif()
include(CheckLanguage)

# nvcc is often installed without being on PATH. An explicit choice comes first.
if(NOT CMAKE_CUDA_COMPILER)
  unset(CMAKE_CUDA_COMPILER CACHE)
  if(NOT DEFINED ENV{CUDACXX})
    find_program(crumb_nvcc nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
                 PATH_SUFFIXES bin NO_CACHE)
    if(crumb_nvcc)
      set(ENV{CUDACXX} ${crumb_nvcc})
    endif()
  endif()
  check_language(CUDA)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(crumb_reason "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
  if(DEFINED ENV{CUDACXX})
    set(crumb_reason "$ENV{CUDACXX} cannot compile (CMakeFiles/CMakeError.log says why)")
  endif()
  message(WARNING "CRUMB_CUDA=ON, but ${crumb_reason}: going on without CUDA. "
                  "Install the CUDA Toolkit 12.8 or newer, or name its compiler: "
                  "-DCMAKE_CUDA_COMPILER=/path/to/nvcc")
  set(CRUMB_CUDA OFF)
  return()
endif()

enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
# The host half of a kernel file is mostly what nvcc generates: -Wconversion and -Wshadow stay off.
target_compile_options(crumb_flags INTERFACE
  # Spelt out: CMake 3.25 knows no feature cuda_std_20.
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra$<$<BOOL:${CRUMB_WERROR}>:$<COMMA>-Werror>>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${CRUMB_WERROR}>>:-Werror=all-warnings>"
  # Line numbers for profilers and compute-sanitizer; they change no instruction.
  $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
