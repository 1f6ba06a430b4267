// The Admin service: rotation sets in and out, who may call, and the codec that follows from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cachesvc/server/admin_service.h"
#include "gpu/codec/rotation_set.h"
#include "tests/integ/server/daemon_process.h"
#include "tests/integ/server/rpc_worker.h"
#include "tests/unit/cachesvc/server/rotation_samples.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using testing::Context;
using testing::DaemonProcess;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RandomPage;
using testing::RpcWorker;
using testing::SmallModel;

struct File {
  std::string name;
  std::string content;
};

class AdminTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> sets = {}) {
    daemon_ = std::make_unique<DaemonProcess>(temp_.path(), std::move(sets));
    ASSERT_TRUE(daemon_->Start()) << daemon_->log();
    worker_ = std::make_unique<RpcWorker>(daemon_->grpc());
    ASSERT_TRUE(worker_->Connect());
  }
  grpc::Status Import(const std::vector<File>& files, v1::RotationInfo* info,
                      const std::string& model = "", const std::string& revision = "") {
    const auto context = Context(60'000);
    const auto writer = worker_->admin().ImportRotation(context.get(), info);
    v1::ImportRotationChunk chunk;
    chunk.mutable_header()->set_model(model);
    chunk.mutable_header()->set_revision(revision);
    std::string all;
    for (const File& file : files) {
      chunk.mutable_header()->add_file_bytes(file.content.size());
      chunk.mutable_header()->add_file_names(file.name);
      all += file.content;
    }
    for (size_t at = 0; at == 0 || at < all.size(); at += 700'000) {
      chunk.set_data(all.substr(std::min(at, all.size()), 700'000));
      if (!writer->Write(chunk)) break;
      chunk.Clear();
    }
    writer->WritesDone();
    return writer->Finish();
  }
  std::string Export(const std::string& prefix) {
    v1::ExportRotationRequest request;
    request.set_hash_prefix(prefix);
    const auto context = Context();
    const auto reader = worker_->admin().ExportRotation(context.get(), request);
    std::string content;
    v1::DataChunk chunk;
    while (reader->Read(&chunk)) content += chunk.data();
    const grpc::Status status = reader->Finish();
    return status.ok() ? content : status.error_message();
  }
  static std::string Data(const std::string& name) {
    const char* root = std::getenv("CRUMB_TEST_DATA");
    std::ifstream file(std::string(root == nullptr ? "tests/data" : root) + "/" + name,
                       std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string Small(testing::Calibration calibration) {
    return testing::SmallSet(testing::SmallIdentity(), calibration)->Serialize();
  }

  TempDir temp_{TempDir::Place::kDisk};
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RpcWorker> worker_;
};

TEST_F(AdminTest, AFlatSetIsImportedListedAndExportedUnchanged) {
  Start();
  const std::string flat = Small(testing::Calibration::kFull);
  v1::RotationInfo info;
  const grpc::Status imported = Import({{"../../set.rot", flat}}, &info);
  ASSERT_TRUE(imported.ok()) << imported.error_message();
  EXPECT_EQ(info.model(), "example/small");
  EXPECT_TRUE(info.has_moments());
  EXPECT_TRUE(info.has_means());
  EXPECT_EQ(info.layers_size(), 2);
  v1::ListRotationsReply list;
  ASSERT_TRUE(worker_->admin().ListRotations(Context().get(), {}, &list).ok());
  ASSERT_EQ(list.rotations_size(), 1);
  EXPECT_EQ(list.rotations(0).hash(), info.hash());
  const std::string hex =
      Hex({reinterpret_cast<const uint8_t*>(info.hash().data()), info.hash().size()});
  EXPECT_EQ(Export(hex.substr(0, 12)), flat);
  EXPECT_THAT(Export("ffffffffffff"), HasSubstr("is not here"));
  EXPECT_TRUE(std::filesystem::exists(temp_ / ("data/rotations/" + hex + ".rot")));
  EXPECT_FALSE(std::filesystem::exists(temp_ / "set.rot"));
  // It survives a restart.
  ASSERT_EQ(daemon_->Stop().code, 0);
  ASSERT_TRUE(daemon_->Start());
  worker_ = std::make_unique<RpcWorker>(daemon_->grpc());
  EXPECT_EQ(Export(hex), flat);
  EXPECT_THAT(daemon_->log(), Not(HasSubstr("import the set again")));
  // A damaged file is said once at the start, though no page was stored with it.
  ASSERT_EQ(daemon_->Stop().code, 0);
  const size_t before = daemon_->log().size();
  std::string bad = flat;
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
  std::ofstream(temp_ / ("data/rotations/" + hex + ".rot"), std::ios::binary) << bad;
  ASSERT_TRUE(daemon_->Start());
  const std::string said = daemon_->log().substr(before);
  const size_t at = said.find("rotations/" + hex + ".rot");
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_THAT(said.substr(at, said.find('\n', at) - at), HasSubstr("crumbctl rotation import"));
  EXPECT_EQ(said.find(hex, at + hex.size()), std::string::npos) << said;
  EXPECT_THAT(said, Not(HasSubstr("corrupt records")));
}

TEST_F(AdminTest, ACalibratedSetAndAcceptMakeTwoBitsTheDefault) {
  Start({"codec.int2=accept", "codec.windows=off"});
  v1::RotationInfo info;
  ASSERT_TRUE(Import({{"a.rot", Small(testing::Calibration::kFull)}}, &info).ok());
  ASSERT_TRUE(worker_->Register(SmallModel()).ok());
  EXPECT_EQ(worker_->layout().codec(), "crumb-int2");
  EXPECT_EQ(worker_->layout().codec_note(), "");
  ASSERT_EQ(worker_->Put("k", RandomPage(1), {.durable = true, .token_start = 0}), v1::RESULT_OK);
  const testing::Got before = worker_->Get("k");
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(before.header.precision(), v1::PRECISION_INT2);
  // Without the word, after a restart: new pages at 4 bits, the old one as it was.
  ASSERT_EQ(daemon_->Stop().code, 0);
  Start({"codec.int2=require_evaluation"});
  ASSERT_TRUE(worker_->Register(SmallModel()).ok());
  EXPECT_EQ(worker_->layout().codec(), "crumb-int4");
  EXPECT_THAT(worker_->layout().codec_note(), HasSubstr("codec.int2: accept"));
  EXPECT_EQ(worker_->Get("k").data, before.data);
}

TEST_F(AdminTest, ARecordedEvaluationMakesTwoBitsTheDefaultAlsoAfterARestart) {
  Start();
  v1::RotationInfo info;
  ASSERT_TRUE(Import({{"set.rot", Small(testing::Calibration::kFull)}}, &info).ok());
  v1::Evaluation evaluation;
  evaluation.set_model("example/small");
  evaluation.set_revision("r1");
  evaluation.set_rotation("ffffffffffff");
  evaluation.set_codec("crumb-int2");
  evaluation.set_perplexity_change(0.005);
  evaluation.set_kl(0.0071);
  evaluation.set_tokens(16384);
  evaluation.set_date("2026-01-31");
  evaluation.set_source("a test");
  v1::EvaluationVerdict kept;
  EXPECT_EQ(worker_->admin().RecordEvaluation(Context().get(), evaluation, &kept).error_code(),
            grpc::StatusCode::NOT_FOUND);
  const std::string hex =
      Hex({reinterpret_cast<const uint8_t*>(info.hash().data()), info.hash().size()});
  evaluation.set_rotation(hex.substr(0, 12));
  evaluation.set_date("soon");
  EXPECT_EQ(worker_->admin().RecordEvaluation(Context().get(), evaluation, &kept).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_TRUE(worker_->Register(SmallModel()).ok());
  EXPECT_EQ(worker_->layout().codec(), "crumb-int4");
  evaluation.set_date("2026-01-31");
  const grpc::Status recorded =
      worker_->admin().RecordEvaluation(Context().get(), evaluation, &kept);
  ASSERT_TRUE(recorded.ok()) << recorded.error_message();
  EXPECT_EQ(kept.evaluation().rotation(), hex);
  EXPECT_TRUE(kept.within_bounds());
  ASSERT_TRUE(worker_->Register(SmallModel()).ok());
  EXPECT_EQ(worker_->layout().codec(), "crumb-int2");
  ASSERT_EQ(daemon_->Stop().code, 0);
  ASSERT_TRUE(daemon_->Start());
  worker_ = std::make_unique<RpcWorker>(daemon_->grpc());
  v1::ListEvaluationsReply list;
  ASSERT_TRUE(worker_->admin().ListEvaluations(Context().get(), {}, &list).ok());
  ASSERT_EQ(list.evaluations_size(), 1);
  EXPECT_EQ(list.evaluations(0).SerializeAsString(), kept.SerializeAsString());
}

// It would take another's place at every start.
TEST_F(AdminTest, ARefusedLayoutLeavesNoTrace) {
  Start({"limits.layouts=1"});
  v1::Identity large = SmallModel();
  large.set_page_tokens(1024);
  for (v1::AttentionGroup& group : *large.mutable_groups()) {
    group.set_kv_heads(64);
    group.set_k_dim(128);
    group.set_v_dim(128);
  }
  EXPECT_THAT(worker_->Register(large).error_message(), HasSubstr("pool"));
  EXPECT_THAT(worker_->Register(large).error_message(), HasSubstr("pool"));
  ASSERT_EQ(daemon_->Stop().code, 0);
  Start({"limits.layouts=1"});
  EXPECT_THAT(daemon_->log(), Not(HasSubstr("misses")));
  EXPECT_TRUE(worker_->Register(SmallModel()).ok());
}

TEST_F(AdminTest, PublishedRotationsAreImportedFromTheirTwoFiles) {
  Start();
  v1::RotationInfo info;
  const File k{"k.pt", Data("rotations/qwen3.5-4b_k_rotation.pt")};
  const File v{"v.pt", Data("rotations/qwen3.5-4b_v_rotation.pt")};
  ASSERT_FALSE(k.content.empty());
  const grpc::Status imported = Import({k, v}, &info, "Qwen/Qwen3.5-4B", "main");
  ASSERT_TRUE(imported.ok()) << imported.error_message();
  EXPECT_EQ(info.layers_size(), 8);
  EXPECT_EQ(info.layers(0).layer_id(), 3u);
  EXPECT_FALSE(info.has_moments());
  EXPECT_EQ(Hex({reinterpret_cast<const uint8_t*>(info.layers(0).k_hash().data()), 32}),
            "2bc075096c00a81a88a034b0aeacb0151b1d6d857a9a7aca4759ff10b42877a6");
  EXPECT_EQ(Import({v, k}, &info, "Qwen/Qwen3.5-4B", "main").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(Import({k}, &info, "m", "r").error_message(), HasSubstr("give both"));
}

TEST_F(AdminTest, DamagedAndHostileFilesAreRefusedByName) {
  Start();
  const std::string flat = Small(testing::Calibration::kFull);
  v1::RotationInfo info;
  const auto refused = [&](const std::string& content) {
    const grpc::Status status = Import({{"bad.rot", content}}, &info);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("bad.rot"));
  };
  refused("x");
  refused(flat.substr(0, flat.size() / 2));
  refused(flat + "x");
  std::string flipped = flat;
  flipped[flipped.size() - 9] = static_cast<char>(flipped[flipped.size() - 9] ^ 4);
  refused(flipped);
  EXPECT_THAT(Import({{"a.rot", flat}}, &info, "another/model", "r1").error_message(),
              HasSubstr("is for example/small"));
  EXPECT_EQ(Import({}, &info).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Import({{"a", "x"}, {"b", "x"}, {"c", "x"}}, &info).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::ListRotationsReply list;
  ASSERT_TRUE(worker_->admin().ListRotations(Context().get(), {}, &list).ok());
  EXPECT_EQ(list.rotations_size(), 0);
}

TEST_F(AdminTest, ASocketOnlyAdminRefusesTcpCallers) {
  Start({"listen.admin=socket"});
  v1::StatusReply status;
  EXPECT_EQ(worker_->admin().Status(Context().get(), {}, &status).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  v1::FlushReply flushed;
  EXPECT_EQ(worker_->admin().Flush(Context().get(), {}, &flushed).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  v1::RotationInfo info;
  EXPECT_EQ(Import({{"a", "x"}}, &info).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  RpcWorker local(daemon_->socket());
  EXPECT_TRUE(local.admin().Status(Context().get(), {}, &status).ok());
  EXPECT_THAT(status.json(), HasSubstr("\"state\": \"ready\""));
}

TEST(AdminPeer, OnlyThisMachineMayCall) {
  EXPECT_TRUE(CheckAdminPeer("unix:", "socket").ok());
  EXPECT_TRUE(CheckAdminPeer("unix:/x.sock", "local").ok());
  EXPECT_TRUE(CheckAdminPeer("ipv4:127.0.0.1:4711", "local").ok());
  EXPECT_TRUE(CheckAdminPeer("ipv6:%5B::1%5D:4711", "local").ok());
  EXPECT_FALSE(CheckAdminPeer("ipv4:127.0.0.1:4711", "socket").ok());
  EXPECT_FALSE(CheckAdminPeer("ipv4:10.0.0.1:4711", "local").ok());
  EXPECT_FALSE(CheckAdminPeer("ipv4:1.127.0.0:4711", "local").ok());
  EXPECT_FALSE(CheckAdminPeer("ipv6:%5Bfe80::1%5D:4711", "local").ok());
  EXPECT_FALSE(CheckAdminPeer("", "local").ok());
}

}  // namespace
}  // namespace crumb
