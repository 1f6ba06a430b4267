// Frozen bytes of the disk tier: superblock, marks, footer, tombstone block, placement word, label.
// A failure here means that logs written by released programs would not be read.
#include <gtest/gtest.h>

#include <vector>

#include "cachesvc/base/bytes.h"
#include "storage/device/stripe_label.h"
#include "storage/segment/footer_builder.h"
#include "storage/segment/log_format.h"
#include "storage/segment/log_geometry.h"
#include "tests/golden/golden.h"

namespace crumb {
namespace {

LogSalt Salt() {
  LogSalt salt;
  for (size_t i = 0; i < salt.size(); ++i) salt[i] = static_cast<uint8_t>(0xa0 + i);
  return salt;
}

BlockKey Key(uint8_t first) {
  BlockKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<uint8_t>(first + i);
  return key;
}

PageHeader Header(uint8_t first, uint64_t sequence) {
  PageHeader header;
  header.key = Key(first);
  header.token_count = 64;
  header.payload_bytes = 5000;
  header.checksum = 0x1234567890abcdef;
  StampHeader(Salt(), {3, 17, 24, sequence}, &header);
  return header;
}

TEST(GoldenStorage, Superblock) {
  Superblock superblock;
  superblock.log_id = 0x0123456789abcdef;
  superblock.salt = Salt();
  superblock.secret_fingerprint = 0x1111222233334444;
  superblock.segment_bytes = 64 << 20;
  superblock.segment_count = 64;
  superblock.revision = 9;
  superblock.watermark = 77;
  superblock.clean = 1;
  std::vector<uint8_t> block(kLogBlock);
  StoreSuperblock(superblock, absl::MakeSpan(block));
  golden::Expect("log_superblock.hex", "first 512 bytes of a superblock's block",
                 Bytes(block).subspan(0, 512));
}

TEST(GoldenStorage, StripeLabel) {
  const StripeLabel label = {
      .set_id = 0x0123456789abcdef, .index = 2, .count = 5, .state = StripeState::kFormed};
  std::vector<uint8_t> head(64 << 10);
  StoreStripeLabel(label, absl::MakeSpan(head));
  golden::Expect("stripe_label.hex", "first copy of a striped member's label",
                 Bytes(head).subspan(0, 512));
  const absl::StatusOr<StripeHead> parsed = ParseStripeHead(head);
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->whole);
  EXPECT_EQ(parsed->label.index, 2u);
}

TEST(GoldenStorage, FooterAndMark) {
  FooterBuilder builder({1 << 20, 4});
  builder.AddRecord(Header(0x10, 100), 0);
  builder.AddRecord(Header(0x20, 101), 2);
  builder.AddTombstone({Key(0x30), 102});
  SegmentMark mark;
  mark.state = MarkState::kSealed;
  mark.log_id = 0x0123456789abcdef;
  mark.segment = 3;
  mark.generation = 17;
  mark.data_end_blocks = 5;
  const Bytes bytes = builder.Build(mark);
  ASSERT_EQ(bytes.size(), 2 * kLogBlock);
  golden::Expect("log_footer.hex", "entries of two records and a tombstone",
                 bytes.subspan(0, 2 * sizeof(FooterRecord) + sizeof(Tombstone)));
  golden::Expect("log_mark.hex", "one copy of the mark of that sealed segment",
                 bytes.subspan(kLogBlock, sizeof(SegmentMark)));
}

TEST(GoldenStorage, TombstoneBlock) {
  TombstoneBlock tombstones;
  tombstones.count = 2;
  tombstones.log_id = 0x0123456789abcdef;
  tombstones.segment = 3;
  tombstones.generation = 17;
  tombstones.offset_blocks = 9;
  tombstones.entries[0] = {Key(0x40), 103};
  tombstones.entries[1] = {Key(0x50), 104};
  std::vector<uint8_t> block(kLogBlock);
  StoreTombstones(tombstones, Salt(), absl::MakeSpan(block));
  golden::Expect("log_tombstones.hex", "one copy of a block of two tombstones",
                 Bytes(block).subspan(0, sizeof(TombstoneBlock)));
}

TEST(GoldenStorage, Stamp) {
  std::vector<uint8_t> header(kPageHeaderBytes);
  StoreHeader(Header(0x60, 105), absl::MakeSpan(header));
  golden::Expect("log_stamp.hex", "tier stamp of a record: segment 3, generation 17, block 24",
                 Bytes(header).subspan(96));
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) { return crumb::golden::Main(argc, argv); }
