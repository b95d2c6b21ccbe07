#include "common/simt/microscope/symbols.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

namespace simt::microscope {

namespace {

std::string own_path() {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);
  return std::string(path, size > 0 ? size : 0);
}

// What is added to the addresses in the file when it is loaded.
uintptr_t load_bias() {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(&frames_of), &info) != 0
             ? reinterpret_cast<uintptr_t>(info.dli_fbase)
             : 0;
}

// "void attn::kernel<float>(int*)": without the return type and the parameters.
std::string without_parameters(const std::string& name) {
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
    } else if (name[i] == '<') {
      ++depth;
    } else if (name[i] == '>') {
      --depth;
    } else if (name[i] == ' ' && depth == 0) {
      begin = i + 1;
    } else if (name[i] == '(' && depth == 0) {
      return name.substr(begin, i - begin);
    }
  }
  return name.substr(begin);
}

}  // namespace

std::map<uintptr_t, std::vector<Frame>> frames_of(const std::vector<uintptr_t>& addresses) {
  std::map<uintptr_t, std::vector<Frame>> found;
  char list[] = "/tmp/microscope.XXXXXX";
  const int file = mkstemp(list);
  if (file < 0) return found;
  const uintptr_t bias = load_bias();
  std::FILE* out = fdopen(file, "w");
  for (uintptr_t address : addresses) std::fprintf(out, "0x%zx\n", address - bias);
  std::fclose(out);

  // For each address: itself, then a function and a "file:line" by turns.
  const std::string command = "addr2line -a -f -i -C -e '" + own_path() + "' < " + list;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(popen(command.c_str(), "r"), pclose);
  std::string function;
  std::vector<Frame>* frames = nullptr;
  char* line = nullptr;
  std::size_t capacity = 0;
  for (ssize_t size; in && (size = getline(&line, &capacity, in.get())) > 0;) {
    std::string text(line, size);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (text.starts_with("0x")) {
      frames = &found[std::strtoull(text.c_str(), nullptr, 16) + bias];
    } else if (function.empty()) {
      function = text;
    } else if (frames != nullptr) {
      text = text.substr(0, text.find(" (discriminator"));
      const std::size_t colon = text.rfind(':');
      frames->push_back({without_parameters(function),
                         std::filesystem::path(text.substr(0, colon)).lexically_normal(),
                         std::atoi(text.substr(colon + 1).c_str())});
      function.clear();
    }
  }
  std::free(line);
  unlink(list);
  return found;
}

}  // namespace simt::microscope
