// The raw peer over ucp. Must never check what it sends. One thread.
#include "tests/conformance/net/ucx_raw_peer.h"

#include <gtest/gtest.h>
#include <ucp/api/ucp.h>

#include <deque>

#include "cachesvc/base/bytes.h"
#include "cachesvc/net/frames.h"
#include "cachesvc/net/ucx_transport.h"

namespace crumb {
namespace {

class RawPeer final : public UcxRawPeer {
 public:
  explicit RawPeer(const std::string& tls) {
    ucp_config_t* config = nullptr;
    EXPECT_EQ(ucp_config_read(nullptr, nullptr, &config), UCS_OK);
    EXPECT_EQ(ucp_config_modify(config, "TLS", tls.c_str()), UCS_OK);
    EXPECT_EQ(ucp_config_modify(config, "NET_DEVICES", "lo"), UCS_OK);
    if (tls.find("posix") != std::string::npos) {
      EXPECT_EQ(ucp_config_modify(config, "MM_ERROR_HANDLING", "y"), UCS_OK);
      const std::string slots = std::to_string(kUcxFifoSlots);
      const std::string bytes = std::to_string(kUcxSegmentBytes);
      EXPECT_EQ(ucp_config_modify(config, "MM_FIFO_SIZE", slots.c_str()), UCS_OK);
      EXPECT_EQ(ucp_config_modify(config, "MM_SEG_SIZE", bytes.c_str()), UCS_OK);
    }
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA;
    EXPECT_EQ(ucp_init(&params, config, &context_), UCS_OK);
    ucp_config_release(config);
    ucp_worker_params_t worker_params = {};
    EXPECT_EQ(ucp_worker_create(context_, &worker_params, &worker_), UCS_OK);
    for (unsigned id = 8; id > 0; --id) {  // what the other side sends is not looked at
      ucp_am_handler_param_t handler = {};
      handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
      handler.id = id - 1;
      handler.cb = [](void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
        return UCS_OK;
      };
      EXPECT_EQ(ucp_worker_set_am_recv_handler(worker_, &handler), UCS_OK);
    }
  }
  ~RawPeer() override {
    if (endpoint_ != nullptr) {
      ucp_request_param_t param = {};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_EP_CLOSE_FLAG_FORCE;
      const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint_, &param);
      for (int i = 0; i < 1000; ++i) Progress();
      if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    }
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  std::string Hello(uint64_t cookie) override {
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    EXPECT_EQ(ucp_worker_get_address(worker_, &address, &bytes), UCS_OK);
    const std::string hello =
        EncodeHello({.cookie = cookie,
                     .queue_slots = kUcxFifoSlots,
                     .queue_bytes = kUcxSegmentBytes,
                     .process = {},
                     .address = {reinterpret_cast<const uint8_t*>(address), bytes}});
    ucp_worker_release_address(worker_, address);
    return hello;
  }

  uint64_t Connect(Bytes hello) override {
    const auto frame = ParseHello(hello);
    EXPECT_TRUE(frame.ok()) << frame.status();
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(frame->address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    EXPECT_EQ(ucp_ep_create(worker_, &params, &endpoint_), UCS_OK);
    return frame->cookie;
  }

  void Send(unsigned id, Bytes header, Bytes data, RawProtocol protocol) override {
    sent_.push_back({{header.begin(), header.end()}, {data.begin(), data.end()}});
    ucp_request_param_t param = {};
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.flags = protocol == RawProtocol::kEager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
    param.user_data = this;
    param.cb.send = [](void* request, ucs_status_t status, void* self) {
      static_cast<RawPeer*>(self)->Done(status);
      ucp_request_free(request);
    };
    const Message& message = sent_.back();
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(endpoint_, id, message.header.data(), message.header.size(),
                        message.data.data(), message.data.size(), &param);
    if (!UCS_PTR_IS_PTR(request)) Done(UCS_PTR_STATUS(request));
  }

  void Progress() override { ucp_worker_progress(worker_); }
  int done() const override { return done_; }
  int failed() const override { return failed_; }

 private:
  struct Message {
    std::vector<uint8_t> header;
    std::vector<uint8_t> data;
  };
  void Done(ucs_status_t status) {
    ++done_;
    if (status != UCS_OK) ++failed_;
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::deque<Message> sent_;
  int done_ = 0;
  int failed_ = 0;
};

}  // namespace

std::unique_ptr<UcxRawPeer> UcxRawPeer::Create(const std::string& tls) {
  return std::make_unique<RawPeer>(tls);
}

}  // namespace crumb
