// pt_hashes FILE.pt...: one line per file: base name, layers, first layer's id, SHA-256 of the
// first layer's matrix. Exit 1 if a file cannot be read. For the bar rotation_hashes.
#include <cstdio>
#include <string>

#include "gpu/codec/rotation_import.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string path = argv[i];
    const auto file = crumb::LoadPtRotation(path);
    if (!file.ok()) {
      std::fprintf(stderr, "%s\n", std::string(file.status().message()).c_str());
      return 1;
    }
    const auto& [id, layer] = *file->layers.begin();
    const std::string hash = crumb::Hex(crumb::RotationSet::MatrixHash(layer.rotation));
    std::printf("%s %zu %u %s\n", path.substr(path.rfind('/') + 1).c_str(), file->layers.size(), id,
                hash.c_str());
  }
  return 0;
}
