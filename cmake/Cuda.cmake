# CUDA, where it is wanted and there: the language, the toolkit's libraries and our flags for nvcc.
# Sets CRUMB_CUDA to OFF for this run if it cannot be had; the next configure looks again.
if(NOT CRUMB_CUDA)
  return()
endif()
include(CheckLanguage)

# nvcc is often installed without being on PATH. An explicit choice comes first.
set(crumb_reason "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
if(NOT CMAKE_CUDA_COMPILER)
  unset(CMAKE_CUDA_COMPILER CACHE)
  if(DEFINED ENV{CUDACXX})
    set(crumb_nvcc $ENV{CUDACXX})
  else()
    find_program(crumb_nvcc nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
                 PATH_SUFFIXES bin NO_CACHE)
  endif()
  if(crumb_nvcc)
    execute_process(COMMAND ${crumb_nvcc} --version OUTPUT_VARIABLE crumb_nvcc_says ERROR_QUIET)
    string(REGEX MATCH "release ([0-9.]+)" crumb_nvcc_says "${crumb_nvcc_says}")
    if(crumb_nvcc_says AND CMAKE_MATCH_1 VERSION_LESS 13.0)
      set(crumb_reason "${crumb_nvcc} is version ${CMAKE_MATCH_1}, too old")
    else()
      set(crumb_reason "${crumb_nvcc} cannot compile (CMakeFiles/CMakeError.log says why)")
      set(ENV{CUDACXX} ${crumb_nvcc})
      check_language(CUDA)
    endif()
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(WARNING "CRUMB_CUDA=ON, but ${crumb_reason}: going on without CUDA. "
                  "Install the CUDA Toolkit 13.0 or newer, or name its compiler: "
                  "-DCMAKE_CUDA_COMPILER=/path/to/nvcc")
  set(CRUMB_CUDA OFF)
  return()
endif()

enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
option(CRUMB_CUDA_LINES "Line numbers in kernels, for profilers and compute-sanitizer: programs three times as large" OFF)
# The host half of a kernel file is mostly what nvcc generates: -Wconversion and -Wshadow stay off.
target_compile_options(crumb_flags INTERFACE
  # Spelt out: CMake 3.25 knows no feature cuda_std_20.
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra$<$<BOOL:${CRUMB_WERROR}>:$<COMMA>-Werror>>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${CRUMB_WERROR}>>:-Werror=all-warnings>"
  $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>
  # They change no instruction.
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${CRUMB_CUDA_LINES}>>:-lineinfo>)
