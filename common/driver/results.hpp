// Recorded measurements: JSON Lines, one object per kernel and shape.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace attn::driver {

using Record = nlohmann::ordered_json;

// Why `path` cannot be appended to, or "". Neither creates nor changes anything.
std::string why_not_writable(const std::string& path);

// Appends all records in one write, so that a file never holds half a run. Throws
// std::runtime_error.
void append_records(const std::string& path, const std::vector<Record>& records);

// All records of `stage` in the .jsonl files of a folder, the oldest first. Throws
// std::runtime_error, naming file and line, at a line that is no record.
std::vector<Record> read_records(const std::filesystem::path& folder, const std::string& stage);

}  // namespace attn::driver
