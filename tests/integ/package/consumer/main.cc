// Uses the public headers alone: prints what the library says of a daemon that is not there.
#include <crumb/client.h>
#include <crumb/layout_file.h>

#include <cstdio>

int main() {
  crumb::client::LayoutSpec spec;
  const crumb::client::Status parsed = crumb::client::ParseLayout("nonsense: 1", "x.yaml", &spec);
  crumb::client::Options options;
  options.server = "unix:/nonexistent/crumbd.sock";
  std::unique_ptr<crumb::client::Client> client;
  const crumb::client::Status connected = crumb::client::Client::Connect(options, &client);
  std::printf("%s\n%s %s\n", parsed.message.c_str(), ToString(connected.code),
              connected.message.c_str());
  return parsed.code == crumb::client::Code::kInvalid &&
                 connected.code == crumb::client::Code::kUnavailable
             ? 0
             : 1;
}
