// Data verbs over gRPC against the real daemon: TCP and unix socket, every form, durability over
// SIGKILL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/page_header.h"
#include "tests/integ/server/daemon_process.h"
#include "tests/integ/server/rpc_worker.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using testing::DaemonProcess;
using testing::Got;
using ::testing::HasSubstr;
using testing::PutOptions;
using testing::RandomPage;
using testing::RpcWorker;
using testing::SmallModel;

enum class Door { kTcp, kSocket };

class DataTest : public ::testing::TestWithParam<Door> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.Start()) << daemon_.log();
    worker_ =
        std::make_unique<RpcWorker>(GetParam() == Door::kTcp ? daemon_.grpc() : daemon_.socket());
    ASSERT_TRUE(worker_->Connect());
  }
  void Register(const std::string& codec, const std::string& name_space = "") {
    const grpc::Status status = worker_->Register(SmallModel(name_space), codec);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  TempDir temp_{TempDir::Place::kDisk};
  DaemonProcess daemon_{temp_.path()};
  std::unique_ptr<RpcWorker> worker_;
};

INSTANTIATE_TEST_SUITE_P(Doors, DataTest, ::testing::Values(Door::kTcp, Door::kSocket),
                         [](const auto& door) {
                           return door.param == Door::kTcp ? "Tcp" : "UnixSocket";
                         });

TEST_P(DataTest, RawPagesComeBackByteForByte) {
  Register("raw");
  for (uint64_t i = 0; i < 20; ++i) {
    const std::string key = "key " + std::to_string(i);
    ASSERT_EQ(worker_->Put(key, RandomPage(i)), v1::RESULT_OK);
    const Got got = worker_->Get(key);
    ASSERT_TRUE(got.ok()) << got.status.error_message();
    EXPECT_EQ(got.data, RandomPage(i));
    EXPECT_EQ(got.header.precision(), v1::PRECISION_RAW);
    EXPECT_EQ(got.header.tier(), v1::TIER_DRAM);
    EXPECT_EQ(got.header.checksum(),
              Xxh3({reinterpret_cast<const uint8_t*>(got.data.data()), got.data.size()}));
  }
  EXPECT_EQ(worker_->Get("never put").header.result(), v1::RESULT_MISS);
}

TEST_P(DataTest, TheDefaultCodecIsInt4AndSaysWhy) {
  Register("");
  EXPECT_EQ(worker_->layout().codec(), "crumb-int4");
  EXPECT_THAT(worker_->layout().codec_note(), HasSubstr("no rotation set for example/small"));
  const std::string page = RandomPage(1);
  ASSERT_EQ(worker_->Put("k", page), v1::RESULT_OK);
  const Got raw = worker_->Get("k");
  ASSERT_TRUE(raw.ok());
  EXPECT_EQ(raw.header.precision(), v1::PRECISION_INT4);
  EXPECT_LT(testing::RelativeError(page, raw.data), 0.02);
  EXPECT_GT(testing::RelativeError(page, raw.data), 0.0);
  const Got whole = worker_->Get("k", v1::FORM_PAGE);
  ASSERT_TRUE(whole.ok());
  const Bytes bytes(reinterpret_cast<const uint8_t*>(whole.data.data()), whole.data.size());
  ASSERT_EQ(CheckPage(bytes), PageCheck::kOk);
  const PageHeader header = LoadHeader(bytes);
  EXPECT_EQ(header.codec_id, worker_->layout().codec_id());
  EXPECT_EQ(header.raw_bytes, page.size());
  EXPECT_EQ(header.payload_bytes, worker_->layout().payload_bytes(0));
  EXPECT_LT(header.payload_bytes * 3, header.raw_bytes);
  const Got packed = worker_->Get("k", v1::FORM_PACKED);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(packed.data, whole.data.substr(kPageHeaderBytes));
}

TEST_P(DataTest, PagesOfUnknownPositionAreNotStoredAtTwoBits) {
  TempDir other(TempDir::Place::kDisk);
  DaemonProcess daemon(other.path(), {"codec.int2=accept", "codec.windows=off"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RpcWorker worker(daemon.grpc());
  ASSERT_TRUE(worker.Connect());
  ASSERT_TRUE(worker.Register(SmallModel(), "crumb-int2").ok());
  ASSERT_EQ(worker.Put("unknown", RandomPage(1)), v1::RESULT_OK);
  EXPECT_EQ(worker.Get("unknown").header.precision(), v1::PRECISION_INT4);
  ASSERT_EQ(worker.Put("known", RandomPage(1), {.token_start = 128}), v1::RESULT_OK);
  EXPECT_EQ(worker.Get("known").header.precision(), v1::PRECISION_INT2);
}

TEST_P(DataTest, PackedPagesMoveFromOneKeyToAnother) {
  Register("crumb-int4");
  ASSERT_EQ(worker_->Put("a", RandomPage(3)), v1::RESULT_OK);
  const Got packed = worker_->Get("a", v1::FORM_PACKED);
  ASSERT_TRUE(packed.ok());
  ASSERT_EQ(worker_->Put("b", packed.data, {.form = v1::FORM_PACKED}), v1::RESULT_OK);
  EXPECT_EQ(worker_->Get("b").data, worker_->Get("a").data);
  EXPECT_EQ(worker_->Put("c", packed.data.substr(1), {.form = v1::FORM_PACKED}),
            v1::RESULT_MISMATCH);
}

TEST_P(DataTest, LookupFindsTheLongestPrefix) {
  Register("raw");
  ASSERT_EQ(worker_->Put("a", RandomPage(1)), v1::RESULT_OK);
  ASSERT_EQ(worker_->Put("b", RandomPage(2)), v1::RESULT_OK);
  ASSERT_EQ(worker_->Put("d", RandomPage(4)), v1::RESULT_OK);
  const v1::LookupReply found = worker_->Lookup({"a", "b", "c", "d"});
  ASSERT_EQ(found.items_size(), 4);
  EXPECT_EQ(found.prefix(), 2u);
  EXPECT_EQ(found.items(0).result(), v1::RESULT_OK);
  EXPECT_EQ(found.items(0).tier(), v1::TIER_DRAM);
  EXPECT_EQ(found.items(2).result(), v1::RESULT_MISS);
  EXPECT_EQ(found.items(3).result(), v1::RESULT_OK);
}

TEST_P(DataTest, DeleteForgetsAndASecondPutIsANoOp) {
  Register("raw");
  ASSERT_EQ(worker_->Put("k", RandomPage(1)), v1::RESULT_OK);
  EXPECT_EQ(worker_->Put("k", RandomPage(2)), v1::RESULT_EXISTS);
  EXPECT_EQ(worker_->Get("k").data, RandomPage(1));
  EXPECT_EQ(worker_->Delete("k"), v1::RESULT_OK);
  EXPECT_EQ(worker_->Delete("k"), v1::RESULT_MISS);
  EXPECT_EQ(worker_->Get("k").header.result(), v1::RESULT_MISS);
}

TEST_P(DataTest, PartialPagesComeBackWithZeroTails) {
  Register("raw");
  std::string page = RandomPage(1);
  ASSERT_EQ(worker_->Put("k", page, {.token_count = 63}), v1::RESULT_OK);
  const Got got = worker_->Get("k");
  ASSERT_TRUE(got.ok());
  for (size_t row_block = 0; row_block < 8; ++row_block) {
    page.replace(row_block * 64 * 128 + 63 * 128, 128, std::string(128, '\0'));
  }
  EXPECT_EQ(got.data, page);
}

TEST_P(DataTest, PinsHoldAndEnd) {
  Register("raw");
  ASSERT_EQ(worker_->Put("k", RandomPage(1)), v1::RESULT_OK);
  EXPECT_EQ(worker_->Pin("k", 60'000), v1::RESULT_OK);
  EXPECT_THAT(worker_->StatusJson(), HasSubstr("\"pins\": 1"));
  EXPECT_EQ(worker_->Pin("k", 0), v1::RESULT_OK);
  EXPECT_THAT(worker_->StatusJson(), HasSubstr("\"pins\": 0"));
  EXPECT_EQ(worker_->Pin("absent", 1000), v1::RESULT_MISS);
}

TEST_P(DataTest, AGetWaitsForThePutOfItsKey) {
  Register("raw");
  Got got;
  std::thread reader([&] { got = worker_->Get("late", v1::FORM_RAW, 20'000); });
  EXPECT_TRUE(testing::Eventually(
      [&] { return worker_->StatusJson().find("\"waiters\": 1") != std::string::npos; }, 10'000));
  RpcWorker other(daemon_.grpc());
  ASSERT_TRUE(other.Connect());
  ASSERT_TRUE(other.Register(SmallModel(), "raw").ok());
  EXPECT_EQ(other.Put("late", RandomPage(9)), v1::RESULT_OK);
  reader.join();
  ASSERT_TRUE(got.ok()) << got.status.error_message();
  EXPECT_EQ(got.data, RandomPage(9));
}

// The deadline is 10 s.
TEST_P(DataTest, AWaitThatNobodyEndsIsOverAtItsTimeWhateverTheDeadline) {
  Register("raw");
  const auto start = std::chrono::steady_clock::now();
  const Got got = worker_->Get("never", v1::FORM_RAW, 200);
  const auto took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.header.result(), v1::RESULT_TIMEOUT);
  EXPECT_GE(took, std::chrono::milliseconds(200));
  EXPECT_LT(took, std::chrono::seconds(8));
}

TEST_P(DataTest, APutThatFailsWakesNobodyAndTheNextOneDoes) {
  Register("crumb-int4");
  Got got;
  std::thread reader([&] { got = worker_->Get("late", v1::FORM_RAW, 20'000); });
  EXPECT_TRUE(testing::Eventually(
      [&] { return worker_->StatusJson().find("\"waiters\": 1") != std::string::npos; }, 10'000));
  RpcWorker other(daemon_.grpc());
  ASSERT_TRUE(other.Connect());
  ASSERT_TRUE(other.Register(SmallModel(), "crumb-int4").ok());
  std::string bad = RandomPage(9);
  bad[1000] = static_cast<char>(0x80);
  bad[1001] = 0x7f;  // infinity
  EXPECT_EQ(other.Put("late", bad), v1::RESULT_NON_FINITE);
  EXPECT_THAT(worker_->StatusJson(), HasSubstr("\"waiters\": 1"));
  EXPECT_EQ(other.Put("late", RandomPage(9)), v1::RESULT_OK);
  reader.join();
  ASSERT_TRUE(got.ok()) << got.status.error_message();
}

TEST_P(DataTest, PrefetchSaysWhereEachPageIs) {
  Register("raw");
  ASSERT_EQ(worker_->Put("k", RandomPage(1)), v1::RESULT_OK);
  v1::PrefetchRequest request;
  request.set_session(worker_->session());
  request.set_layout_handle(worker_->layout().handle());
  request.add_blocks()->set_key("k");
  request.add_blocks()->set_key("nowhere");
  v1::PrefetchReply reply;
  ASSERT_TRUE(worker_->cache().Prefetch(testing::Context().get(), request, &reply).ok());
  ASSERT_EQ(reply.items_size(), 2);
  EXPECT_EQ(reply.items(0).result(), v1::RESULT_OK);
  EXPECT_EQ(reply.items(0).tier(), v1::TIER_DRAM);
  EXPECT_EQ(reply.items(1).result(), v1::RESULT_MISS);
  EXPECT_THAT(worker_->StatusJson(), HasSubstr("\"prefetch\""));
}

TEST_P(DataTest, FlushForgetsOneLayoutOrAll) {
  Register("raw", "one");
  ASSERT_EQ(worker_->Put("k", RandomPage(1), {.durable = true}), v1::RESULT_OK);
  const v1::LayoutInfo one = worker_->layout();
  Register("raw", "two");
  ASSERT_EQ(worker_->Put("k", RandomPage(2)), v1::RESULT_OK);
  const v1::LayoutInfo two = worker_->layout();
  v1::FlushRequest flush;
  flush.set_layout_hash(one.hash());
  v1::FlushReply reply;
  ASSERT_TRUE(worker_->admin().Flush(testing::Context().get(), flush, &reply).ok());
  EXPECT_EQ(worker_->Get("k").data, RandomPage(2));
  worker_->set_layout(one);
  EXPECT_EQ(worker_->Get("k").header.result(), v1::RESULT_MISS);
  ASSERT_TRUE(worker_->admin().Flush(testing::Context().get(), {}, &reply).ok());
  worker_->set_layout(two);
  EXPECT_EQ(worker_->Get("k").header.result(), v1::RESULT_MISS);
  flush.set_layout_hash("short");
  EXPECT_EQ(worker_->admin().Flush(testing::Context().get(), flush, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_P(DataTest, WhatWasDurableSurvivesSigkill) {
  Register("crumb-int4");
  std::vector<std::string> before;
  for (uint64_t i = 0; i < 30; ++i) {
    ASSERT_EQ(worker_->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
    before.push_back(worker_->Get(std::to_string(i)).data);
  }
  daemon_.Signal(SIGKILL);
  EXPECT_EQ(daemon_.Wait(20'000).signal, SIGKILL);
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  RpcWorker again(GetParam() == Door::kTcp ? daemon_.grpc() : daemon_.socket());
  ASSERT_TRUE(again.Connect());
  // The daemon remembers its layouts: nobody has to register them to find them.
  v1::ListLayoutsRequest list;
  list.set_session(again.session());
  v1::ListLayoutsReply layouts;
  ASSERT_TRUE(again.cache().ListLayouts(testing::Context().get(), list, &layouts).ok());
  ASSERT_EQ(layouts.layouts_size(), 1);
  EXPECT_EQ(layouts.layouts(0).codec(), "crumb-int4");
  EXPECT_EQ(layouts.layouts(0).name(), "small");
  again.set_layout(layouts.layouts(0));
  for (uint64_t i = 0; i < 30; ++i) {
    const Got got = again.Get(std::to_string(i));
    ASSERT_TRUE(got.ok()) << i;
    EXPECT_EQ(got.header.tier(), v1::TIER_NVME);
    EXPECT_EQ(got.data, before[i]) << i;
  }
  // The old session ended with the old process.
  v1::ListLayoutsRequest old;
  old.set_session(worker_->session());
  const grpc::Status ended = again.cache().ListLayouts(testing::Context().get(), old, &layouts);
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(ended.error_message(), HasSubstr("session"));
}

// The daemon's own choice may change, here with its configuration.
TEST_P(DataTest, AnotherDefaultCodecLeavesOldPagesReadable) {
  TempDir temp(TempDir::Place::kDisk);
  const auto run = [&](const std::string& precision, const auto& body) {
    DaemonProcess daemon(temp.path(), {"codec.default_precision=" + precision});
    ASSERT_TRUE(daemon.Start()) << daemon.log();
    RpcWorker worker(daemon.grpc());
    ASSERT_TRUE(worker.Connect());
    const grpc::Status status = worker.Register(SmallModel());
    ASSERT_TRUE(status.ok()) << status.error_message();
    body(worker);
    daemon.Signal(SIGKILL);
    daemon.Wait(20'000);
  };
  run("raw", [](RpcWorker& worker) {
    ASSERT_EQ(worker.Put("old", RandomPage(1), {.durable = true}), v1::RESULT_OK);
  });
  run("int4", [](RpcWorker& worker) {
    ASSERT_EQ(worker.Put("new", RandomPage(2), {.durable = true}), v1::RESULT_OK);
    EXPECT_EQ(worker.Get("old").data, RandomPage(1));
  });
  run("int4", [](RpcWorker& worker) {
    EXPECT_EQ(worker.Get("old").data, RandomPage(1));
    EXPECT_EQ(worker.Get("new").header.precision(), v1::PRECISION_INT4);
  });
}

TEST_P(DataTest, OneIdentityHasOneNameAndOneCodec) {
  Register("raw");
  const uint32_t handle = worker_->layout().handle();
  ASSERT_EQ(worker_->Put("k", RandomPage(1), {.durable = true}), v1::RESULT_OK);
  const auto again = [&](const std::string& name, const std::string& codec) {
    v1::RegisterLayoutRequest request;
    request.set_session(worker_->session());
    request.set_name(name);
    *request.mutable_identity() = SmallModel();
    request.set_codec(codec);
    v1::RegisterLayoutReply reply;
    const grpc::Status status =
        worker_->cache().RegisterLayout(testing::Context().get(), request, &reply);
    if (status.ok()) {
      EXPECT_EQ(reply.layout().handle(), handle);
      EXPECT_EQ(reply.layout().codec(), "raw");
      EXPECT_EQ(reply.layout().name(), "small");
    }
    return status;
  };
  EXPECT_TRUE(again("small", "raw").ok());
  EXPECT_TRUE(again("", "").ok());
  EXPECT_TRUE(again("small", "").ok());
  for (const auto& [name, codec] :
       {std::pair{"other", "raw"}, {"small", "crumb-int4"}, {"other", ""}}) {
    const grpc::Status refused = again(name, codec);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::ALREADY_EXISTS) << name << " " << codec;
    EXPECT_THAT(refused.error_message(), HasSubstr(std::string("layout \"") + name));
    EXPECT_THAT(refused.error_message(), HasSubstr("registered as \"small\" with codec raw"));
    EXPECT_THAT(refused.error_message(), HasSubstr("name_space"));
  }
  EXPECT_EQ(worker_->Get("k").data, RandomPage(1));
  daemon_.Signal(SIGKILL);
  daemon_.Wait(20'000);
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  worker_ = std::make_unique<RpcWorker>(daemon_.grpc());
  ASSERT_TRUE(worker_->Connect());
  EXPECT_EQ(again("small", "crumb-int4").error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(again("small", "raw").ok());
}

}  // namespace
}  // namespace crumb
