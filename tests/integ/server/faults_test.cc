// What clients get wrong: sizes, names, streams, sessions. Each ends in the right code with the
// remedy, and nobody else notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "tests/integ/server/daemon_process.h"
#include "tests/integ/server/rpc_worker.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using testing::Context;
using testing::DaemonProcess;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::RandomPage;
using testing::RpcWorker;
using testing::SmallModel;

class FaultsTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> sets = {}) {
    daemon_ = std::make_unique<DaemonProcess>(temp_.path(), std::move(sets));
    ASSERT_TRUE(daemon_->Start()) << daemon_->log();
    worker_ = std::make_unique<RpcWorker>(daemon_->grpc());
    ASSERT_TRUE(worker_->Connect());
    ASSERT_TRUE(worker_->Register(SmallModel(), "raw").ok());
  }
  // Afterwards the daemon still serves.
  void TearDown() override {
    if (daemon_ == nullptr) return;
    RpcWorker fresh(daemon_->grpc());
    ASSERT_TRUE(fresh.Connect());
    ASSERT_TRUE(fresh.Register(SmallModel("after"), "raw").ok());
    EXPECT_EQ(fresh.Put("after", RandomPage(77)), v1::RESULT_OK);
    EXPECT_EQ(fresh.Get("after").data, RandomPage(77));
    EXPECT_EQ(daemon_->Stop().code, 0) << daemon_->log();
  }
  // Sends these chunks and ends the stream.
  grpc::Status Stream(const std::vector<v1::PutChunk>& chunks) {
    v1::PutReply reply;
    const auto context = Context();
    const auto writer = worker_->cache().Put(context.get(), &reply);
    for (const v1::PutChunk& chunk : chunks) {
      if (!writer->Write(chunk)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }
  v1::PutChunk Chunk(const v1::PutHeader& header, const std::string& data = "") {
    v1::PutChunk chunk;
    *chunk.mutable_header() = header;
    chunk.set_data(data);
    return chunk;
  }
  static v1::PutChunk Data(const std::string& data) {
    v1::PutChunk chunk;
    chunk.set_data(data);
    return chunk;
  }
  static void ExpectInvalid(const grpc::Status& status, const std::string& what) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(what));
  }

  TempDir temp_{TempDir::Place::kDisk};
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RpcWorker> worker_;
};

TEST_F(FaultsTest, KeysHaveOneTo256Bytes) {
  Start();
  for (const size_t size : {1u, 127u, 128u, 254u, 255u, 256u}) {
    const std::string key(size, 'k');
    EXPECT_EQ(worker_->Put(key, RandomPage(size)), v1::RESULT_OK) << size;
    EXPECT_EQ(worker_->Get(key).data, RandomPage(size)) << size;
  }
  for (const size_t size : {0u, 257u, 1024u, 4096u}) {
    v1::PutReply reply;
    ExpectInvalid(worker_->Put(std::string(size, 'k'), RandomPage(1), &reply), "1 to 256");
    ExpectInvalid(worker_->Get(std::string(size, 'k')).status, "1 to 256");
    v1::LookupRequest lookup;
    lookup.set_session(worker_->session());
    lookup.set_layout_handle(worker_->layout().handle());
    lookup.add_blocks()->set_key(std::string(size, 'k'));
    v1::LookupReply found;
    ExpectInvalid(worker_->cache().Lookup(Context().get(), lookup, &found), "1 to 256");
  }
}

TEST_F(FaultsTest, DigestsHaveSixteenBytesAndKeysAreNotBoth) {
  Start();
  v1::PutHeader header = worker_->Header("");
  header.mutable_block()->clear_key();
  for (const size_t size : {1u, 15u, 17u, 32u}) {
    header.mutable_block()->set_digest(std::string(size, 'd'));
    ExpectInvalid(Stream({Chunk(header)}), "16");
  }
  header.mutable_block()->set_digest(std::string(16, 'd'));
  header.mutable_block()->set_key("k");
  ExpectInvalid(Stream({Chunk(header)}), "not by both");
}

TEST_F(FaultsTest, PagesHaveTheLayoutsSize) {
  Start();
  for (const size_t size : {size_t{1}, testing::kSmallPageBytes - 1, testing::kSmallPageBytes + 1,
                            testing::kSmallPageBytes * 2}) {
    v1::PutReply reply;
    ExpectInvalid(worker_->Put("k", RandomPage(1, size), &reply), "value_bytes");
  }
  v1::PutHeader header = worker_->Header("k", uint64_t{1} << 62);
  ExpectInvalid(Stream({Chunk(header)}), "value_bytes");
  header.set_form(v1::FORM_PACKED);
  ExpectInvalid(Stream({Chunk(header)}), "value_bytes");
  header.set_form(static_cast<v1::Form>(9));
  ExpectInvalid(Stream({Chunk(header)}), "form");
}

TEST_F(FaultsTest, StreamsThatBreakTheRulesAreRefused) {
  Start();
  const std::string page = RandomPage(1);
  const v1::PutHeader header = worker_->Header("k");
  ExpectInvalid(Stream({}), "without a header");
  ExpectInvalid(Stream({Data(page)}), "missing in the first chunk");
  ExpectInvalid(Stream({Chunk(header, page.substr(0, 100))}), "after 100 of 65536");
  ExpectInvalid(Stream({Chunk(header, page), Data("x")}), "more than the 65536");
  ExpectInvalid(Stream({Chunk(header, page.substr(0, 9)), Chunk(header, page.substr(9))}),
                "first chunk only");
  ExpectInvalid(Stream({Chunk(header, std::string((1 << 20) + 1, 'x'))}), "at most 1048576");
  v1::PutHeader wrong = header;
  wrong.set_token_count(65);
  ExpectInvalid(Stream({Chunk(wrong, page)}), "token_count");
  wrong = header;
  wrong.mutable_block()->set_part(1);
  ExpectInvalid(Stream({Chunk(wrong, page)}), "part 1");
  wrong = header;
  wrong.set_layout_handle(99);
  ExpectInvalid(Stream({Chunk(wrong, page)}), "layout handle 99");
  wrong = header;
  wrong.set_provenance(static_cast<v1::ProvenanceKind>(7));
  ExpectInvalid(Stream({Chunk(wrong, page)}), "provenance");
  EXPECT_EQ(worker_->Get("k").header.result(), v1::RESULT_MISS);  // nothing was kept
}

TEST_F(FaultsTest, SessionsMustBeOpen) {
  Start();
  v1::PutHeader header = worker_->Header("k");
  header.set_session(header.session() + 1);
  const grpc::Status status = Stream({Chunk(header, RandomPage(1))});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("Hello"));
  v1::GoodbyeRequest goodbye;
  goodbye.set_session(worker_->session());
  v1::GoodbyeReply reply;
  EXPECT_TRUE(worker_->cache().Goodbye(Context().get(), goodbye, &reply).ok());
  EXPECT_EQ(worker_->Get("k").status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(worker_->cache().Goodbye(Context().get(), goodbye, &reply).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(FaultsTest, SessionsAreBoundedAndIdleOnesEnd) {
  Start({"limits.sessions=4", "limits.session_idle=1s"});
  std::vector<std::unique_ptr<RpcWorker>> workers;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(std::make_unique<RpcWorker>(daemon_->grpc()));
    ASSERT_TRUE(workers.back()->Connect());
  }
  v1::HelloRequest hello;
  v1::HelloReply reply;
  const grpc::Status refused = worker_->cache().Hello(Context().get(), hello, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("limits.sessions"));
  EXPECT_TRUE(Eventually(
      [&] { return worker_->StatusJson().find("\"sessions\": 0") != std::string::npos; }, 15'000));
  EXPECT_TRUE(worker_->Connect());
}

TEST_F(FaultsTest, NanIsRefusedByNameUnlessTheLayoutKeepsIt) {
  Start();
  ASSERT_TRUE(worker_->Register(SmallModel("nan"), "crumb-int4").ok());
  std::string page = RandomPage(1);
  // Layer 1, V, head 1, token 5, dim 7.
  const size_t at = (((3 * 2 + 1) * 64 + 5) * 64 + 7) * 2;
  const uint16_t nan = 0x7fc0;
  std::memcpy(page.data() + at, &nan, sizeof(nan));
  v1::PutReply reply;
  ASSERT_TRUE(worker_->Put("k", page, &reply).ok());
  EXPECT_EQ(reply.result(), v1::RESULT_NON_FINITE);
  EXPECT_THAT(reply.message(), HasSubstr("layer 1, V, head 1, token 5"));
  EXPECT_THAT(reply.message(), HasSubstr("keep_non_finite_raw"));
  EXPECT_EQ(worker_->Get("k").header.result(), v1::RESULT_MISS);
  ASSERT_TRUE(worker_->Register(SmallModel("nan"), "crumb-int4", true).ok());
  ASSERT_EQ(worker_->Put("k", page), v1::RESULT_OK);
  EXPECT_EQ(worker_->Get("k").data, page);
}

TEST_F(FaultsTest, HostileNamesNeverBecomePaths) {
  Start();
  std::set<std::string> before;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(temp_.path())) {
    before.insert(entry.path().string());
  }
  std::string dots;
  while (dots.size() < 250) dots += "../";
  const std::vector<std::string> names = {"..",
                                          ".",
                                          "/",
                                          "/etc/passwd",
                                          "../../etc/x",
                                          "a/../../b",
                                          "%2e%2e%2f",
                                          "..\\..\\x",
                                          std::string("nul\0byte", 8),
                                          "\xc0\xae\xc0\xae/",
                                          "a\nb",
                                          "$(reboot)",
                                          "; rm -rf /",
                                          dots,
                                          "con",
                                          std::string(255, 'x')};
  uint64_t seed = 100;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    EXPECT_EQ(worker_->Put(name, RandomPage(++seed), {.durable = true}), v1::RESULT_OK);
    EXPECT_EQ(worker_->Get(name).data, RandomPage(seed));
    v1::Identity identity = SmallModel();
    identity.set_name_space(name);
    RpcWorker other(daemon_->grpc());
    ASSERT_TRUE(other.Connect());
    if (other.Register(identity, "raw").ok()) {
      EXPECT_EQ(other.Get(name).header.result(), v1::RESULT_MISS);  // another identity
      EXPECT_EQ(other.Put(name, RandomPage(1)), v1::RESULT_OK);
    }
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(temp_.path())) {
    EXPECT_TRUE(before.count(entry.path().string()) == 1) << entry.path();
  }
}

TEST_F(FaultsTest, BadIdentitiesNameTheirField) {
  Start();
  const auto refused = [&](const std::function<void(v1::Identity*)>& spoil) {
    v1::Identity identity = SmallModel();
    spoil(&identity);
    const grpc::Status status = worker_->Register(identity, "raw");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(refused([](auto* i) { i->clear_model(); }), HasSubstr("model"));
  EXPECT_THAT(refused([](auto* i) { i->set_dtype("int3"); }), HasSubstr("int3"));
  EXPECT_THAT(refused([](auto* i) { i->set_page_tokens(0); }), HasSubstr("page_tokens"));
  EXPECT_THAT(refused([](auto* i) { i->set_page_tokens(1u << 30); }), HasSubstr("page_tokens"));
  EXPECT_THAT(refused([](auto* i) { i->mutable_groups(0)->set_kv_heads(0); }),
              HasSubstr("kv_heads"));
  EXPECT_THAT(refused([](auto* i) { i->set_head_groups(3); }), HasSubstr("head_groups"));
  EXPECT_THAT(refused([](auto* i) { i->mutable_groups(0)->set_kind("odd"); }), HasSubstr("odd"));
  EXPECT_THAT(refused([](auto* i) { i->clear_groups(); }), HasSubstr("group"));
  const grpc::Status int2 = worker_->Register(SmallModel("int2"), "crumb-int2");
  EXPECT_EQ(int2.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(int2.error_message(), HasSubstr("codec.int2: accept"));
}

TEST_F(FaultsTest, StalledUploadsAreBoundedAndEnd) {
  Start({"limits.staging_bytes=1MiB"});  // room for 15 pages of 64 KiB and a header
  struct Upload {
    std::unique_ptr<grpc::ClientContext> context = Context(60'000);
    v1::PutReply reply;
    std::unique_ptr<grpc::ClientWriter<v1::PutChunk>> writer;
  };
  std::vector<std::unique_ptr<Upload>> uploads;
  for (int i = 0; i < 15; ++i) {
    auto upload = std::make_unique<Upload>();
    upload->writer = worker_->cache().Put(upload->context.get(), &upload->reply);
    v1::PutHeader header = worker_->Header("stalled" + std::to_string(i));
    header.set_deadline_ms(6000);
    ASSERT_TRUE(upload->writer->Write(Chunk(header, "half")));
    uploads.push_back(std::move(upload));
  }
  // A put before all of them hold their room would take the room of one.
  const std::string used = "crumb_grpc_staging_bytes{kind=\"used\"} ";
  ASSERT_TRUE(Eventually(
      [&] {
        const std::string body = testing::HttpBody(daemon_->http(), "/metrics");
        const size_t at = body.find(used);
        return at != std::string::npos && std::stod(body.substr(at + used.size())) >= 15 * 65536;
      },
      5'000));
  v1::PutReply reply;
  const grpc::Status refused = worker_->Put("k", RandomPage(1), &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("limits.staging_bytes"));
  for (const auto& upload : uploads) {
    EXPECT_EQ(upload->writer->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  // Eventually: the daemon frees a stream's staging a moment after the client learns of its end.
  EXPECT_TRUE(
      Eventually([&] { return worker_->Put("free", RandomPage(1)) == v1::RESULT_OK; }, 5'000));
}

TEST_F(FaultsTest, CancelledAndAbandonedCallsLeaveNothingBehind) {
  Start();
  for (int i = 0; i < 20; ++i) {
    RpcWorker other(daemon_->grpc());
    ASSERT_TRUE(other.Connect());
    ASSERT_TRUE(other.Register(SmallModel(), "raw").ok());
    auto put = Context();
    v1::PutReply reply;
    const auto writer = other.cache().Put(put.get(), &reply);
    writer->Write(Chunk(other.Header("abandoned"), "some"));
    put->TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
    v1::GetRequest request;
    request.set_session(other.session());
    request.set_layout_handle(other.layout().handle());
    request.mutable_block()->set_key("nobody puts this");
    request.set_wait_ms(60'000);
    auto get = Context(60'000);
    const auto reader = other.cache().Get(get.get(), request);
    get->TryCancel();
    v1::GetChunk chunk;
    while (reader->Read(&chunk)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(worker_->Get("abandoned").header.result(), v1::RESULT_MISS);
  EXPECT_TRUE(Eventually(
      [&] {
        const std::string status = worker_->StatusJson();
        return status.find("\"waiters\": 0") != std::string::npos &&
               status.find("\"calls_in_flight\": 0") != std::string::npos &&
               status.find("\"staging_used_bytes\": 0") != std::string::npos;
      },
      15'000))
      << worker_->StatusJson();
}

TEST_F(FaultsTest, MessagesOverTheLimitAreRefused) {
  Start();
  const grpc::Status big = Stream({Chunk(worker_->Header("k"), std::string(5u << 20, 'x'))});
  EXPECT_EQ(big.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::LookupRequest lookup;
  lookup.set_session(worker_->session());
  lookup.set_layout_handle(worker_->layout().handle());
  v1::LookupReply reply;
  ExpectInvalid(worker_->cache().Lookup(Context().get(), lookup, &reply), "1 to 256");
  for (int i = 0; i < 257; ++i) lookup.add_blocks()->set_key("k");
  ExpectInvalid(worker_->cache().Lookup(Context().get(), lookup, &reply), "1 to 256");
  v1::HelloRequest hello;
  hello.set_wire_version(99);
  v1::HelloReply answer;
  const grpc::Status version = worker_->cache().Hello(Context().get(), hello, &answer);
  EXPECT_EQ(version.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(version.error_message(), HasSubstr("wire version 99"));
}

TEST_F(FaultsTest, BadRegionsAndUcxHellosAreRefused) {
  Start();
  v1::RegisterRegionsRequest regions;
  regions.set_session(worker_->session());
  regions.set_layout_handle(worker_->layout().handle());
  regions.set_region_set(1);
  v1::RegisterRegionsReply reply;
  ExpectInvalid(worker_->cache().RegisterRegions(Context().get(), regions, &reply), "regions");
  v1::Region* region = regions.add_regions();
  region->set_address(~uint64_t{0} - 10);
  region->set_bytes(4096);
  regions.set_slots(1);
  regions.set_slot_bytes(4096);
  EXPECT_FALSE(worker_->cache().RegisterRegions(Context().get(), regions, &reply).ok());
  v1::ConnectRequest connect;
  connect.set_session(worker_->session());
  v1::ConnectReply connected;
  EXPECT_FALSE(worker_->cache().Connect(Context().get(), connect, &connected).ok());
  connect.set_hello("garbage");
  EXPECT_FALSE(worker_->cache().Connect(Context().get(), connect, &connected).ok());
  connect.set_hello(std::string(1 << 20, 'x'));
  EXPECT_FALSE(worker_->cache().Connect(Context().get(), connect, &connected).ok());
}

}  // namespace
}  // namespace crumb
