#include "common/driver/results.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "temporary_folder.hpp"

namespace attn::driver {
namespace {

Record record(const std::string& stage, const std::string& date, double ms) {
  return {{"schema", 1}, {"stage", stage}, {"date", date}, {"median_ms", ms}};
}

TEST(Results, AreReadAsWritten) {
  const TemporaryFolder folder;
  append_records(folder.file("b.jsonl"), {record("03", "2026-02-01", 2), record("04", "2026", 1)});
  append_records(folder.file("b.jsonl"), {record("03", "2026-03-01", 3)});
  append_records(folder.file("a.jsonl"), {record("03", "2026-02-15", 2.5)});
  append_records(folder.file("notes.txt"), {record("03", "2026-02-15", 99)});

  const auto records = read_records(folder.path(), "03");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0], record("03", "2026-02-01", 2));
  EXPECT_EQ(records[1]["median_ms"], 2.5);
  EXPECT_EQ(records[2]["median_ms"], 3);
}

TEST(Results, OneLinePerRecord) {
  const TemporaryFolder folder;
  append_records(folder.file("r.jsonl"), {record("a\nb", "", 1), record("c", "", 2)});
  std::ifstream file(folder.file("r.jsonl"));
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) EXPECT_EQ(line.front(), '{');
  EXPECT_EQ(lines, 2);
}

TEST(Results, ABrokenFileIsNamedWithItsLine) {
  for (const char* line : {"{\"schema\":1", "[]", "7", "{\"schema\":3}", ""}) {
    const TemporaryFolder folder;
    append_records(folder.file("r.jsonl"), {record("03", "", 1)});
    std::ofstream(folder.file("r.jsonl"), std::ios::app) << line << "\n";
    try {
      read_records(folder.path(), "03");
      ADD_FAILURE() << "accepted " << line;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("r.jsonl:2"), std::string::npos) << error.what();
    }
  }
}

TEST(Results, NoFolderMeansNoRecords) {
  EXPECT_TRUE(read_records("/no/such/folder", "03").empty());
}

TEST(Results, AskingWhetherAFileCanBeWrittenChangesNothing) {
  const TemporaryFolder folder;
  EXPECT_EQ(why_not_writable(folder.file("new.jsonl")), "");
  EXPECT_FALSE(std::filesystem::exists(folder.file("new.jsonl")));
  append_records(folder.file("old.jsonl"), {record("03", "", 1)});
  const auto size = std::filesystem::file_size(folder.file("old.jsonl"));
  EXPECT_EQ(why_not_writable(folder.file("old.jsonl")), "");
  EXPECT_EQ(std::filesystem::file_size(folder.file("old.jsonl")), size);

  EXPECT_NE(why_not_writable(""), "");
  EXPECT_NE(why_not_writable(folder.path()), "");
  EXPECT_NE(why_not_writable(folder.file("no/such/folder.jsonl")), "");
  EXPECT_NE(why_not_writable(folder.file("old.jsonl/inside")), "");
}

TEST(Results, AFailedWriteThrows) {
  EXPECT_THROW(append_records("/dev/full", {record("03", "", 1)}), std::runtime_error);
  EXPECT_THROW(append_records("/no/such/folder/r.jsonl", {record("03", "", 1)}),
               std::runtime_error);
}

}  // namespace
}  // namespace attn::driver
