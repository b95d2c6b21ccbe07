#include "common/driver/results.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace attn::driver {

namespace fs = std::filesystem;

std::string why_not_writable(const std::string& path) {
  if (path.empty()) return "the name is empty";
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return "it is a folder";
  if (access(path.c_str(), F_OK) == 0)
    return access(path.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
  fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (!fs::is_directory(folder, ignored)) return "there is no folder " + folder.string();
  return access(folder.c_str(), W_OK | X_OK) == 0 ? "" : std::strerror(errno);
}

void append_records(const std::string& path, const std::vector<Record>& records) {
  std::string text;
  for (const auto& record : records) text += record.dump() + "\n";
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  const ssize_t written = file < 0 ? -1 : write(file, text.data(), text.size());
  const std::string reason = std::strerror(errno);
  const bool complete = written == static_cast<ssize_t>(text.size());
  const bool closed = file >= 0 && close(file) == 0;
  if (!complete || !closed)
    throw std::runtime_error("cannot write results to " + path + ": " +
                             (written < 0 || complete ? reason : "the disk is full"));
}

std::vector<Record> read_records(const fs::path& folder, const std::string& stage) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
  std::sort(files.begin(), files.end());

  std::vector<Record> records;
  for (const auto& file : files) {
    std::ifstream lines(file);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      Record record = Record::parse(line, nullptr, /*allow_exceptions=*/false);
      const Record schema = record.is_object() ? record.value("schema", Record()) : Record();
      if (schema != 1 && schema != 2)
        throw std::runtime_error(file.string() + ":" + std::to_string(number) +
                                 ": not a record of schema 1 or 2");
      if (record.value("stage", "") == stage) records.push_back(std::move(record));
    }
  }
  std::stable_sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
    return a.value("date", "") < b.value("date", "");
  });
  return records;
}

}  // namespace attn::driver
