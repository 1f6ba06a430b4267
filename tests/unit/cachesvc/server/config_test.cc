// Configuration: every key, every way to get one wrong. No file is read, no environment.
#include "cachesvc/server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>

#include "cachesvc/server/config_file.h"
#include "cachesvc/server/config_schema.h"
#include "tests/unit/cachesvc/server/fake_machine.h"

namespace crumb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ConfigInputs File(const std::string& text) {
  ConfigInputs inputs;
  inputs.file_name = "c.yaml";
  inputs.file_text = text;
  return inputs;
}

struct BadConfig {
  const char* name;
  const char* text;
  const char* place;   // the message starts with this
  const char* remedy;  // and holds this
};

const BadConfig kBad[] = {
    {"unknown_key", "max_local_disk_sise: 3\n", "c.yaml:1: max_local_disk_sise: unknown key",
     "unknown key: docs/configuration.md has every key"},
    {"short_unknown_key", "foo: 1\n", "c.yaml:1: foo: unknown key",
     "unknown key: docs/configuration.md has every key"},
    {"half_a_key", "pool:\n  dram: 1GiB\n", "c.yaml:2: pool.dram: unknown key",
     "did you mean pool.dram_bytes?"},
    {"misspelt_key", "pool:\n  dram_byte: 1GiB\n", "c.yaml:2: pool.dram_byte: unknown key",
     "did you mean pool.dram_bytes?"},
    {"key_in_wrong_section", "nvme:\n  dram_bytes: 1GiB\n", "c.yaml:2: nvme.dram_bytes: unknown",
     "pool.dram_bytes?"},
    {"section_as_value", "pool: 1GiB\n", "c.yaml:1: pool: is a section", "pool.dram_bytes"},
    {"empty_section", "pool: {}\n", "c.yaml: pool: an empty section", "remove it"},
    {"null_section", "pool:\n", "c.yaml:1: pool: no value", "remove the key"},
    {"value_as_section", "node:\n  a: 1\n", "c.yaml:2: node.a: unknown key", "did you mean node?"},
    {"empty_value", "nvme:\n  bytes:\n", "c.yaml:2: nvme.bytes: no value", "remove the key"},
    {"tilde_value", "nvme:\n  bytes: ~\n", "c.yaml:2: nvme.bytes: no value", "remove the key"},
    {"empty_string", "nvme:\n  bytes: \"\"\n", "c.yaml:2: nvme.bytes: \"\" is not a size", "25%"},
    {"words_for_size", "pool:\n  dram_bytes: 10 gigs\n", "c.yaml:2: pool.dram_bytes: \"10 gigs\"",
     "KiB, MiB, GiB or TiB"},
    {"underscore_number", "pool:\n  dram_bytes: 1_000\n", "c.yaml:2: pool.dram_bytes: \"1_000\"",
     "whole number"},
    {"negative", "pool:\n  dram_bytes: -1\n", "c.yaml:2: pool.dram_bytes: \"-1\"", "whole number"},
    {"exponent", "pool:\n  dram_bytes: 1e30\n", "c.yaml:2: pool.dram_bytes: \"1e30\"", "whole"},
    {"nan", "pool:\n  dram_bytes: .nan\n", "c.yaml:2: pool.dram_bytes: \".nan\"", "whole number"},
    {"nan_word", "nvme:\n  bytes: NaN\n", "c.yaml:2: nvme.bytes: \"NaN\"", "whole number"},
    {"infinity", "nvme:\n  bytes: .inf\n", "c.yaml:2: nvme.bytes: \".inf\"", "whole number"},
    {"decimal_unit", "pool:\n  dram_bytes: 10GB\n", "c.yaml:2: pool.dram_bytes: \"10GB\"",
     "write 10GiB"},
    {"lower_case_unit", "pool:\n  dram_bytes: 10gib\n", "c.yaml:2: pool.dram_bytes: \"10gib\"",
     "write 10GiB"},
    {"ratio_for_percent", "pool:\n  dram_bytes: 0.95\n", "c.yaml:2: pool.dram_bytes: \"0.95\"",
     "25%"},
    {"percent_over_100", "pool:\n  dram_bytes: 101%\n", "c.yaml:2: pool.dram_bytes: \"101%\"",
     "0% to 100%"},
    {"wraps_64_bits", "pool:\n  dram_bytes: 18446744073709551615TiB\n",
     "c.yaml:2: pool.dram_bytes: \"18446744073709551615TiB\"", "out of range"},
    {"over_64_bits", "pool:\n  dram_bytes: 99999999999999999999\n",
     "c.yaml:2: pool.dram_bytes:", "not a size"},
    {"zero_pool", "pool:\n  dram_bytes: 0\n", "c.yaml:2: pool.dram_bytes: \"0\"", "8MiB to 64TiB"},
    {"pool_over_memory", "pool:\n  dram_bytes: 17GiB\n", "c.yaml:2: pool.dram_bytes: 17GiB is over",
     "16GiB of memory"},
    {"pool_and_buffers_over_memory", "pool:\n  dram_bytes: 16GiB\n",
     "c.yaml:2: pool.dram_bytes: with limits.staging_bytes", "use smaller sizes"},
    {"no_cuda", "pool:\n  hbm_bytes: 1GiB\n", "c.yaml:2: pool.hbm_bytes: 1GiB: this build",
     "CRUMB_CUDA=ON"},
    {"no_cuda_percent", "pool:\n  hbm_bytes: 20%\n", "c.yaml:2: pool.hbm_bytes: 20%: this build",
     "or set auto"},
    {"hbm_word", "pool:\n  hbm_bytes: all\n", "c.yaml:2: pool.hbm_bytes: \"all\" is neither",
     "write auto"},
    {"hbm_unit", "pool:\n  hbm_bytes: 1GB\n", "c.yaml:2: pool.hbm_bytes: \"1GB\" is neither",
     "20%"},
    {"hbm_over_100_percent", "pool:\n  hbm_bytes: 101%\n", "c.yaml:2: pool.hbm_bytes: \"101%\"",
     "percentage"},
    {"hbm_tiny", "pool:\n  hbm_bytes: 1MiB\n", "c.yaml:2: pool.hbm_bytes: 1MiB is out of range",
     "8MiB to 64TiB, or 0"},
    {"gpu_far", "pool:\n  device: 64\n", "c.yaml:2: pool.device: \"64\"", "0 to 63"},
    {"codec_nowhere", "gpu:\n  codec_place: engine\n", "c.yaml:2: gpu.codec_place: \"engine\"",
     "auto, daemon, worker"},
    {"shared_pool", "gpu:\n  share_pool: trusted\n", "c.yaml:2: gpu.share_pool: \"trusted\"",
     "write off"},
    {"disk_over_volume", "nvme:\n  bytes: 101GiB\n", "c.yaml:2: nvme.bytes: 101GiB is over",
     "another nvme.path"},
    {"disk_percent_over_free", "nvme:\n  bytes: 60%\n", "c.yaml:2: nvme.bytes: 120GiB is over",
     "smaller size"},
    {"less_than_four_segments", "nvme:\n  bytes: 128MiB\n  segment_bytes: 64MiB\n",
     "c.yaml:2: nvme.bytes: 128MiB", "at least 256MiB"},
    {"tiny_segment", "nvme:\n  segment_bytes: 4096\n", "c.yaml:2: nvme.segment_bytes: \"4096\"",
     "1MiB to 256MiB"},
    {"huge_segment", "nvme:\n  segment_bytes: 1TiB\n", "c.yaml:2: nvme.segment_bytes: \"1TiB\"",
     "1MiB to 256MiB"},
    {"odd_segment", "nvme:\n  segment_bytes: 2097153\n", "c.yaml:2: nvme.segment_bytes: must be",
     "power of two"},
    {"relative_tier_path", "nvme:\n  path: cache\n", "c.yaml:2: nvme.path: \"cache\"",
     "absolute path"},
    {"tier_path_is_a_file", "nvme:\n  path: /data/file\n", "c.yaml:2: nvme.path: /data/file",
     "name a directory"},
    {"tier_path_is_a_pipe", "nvme:\n  path: /data/pipe\n", "c.yaml:2: nvme.path: /data/pipe",
     "name a directory"},
    {"tier_path_missing", "nvme:\n  path: /mnt/none/x\n", "c.yaml:2: nvme.path: /mnt/none",
     "mount its volume"},
    {"tier_path_no_permission", "nvme:\n  path: /secret\n", "c.yaml:2: nvme.path: /secret",
     "permissions"},
    {"relative_data_dir", "data_dir: ./x\n", "c.yaml:1: data_dir: \"./x\"", "absolute path"},
    {"data_dir_is_a_file", "data_dir: /data/file\n", "c.yaml:1: data_dir: /data/file",
     "name a directory"},
    {"data_dir_parent_missing", "data_dir: /nowhere/x\n", "c.yaml:1: data_dir: /nowhere",
     "create it"},
    {"port_too_large", "listen:\n  grpc: 127.0.0.1:70000\n", "c.yaml:2: listen.grpc:", "65535"},
    {"port_missing", "listen:\n  grpc: 127.0.0.1\n", "c.yaml:2: listen.grpc:", "HOST:PORT"},
    {"port_empty", "listen:\n  http: \"127.0.0.1:\"\n", "c.yaml:2: listen.http:", "HOST:PORT"},
    {"port_negative", "listen:\n  http: 127.0.0.1:-1\n", "c.yaml:2: listen.http:", "HOST:PORT"},
    {"host_missing", "listen:\n  http: \":7412\"\n", "c.yaml:2: listen.http:", "HOST:PORT"},
    {"host_name", "listen:\n  grpc: example.org:1\n", "c.yaml:2: listen.grpc:", "IP address"},
    {"bad_v6", "listen:\n  grpc: \"[::zz]:1\"\n", "c.yaml:2: listen.grpc:", "IP address"},
    {"open_grpc", "listen:\n  grpc: 0.0.0.0:7411\n", "c.yaml:2: listen.grpc: \"0.0.0.0:7411\"",
     "listen.insecure: true"},
    {"open_http_v6", "listen:\n  http: \"[::]:7412\"\n", "c.yaml:2: listen.http: \"[::]:7412\"",
     "listen.insecure: true"},
    {"open_ucx", "ucx:\n  net_devices: eth0\n",
     "c.yaml:2: ucx.net_devices:", "listen.insecure: true"},
    {"same_port", "listen:\n  grpc: 127.0.0.1:9\n  http: 127.0.0.1:9\n",
     "c.yaml:3: listen.http:", "another port"},
    {"no_door", "listen:\n  grpc: \"off\"\n  socket: \"off\"\n", "c.yaml:3: listen.socket: is off",
     "turn one of them on"},
    {"relative_socket", "listen:\n  socket: crumb.sock\n", "c.yaml:2: listen.socket:", "absolute"},
    {"choice", "codec:\n  int2: maybe\n", "c.yaml:2: codec.int2: \"maybe\"",
     "require_evaluation, accept"},
    {"effort", "codec:\n  effort: BEST\n", "c.yaml:2: codec.effort: \"BEST\"", "draft, normal"},
    {"backend", "codec:\n  backend: sse\n", "c.yaml:2: codec.backend: \"sse\"", "auto, reference"},
    {"backend_not_here", "codec:\n  backend: avx512\n", "c.yaml:2: codec.backend: avx512 is not",
     "use auto, or one of reference, avx2"},
    {"threads_zero", "codec:\n  threads: 0\n", "c.yaml:2: codec.threads: \"0\"", "1 to 256"},
    {"threads_unit", "codec:\n  threads: 4 cores\n", "c.yaml:2: codec.threads: \"4 cores\"",
     "digits only"},
    {"flag", "pool:\n  hugepages: yes\n", "c.yaml:2: pool.hugepages: \"yes\"", "true or false"},
    {"grace_without_unit", "shutdown:\n  grace: 5\n", "c.yaml:2: shutdown.grace: \"5\"", "5s"},
    {"grace_zero", "shutdown:\n  grace: 0s\n", "c.yaml:2: shutdown.grace: \"0s\"", "100ms to 1h"},
    {"grace_unit", "shutdown:\n  grace: 5 sec\n", "c.yaml:2: shutdown.grace: \"5 sec\"", "5s"},
    {"cluster", "cluster:\n  mode: etcd\n", "c.yaml:2: cluster.mode: \"etcd\"", "write single"},
    {"per_peer_over_all", "limits:\n  requests: 8\n  requests_per_peer: 9\n",
     "c.yaml:3: limits.requests_per_peer:", "lower it"},
    {"deadline_order", "limits:\n  deadline: 20m\n", "c.yaml:2: limits.deadline:", "lower it"},
    {"duplicate_key", "node: a\nnode: b\n", "c.yaml:2: node: given twice", "line 1"},
    {"duplicate_nested", "nvme:\n  bytes: 0\n  path: /data\n  bytes: 0\n",
     "c.yaml:4: nvme.bytes: given twice", "line 2"},
    {"duplicate_section", "pool:\n  hugepages: true\nnode: n\npool:\n  dram_bytes: 1GiB\n",
     "c.yaml:4: pool: given twice", "remove one"},
    {"bom", "\xef\xbb\xbfnode: a\n", "c.yaml:1: node: the file starts with a byte order mark",
     "without BOM"},
    {"utf16", "\xff\xfen", "c.yaml:1: n: the file starts with a byte order mark", "UTF-8"},
    {"latin1", "node: caf\xe9\n", "c.yaml:1: not UTF-8", "save the file"},
    {"crlf", "node: a\r\ndata_dir: /data\r\n", "c.yaml:1: node: Windows line ending", "dos2unix"},
    {"tab", "pool:\n\tdram_bytes: 1GiB\n", "c.yaml:2: dram_bytes: tab character", "spaces"},
    {"control", "node: a\x01\n", "c.yaml:1: control character", "remove it"},
    {"escaped_control", "node: \"a\\u0007\"\n", "c.yaml:1: node: the value has a control",
     "remove it"},
    {"tier_path_twice", "nvme:\n  path: [/data, /mnt, /data/]\n",
     "c.yaml:2: nvme.path: \"/data\" is named twice", "each place once"},
    {"tier_path_relative_in_list", "nvme:\n  path:\n    - /data\n    - mnt\n",
     "c.yaml:2: nvme.path:", "absolute path"},
    {"tier_paths_too_many",
     "nvme:\n  path: [/1, /2, /3, /4, /5, /6, /7, /8, /9, /10, /11, /12, /13, /14, /15, /16, "
     "/17]\n",
     "c.yaml:2: nvme.path: 17 paths are too many", "16 are possible"},
    {"tier_path_empty_list", "nvme:\n  path: []\n", "c.yaml:2: nvme.path: \"\"", "absolute path"},
    {"tier_path_null_item", "nvme:\n  path: [/data, ~]\n", "c.yaml:2: nvme.path: an empty item",
     "remove it"},
    {"tier_path_list_in_list", "nvme:\n  path: [[/data]]\n", "c.yaml:2: nvme.path: takes one",
     "not a list"},
    {"tier_path_section_in_list", "nvme:\n  path: [{a: /data}]\n",
     "c.yaml:2: nvme.path: a list takes", "plain values"},
    {"one_of_the_paths_is_a_file", "nvme:\n  path: [/data, /data/file]\n",
     "c.yaml:2: nvme.path: /data/file", "name a directory"},
    {"one_of_the_paths_is_missing", "nvme:\n  path: [/data, /mnt/none/x]\n",
     "c.yaml:2: nvme.path: /mnt/none", "mount its volume"},
    {"parts_over_the_volume", "nvme:\n  path: [/data, /data/b]\n  bytes: 101GiB\n",
     "c.yaml:3: nvme.bytes: 51712MiB", "one of 2 parts of 101GiB"},
    {"less_than_four_segments_and_labels",
     "nvme:\n  path: [/data, /data/b]\n  bytes: 256MiB\n  segment_bytes: 64MiB\n",
     "c.yaml:3: nvme.bytes: 256MiB over 2 members", "at least 260MiB"},
    {"list", "listen:\n  grpc: [127.0.0.1:1, 127.0.0.1:2]\n", "c.yaml:2: listen.grpc: takes one",
     "not a list"},
    {"root_list", "- node: a\n", "c.yaml:1: takes one value", "not a list"},
    {"root_scalar", "hello\n", "c.yaml:1: expected \"key: value\"", "hello"},
    {"anchor", "node: &a x\n", "c.yaml:1: anchors", "repeat the value"},
    {"alias", "node: &a x\ndata_dir: *a\n", "c.yaml:1: anchors", "repeat the value"},
    {"two_documents", "node: a\n---\nnode: b\n", "c.yaml:1: more than one document", "---"},
    {"broken_yaml", "node: [a\n", "c.yaml:", ""},
    {"bad_indent", "pool:\n  dram_bytes: 1GiB\n hugepages: true\n", "c.yaml:", "not valid YAML"},
};

TEST(Config, EveryBadFileIsOneLineWithPlaceKeyAndRemedy) {
  for (const BadConfig& bad : kBad) {
    SCOPED_TRACE(bad.name);
    const auto config = LoadConfig(File(bad.text), FakeMachine());
    ASSERT_FALSE(config.ok());
    const std::string message(config.status().message());
    EXPECT_THAT(message, StartsWith(bad.place));
    EXPECT_THAT(message, HasSubstr(bad.remedy));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
  }
}

TEST(Config, TheTableHasFortyAndMoreDifferentFaults) {
  std::set<std::string> texts;
  for (const BadConfig& bad : kBad) texts.insert(bad.text);
  EXPECT_EQ(texts.size(), std::size(kBad));
  EXPECT_GE(texts.size(), 40u);
}

TEST(Config, NoFileMeansDefaults) {
  const auto config = LoadConfig({}, FakeMachine());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->node, "node7");
  EXPECT_EQ(config->data_dir, "/var/lib/crumb");
  EXPECT_EQ(config->listen.grpc, "127.0.0.1:7411");
  EXPECT_EQ(config->listen.http, "127.0.0.1:7412");
  EXPECT_EQ(config->listen.socket, "/run/crumb/crumbd.sock");
  EXPECT_EQ(config->pool.dram_bytes, kFakeGiB);
  EXPECT_THAT(config->nvme.paths, ElementsAre("/var/lib/crumb/nvme"));
  EXPECT_EQ(config->nvme.bytes, 4 * kFakeGiB);
  EXPECT_EQ(config->codec.int2, "require_evaluation");
  EXPECT_EQ(config->codec.threads, 7u);
  EXPECT_EQ(config->codec.backend, "auto");
  EXPECT_EQ(config->shutdown_grace_us, 5'000'000u);
  EXPECT_TRUE(config->warnings.empty());
}

TEST(Config, AnEmptyFileOrEmptyMapMeansDefaults) {
  for (const char* text : {"", "\n", "# nothing\n", "{}\n", "---\n"}) {
    EXPECT_TRUE(LoadConfig(File(text), FakeMachine()).ok()) << text;
  }
}

TEST(Config, DefaultsFollowASmallMachine) {
  Machine machine = FakeMachine();
  machine.memory_bytes = kFakeGiB;
  machine.cores = 1;
  machine.volume = [](const std::string&) -> absl::StatusOr<Volume> {
    return Volume{.total_bytes = 48 << 20, .available_bytes = 48 << 20};
  };
  const auto config = LoadConfig({}, machine);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pool.dram_bytes, kFakeGiB / 2);
  EXPECT_EQ(config->codec.threads, 1u);
  EXPECT_EQ(config->nvme.bytes, 0u);
  ASSERT_EQ(config->warnings.size(), 1u);
  EXPECT_THAT(config->warnings[0], HasSubstr("no NVMe tier"));
}

TEST(Config, UserDefaultsComeFromTheEnvironment) {
  Machine machine = FakeMachine();
  machine.root = false;
  ConfigInputs inputs;
  inputs.environment = {{"XDG_RUNTIME_DIR", "/run/user/7"}, {"HOME", "/home/u"}};
  auto config = LoadConfig(inputs, machine);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->listen.socket, "/run/user/7/crumb/crumbd.sock");
  EXPECT_EQ(config->data_dir, "/home/u/.local/state/crumb");
  inputs.environment = {{"XDG_STATE_HOME", "/state"}};
  config = LoadConfig(inputs, machine);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->data_dir, "/state/crumb");
  const auto homeless = LoadConfig({}, machine);
  ASSERT_FALSE(homeless.ok());
  EXPECT_THAT(std::string(homeless.status().message()), StartsWith("data_dir: no default"));
}

TEST(Config, LaterSourcesOverrideEarlierOnes) {
  ConfigInputs inputs = File("node: file\npool:\n  dram_bytes: 1GiB\ncodec:\n  threads: 2\n");
  inputs.environment = {{"CRUMB_NODE", "env"},
                        {"CRUMB_POOL__DRAM_BYTES", "2GiB"},
                        {"CRUMB_SERVER", "unix:/x"},
                        {"PATH", "/bin"}};
  inputs.sets = {"pool.dram_bytes=25%"};
  const auto config = LoadConfig(inputs, FakeMachine());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->node, "env");
  EXPECT_EQ(config->pool.dram_bytes, 4 * kFakeGiB);
  EXPECT_EQ(config->codec.threads, 2u);
}

TEST(Config, FaultsOfEnvironmentAndFlagsNameTheirSource) {
  const auto message = [](const ConfigInputs& inputs) {
    return std::string(LoadConfig(inputs, FakeMachine()).status().message());
  };
  ConfigInputs inputs;
  inputs.environment = {{"CRUMB_POOL__DRAM_BITES", "1GiB"}};
  EXPECT_THAT(message(inputs), StartsWith("CRUMB_POOL__DRAM_BITES in the environment: "
                                          "pool.dram_bites: unknown key: did you mean "
                                          "pool.dram_bytes?"));
  inputs.environment = {{"CRUMB_POOL_DRAM_BYTES", "1GiB"}};
  EXPECT_THAT(message(inputs), HasSubstr("write CRUMB_POOL__DRAM_BYTES (two underscores)"));
  inputs.environment = {{"CRUMB_CODEC__THREADS", "many"}};
  EXPECT_THAT(message(inputs), StartsWith("CRUMB_CODEC__THREADS in the environment: "
                                          "codec.threads: \"many\""));
  inputs.environment.clear();
  inputs.sets = {"codec.threads=0"};
  EXPECT_THAT(message(inputs), StartsWith("--set: codec.threads: \"0\" is out of range"));
  inputs.sets = {"codec.threads"};
  EXPECT_THAT(message(inputs), HasSubstr("--set KEY=VALUE"));
  inputs.sets = {"=3"};
  EXPECT_THAT(message(inputs), HasSubstr("--set KEY=VALUE"));
  inputs.sets = {"codec.treads=3"};
  EXPECT_THAT(message(inputs), HasSubstr("did you mean codec.threads?"));
}

TEST(Config, InsecureIsAllowedLoudly) {
  const auto config = LoadConfig(
      File("listen: {grpc: \"0.0.0.0:7411\", insecure: true}\nucx: {net_devices: eth0}\n"),
      FakeMachine());
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->warnings.size(), 2u);
  EXPECT_THAT(config->warnings[0], HasSubstr("WITHOUT AUTHENTICATION"));
}

TEST(Config, BlockDevicesAndNoTierAreFine) {
  EXPECT_TRUE(LoadConfig(File("nvme: {path: /data/disk, bytes: 500GiB}\n"), FakeMachine()).ok());
  const auto off = LoadConfig(File("nvme: {bytes: 0}\n"), FakeMachine());
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_EQ(off->nvme.bytes, 0u);
}

TEST(Config, PrintedConfigurationReadsBackTheSame) {
  const auto first =
      LoadConfig(File("node: \"a \\\"b\\\" \\\\c\"\npool: {dram_bytes: 3MiB}\n"), FakeMachine());
  EXPECT_FALSE(first.ok());  // under the minimum
  const auto config = LoadConfig(
      File("node: \"a \\\"b\\\" \\\\c: #d\"\npool: {dram_bytes: 12345678, hugepages: true}\n"
           "nvme: {bytes: 10%}\nshutdown: {grace: 1500ms}\nlog: {format: json}\n"),
      FakeMachine());
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string printed = PrintConfig(*config);
  const auto again = LoadConfig(File(printed), FakeMachine());
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << printed;
  EXPECT_EQ(PrintConfig(*again), printed);
  EXPECT_EQ(again->node, "a \"b\" \\c: #d");
  EXPECT_THAT(printed, HasSubstr("  dram_bytes: 12345678\n"));
  EXPECT_THAT(printed, HasSubstr("  bytes: 20GiB\n"));
  EXPECT_THAT(printed, HasSubstr("  grace: 1500ms\n"));
  for (const KeySpec& key : ConfigKeys()) {
    const std::string name = key.name;
    EXPECT_THAT(printed, HasSubstr(name.substr(name.rfind('.') + 1) + ": ")) << name;
  }
}

TEST(Config, HbmIsAutomaticUnlessSomebodySaysOtherwise) {
  const auto none = LoadConfig({}, FakeMachine());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->pool.hbm.wish, HbmWish::kAuto);
  EXPECT_TRUE(none->gpu.enabled);
  const auto off = LoadConfig(File("pool: {hbm_bytes: 0}\n"), FakeMachine());
  ASSERT_TRUE(off.ok()) << "also without CUDA: " << off.status();
  EXPECT_EQ(off->pool.hbm.wish, HbmWish::kBytes);
  EXPECT_EQ(off->pool.hbm.value, 0u);
  Machine machine = FakeMachine();
  machine.built_with_cuda = true;
  const auto size = LoadConfig(File("pool: {hbm_bytes: 20GiB, device: 3}\n"), machine);
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(size->pool.hbm.value, 20 * kFakeGiB) << "more than this machine's other memory";
  EXPECT_EQ(size->pool.device, 3u);
  const auto percent = LoadConfig(File("pool: {hbm_bytes: 15%}\n"), machine);
  ASSERT_TRUE(percent.ok()) << percent.status();
  EXPECT_EQ(percent->pool.hbm.wish, HbmWish::kPercent);
  EXPECT_EQ(percent->pool.hbm.value, 15u);
  EXPECT_THAT(PrintConfig(*percent), HasSubstr("  hbm_bytes: \"15%\"\n"));
  const auto both = LoadConfig(File("pool: {hbm_bytes: 1GiB}\ngpu: {enabled: false}\n"), machine);
  EXPECT_THAT(std::string(both.status().message()),
              HasSubstr("pool.hbm_bytes: 1GiB needs the GPU, and gpu.enabled is false"));
}

TEST(Config, SizesAndDurationsRoundTrip) {
  for (const uint64_t bytes : {0ull, 1ull, 1023ull, 1024ull, 1536ull, 1ull << 30, 3ull << 40}) {
    EXPECT_EQ(*ParseSize(FormatSize(bytes), 0), bytes);
    EXPECT_EQ(*ParseDuration(FormatDuration(bytes)), bytes);
  }
  EXPECT_EQ(*ParseSize("10 GiB", 0), 10 * kFakeGiB);
  EXPECT_EQ(*ParseSize("100%", std::numeric_limits<uint64_t>::max()),
            std::numeric_limits<uint64_t>::max());
  EXPECT_FALSE(ParseDuration("9999999999999999h").ok());
}

TEST(Config, HugeOrHostileFilesEndInAnErrorAtOnce) {
  const std::string deep(20'000, '{');
  EXPECT_FALSE(LoadConfig(File(deep), FakeMachine()).ok());
  EXPECT_FALSE(LoadConfig(File(std::string(20'000, '[')), FakeMachine()).ok());
  EXPECT_FALSE(LoadConfig(File(std::string(kConfigFileBytesMax + 1, '#')), FakeMachine()).ok());
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "k" + std::to_string(i) + ": 1\n";
  EXPECT_FALSE(LoadConfig(File(many), FakeMachine()).ok());
  EXPECT_FALSE(LoadConfig(File("node: a\n" + std::string(1, '\0')), FakeMachine()).ok());
}

std::string Document(const std::string& name) {
  const char* data = std::getenv("CRUMB_TEST_DATA");
  std::ifstream file(std::string(data == nullptr ? "tests/data" : data) + "/../../docs/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Documents, EveryKeyIsDescribedWithItsDefault) {
  const std::string text = Document("configuration.md");
  for (const KeySpec& key : ConfigKeys()) {
    const std::string row = std::string("| `") + key.name + "` | ";
    const size_t at = text.find(row);
    ASSERT_NE(at, std::string::npos) << key.name;
    const std::string rest = text.substr(at + row.size(), text.find('\n', at) - at - row.size());
    if (*key.fallback != '\0') {
      EXPECT_THAT(rest, StartsWith(std::string("`") + key.fallback + "` | ")) << key.name;
    }
  }
}

TEST(Documents, TheExampleIsAValidConfiguration) {
  const std::string text = Document("examples/crumbd.yaml");
  ASSERT_FALSE(text.empty());
  const auto config = LoadConfig(File(text), FakeMachine());
  EXPECT_TRUE(config.ok()) << config.status();
}

TEST(HostPort, ParsesAndFormats) {
  EXPECT_EQ(FormatHostPort(*ParseHostPort("localhost:0")), "127.0.0.1:0");
  EXPECT_EQ(FormatHostPort(*ParseHostPort("[::1]:80")), "[::1]:80");
  EXPECT_TRUE(ParseHostPort("127.3.2.1:1")->loopback);
  EXPECT_FALSE(ParseHostPort("10.0.0.1:1")->loopback);
  EXPECT_FALSE(ParseHostPort("::1:80").ok());
}

TEST(Machine, CgroupFilesParse) {
  EXPECT_EQ(ParseCgroupLimit("max\n"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ParseCgroupLimit("1048576\n"), 1048576u);
  EXPECT_EQ(ParseCgroupLimit(""), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ParseCgroupCores("150000 100000\n"), 2u);
  EXPECT_EQ(ParseCgroupCores("max 100000\n"), std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(ParseCgroupCores("5"), std::numeric_limits<uint32_t>::max());
}

TEST(ConfigTest, SeveralPathsOfTheDiskTierAreAListInEverySource) {
  const auto paths = [](ConfigInputs inputs) {
    const absl::StatusOr<Config> config = LoadConfig(inputs, FakeMachine());
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->nvme.paths : std::vector<std::string>{};
  };
  const auto two = ElementsAre("/data/a", "/data/b");
  EXPECT_THAT(paths(File("nvme:\n  path: [/data/a, /data/b/]\n")), two);
  EXPECT_THAT(paths(File("nvme:\n  path:\n    - /data/a\n    - \"/data/b\"\n")), two);
  EXPECT_THAT(paths(File("nvme:\n  path: /data/a,/data/b\n")), two);
  ConfigInputs inputs;
  inputs.environment = {{"CRUMB_NVME__PATH", "/data/a, /data/b"}};
  EXPECT_THAT(paths(inputs), two);
  inputs.sets = {"nvme.path=/data/c,/data/d,/data/e"};
  EXPECT_THAT(paths(inputs), ElementsAre("/data/c", "/data/d", "/data/e"));
  // One path with a comma stays one.
  EXPECT_THAT(paths(File("nvme:\n  path: /data/a,b\n")), ElementsAre("/data/a,b"));
  EXPECT_THAT(paths(File("nvme:\n  path: [/data/a]\n")), ElementsAre("/data/a"));
}

TEST(ConfigTest, APrintedListReadsBackAsItIs) {
  const absl::StatusOr<Config> config =
      LoadConfig(File("nvme:\n  path: [/data/a, '/data/with \"quote\"']\n"), FakeMachine());
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string text = PrintConfig(*config);
  EXPECT_THAT(text, HasSubstr("path: [\"/data/a\", "));
  const absl::StatusOr<Config> again = LoadConfig(File(text), FakeMachine());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->nvme.paths, config->nvme.paths);
}

// 100 GiB are free on the one volume: two directories of it have no more than one.
TEST(ConfigTest, PathsOfOneVolumeShareItsRoom) {
  Machine machine = FakeMachine();
  const auto bytes = [&](const std::string& path, const std::string& size) {
    const absl::StatusOr<Config> config =
        LoadConfig(File("nvme:\n  path: " + path + "\n  bytes: " + size + "\n"), machine);
    return config.ok() ? config->nvme.bytes / kFakeGiB : 0;
  };
  EXPECT_EQ(bytes("[/data/a, /data/b]", "100GiB"), 100u);
  EXPECT_EQ(bytes("[/data/a, /data/b]", "102GiB"), 0u);
  EXPECT_EQ(bytes("[/data/a, /data/b]", "50%"), 100u);  // of 200 GiB
  machine.volume = [](const std::string& path) -> absl::StatusOr<Volume> {
    const uint64_t free = path == "/data/b" ? 40 : 100;  // volumes of their own
    return Volume{.total_bytes = 2 * free * kFakeGiB,
                  .available_bytes = free * kFakeGiB,
                  .id = static_cast<uint64_t>(path.back())};
  };
  EXPECT_EQ(bytes("[/data/a, /data/b]", "80GiB"), 80u);  // the smaller counts twice
  EXPECT_EQ(bytes("[/data/a, /data/b]", "82GiB"), 0u);
  EXPECT_EQ(bytes("[/data/a, /data/b]", "50%"), 80u);
  EXPECT_EQ(bytes("[/data/a, /data/c]", "200GiB"), 200u);
}

}  // namespace
}  // namespace crumb
