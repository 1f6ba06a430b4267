// Pages that codec backends are compared on: the committed SmolLM2 sample, made-up keys and values
// with published rotations of head dim 128 and 256, and rows made to break codecs. Tests only.
#ifndef CRUMB_TESTS_SUPPORT_CODEC_CASES_H_
#define CRUMB_TESTS_SUPPORT_CODEC_CASES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "gpu/codec/rotation_set.h"

namespace crumb::testing {

struct CodecCase {
  std::string name;
  PartShape part;
  std::shared_ptr<const RotationSet> set;  // with M and m
  std::vector<uint8_t> raw;
  uint32_t tokens = 64;
  bool hostile = false;  // made to break codecs: agreement of searches means nothing on it
};

enum class CaseRange : uint8_t { kFew, kAll };  // few: what a unit test has time for
std::vector<CodecCase> CodecCases(CaseRange range);

// Of CodecCases: made-up keys and values, `heads` heads of `dim` (128 or 256), one layer.
CodecCase MadeUpCase(uint32_t dim, uint32_t heads);

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_SUPPORT_CODEC_CASES_H_
