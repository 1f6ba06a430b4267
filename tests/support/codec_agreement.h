// How far a vector backend is from the scalar reference, in the terms of docs/codec.md: rotated
// rows, bytes from the rotated row on, decoded pages, searches. Tests only.
#ifndef CRUMB_TESTS_SUPPORT_CODEC_AGREEMENT_H_
#define CRUMB_TESTS_SUPPORT_CODEC_AGREEMENT_H_

#include <cstdint>

#include "gpu/codec/codec_backend.h"
#include "gpu/codec/descriptor.h"
#include "tests/support/codec_cases.h"

namespace crumb::testing {

// BF16 values of two backends.
struct ValueAgreement {
  uint64_t values = 0;
  uint64_t different = 0;
  // Further apart than one unit of the last place (of the product, where a base was added to it)
  // and 2^-16 of the row's largest value.
  uint64_t beyond = 0;

  void Add(const ValueAgreement& other);
};

struct SearchAgreement {
  uint64_t codes = 0, codes_equal = 0;
  uint64_t meta = 0, meta_equal = 0;
  double error = 0.0, error_reference = 0.0;  // of K in the set's M, of V plain
  bool reports_agree = true;                  // fits, and errors within 1 %

  void Add(const SearchAgreement& other);
};

// x R of every row, by the backend's kernels and by the reference.
ValueAgreement CompareRotation(const CodecCase& page, const CodecDescriptor& descriptor,
                               CodecBackend backend);
// Bytes of an affine payload that are not what the scalar quantiser makes of the same rotated rows.
uint64_t CountWrongBytes(const CodecCase& page, const CodecDescriptor& descriptor,
                         CodecBackend backend);
// Pages decoded from the reference's payload. kRotated must not differ at all.
ValueAgreement CompareDecoders(const CodecCase& page, const CodecDescriptor& descriptor,
                               CodecBackend backend, bool rotated);
// A payload that some encoder made of the page at that effort, with the reference's. Reports are
// not looked at.
SearchAgreement ComparePayload(const CodecCase& page, const CodecDescriptor& descriptor,
                               Effort effort, const std::vector<uint8_t>& payload);
SearchAgreement CompareEncoders(const CodecCase& page, const CodecDescriptor& descriptor,
                                CodecBackend backend, Effort effort);

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_SUPPORT_CODEC_AGREEMENT_H_
