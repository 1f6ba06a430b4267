// What crumbctl says of a page that a daemon called a mismatch: every field that can differ is
// named with what was expected and what came.
#include "client/cli/put_mismatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cachesvc/base/page_header.h"

namespace crumb::cli {
namespace {

using client::Form;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kPayload = 640;

client::Layout MakeLayout() {
  client::Layout layout;
  layout.name = "small";
  layout.hash_hex = "0102030405060708" + std::string(48, 'a');
  layout.codec = "crumb-int2";
  layout.raw_bytes = {4096, 4096};
  layout.payload_bytes = {kPayload, kPayload};
  layout.page_tokens = 16;
  return layout;
}

PageHeader GoodHeader() {
  PageHeader header;
  const uint8_t prefix[] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::memcpy(&header.identity_prefix, prefix, sizeof(prefix));
  header.precision = Precision::kInt2;
  header.key.bytes[0] = 0xab;
  header.token_count = 16;
  header.payload_bytes = kPayload;
  header.raw_bytes = 4096;
  header.tenant_prefix = 7;
  return header;
}

std::vector<uint8_t> PageOf(const PageHeader& header) {
  std::vector<uint8_t> page(kPageHeaderBytes + kPayload, 0);
  StoreHeader(header, absl::MakeSpan(page));
  return page;
}

std::string OfPage(const std::vector<uint8_t>& page, uint32_t part = 0, uint32_t tokens = 0) {
  return ExplainMismatch(MakeLayout(), part, tokens, Form::kPage, page);
}

TEST(PutMismatch, PackedNamesBothSizesAndTheRemedy) {
  const std::vector<uint8_t> bytes(641);
  EXPECT_THAT(ExplainMismatch(MakeLayout(), 1, 0, Form::kPacked, bytes),
              AllOf(HasSubstr("bytes: expected 640, got 641"), HasSubstr("crumb-int2"),
                    HasSubstr("part 1"), HasSubstr("--form raw")));
  const std::vector<uint8_t> right(kPayload);
  EXPECT_THAT(ExplainMismatch(MakeLayout(), 0, 0, Form::kPacked, right),
              AllOf(HasSubstr("does not decode"), Not(HasSubstr("expected 640"))));
}

TEST(PutMismatch, EveryFieldOfAHeaderIsNamedAndNoOther) {
  PageHeader header = GoodHeader();
  header.identity_prefix ^= 0xff;
  EXPECT_THAT(OfPage(PageOf(header)),
              AllOf(HasSubstr("layout: expected 0102030405060708, got fe02030405060708"),
                    Not(HasSubstr("part:")), Not(HasSubstr("bytes:")), Not(HasSubstr("count:"))));
  EXPECT_THAT(OfPage(PageOf(GoodHeader()), 1), HasSubstr("part: expected 1, got 0"));
  header = GoodHeader();
  header.raw_bytes = 8192;
  EXPECT_THAT(OfPage(PageOf(header)), HasSubstr("raw bytes: expected 4096, got 8192"));
  EXPECT_THAT(OfPage(PageOf(GoodHeader()), 0, 9), HasSubstr("token count: expected 9, got 16"));
  header = GoodHeader();
  header.token_count = 17;
  EXPECT_THAT(OfPage(PageOf(header)), HasSubstr("token count: expected at most 16, got 17"));
  std::vector<uint8_t> longer = PageOf(GoodHeader());
  longer.push_back(0);
  EXPECT_THAT(OfPage(longer), HasSubstr("bytes: expected 768, got 769"));
  header = GoodHeader();
  header.payload_bytes = 512;
  std::vector<uint8_t> other = PageOf(header);
  other.resize(kPageHeaderBytes + 512);
  EXPECT_THAT(OfPage(other), HasSubstr("payload bytes: expected 640, got 512"));
  // A wider page is one that the layout may read: its length is no difference.
  header.precision = Precision::kInt4;
  other = PageOf(header);
  other.resize(kPageHeaderBytes + 512);
  EXPECT_THAT(OfPage(other), Not(HasSubstr("payload bytes")));
}

TEST(PutMismatch, WhatAgreesLeavesKeyTenantAndCodec) {
  EXPECT_THAT(OfPage(PageOf(GoodHeader())),
              AllOf(HasSubstr("key ab00"), HasSubstr("tenant 0000000000000007"),
                    HasSubstr("expected crumb-int2"), HasSubstr("--form raw")));
}

TEST(PutMismatch, WhatIsNoPageIsSaidSo) {
  const std::vector<uint8_t> zeros(4096), tiny(kPageHeaderBytes);
  EXPECT_THAT(OfPage(zeros), HasSubstr("does not begin with a page header"));
  EXPECT_THAT(OfPage(tiny), HasSubstr("got 128"));
  EXPECT_THAT(OfPage({}), HasSubstr("got 0"));
}

}  // namespace
}  // namespace crumb::cli
