// crumbd as a program: command line, configuration, signals, exit codes. The main thread waits for
// signals; everything else runs on others.
#ifndef CRUMB_CACHESVC_SERVER_APP_H_
#define CRUMB_CACHESVC_SERVER_APP_H_

namespace crumb {

inline constexpr int kExitOk = 0;
inline constexpr int kExitConfig = 2;  // configuration or start-up
inline constexpr int kExitFault = 70;  // our own
inline constexpr int kExitGpu = 71;    // a GPU is lost: start again, or look at the GPU

// Returns the exit code. Once per process.
int RunDaemon(int argc, char** argv);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_APP_H_
