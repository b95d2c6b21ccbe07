#include "common/driver/report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "common/driver/columns.hpp"

namespace attn::driver {
namespace {

// What the operator asks of this kernel.
Cost cost_of(const Row& row) {
  const bool causal = row.op->causal && row.kernel->causal_cost;
  return (causal ? row.kernel->causal_cost : row.kernel->cost)(row.shape);
}

// A kernel's products on tensor cores, in parts of the rate of mma.sync: nothing without any.
std::string part_of_mma(const Row& row, const Rates& rates) {
  const double flops = cost_of(row).matrix_flops;
  if (flops == 0 || rates.mma_flops_per_s == 0) return "";
  return format("%.3g%%", 100 * flops / (row.timing.median_ms / 1e3) / rates.mma_flops_per_s);
}

// A kernel's own cost model: it takes as long as the slowest of its traffic, its arithmetic and its
// products on tensor cores. Without a rate to go by (on the host) there is no prediction.
std::optional<double> predicted_ms(const Row& row, const Rates& rates) {
  if (rates.fma_flops_per_s == 0) return std::nullopt;
  const Cost cost = cost_of(row);
  double seconds =
      std::max(cost.bytes / rates.copy_bytes_per_s, cost.flops / rates.fma_flops_per_s);
  if (cost.matrix_flops > 0) {
    if (rates.mma_flops_per_s == 0) return std::nullopt;
    seconds = std::max(seconds, cost.matrix_flops / rates.mma_flops_per_s);
  }
  return 1e3 * seconds;
}

// The kernel as a sentence names it: of a stage with several kernels it says which.
std::string subject(const Row& row) {
  if (row.kernel->name == row.stage) return row.stage;
  return row.stage + " (" + row.kernel->name + ")";
}

std::string ratio(double speedup) {
  if (format("%.2f", speedup) == "1.00") return "as fast as";
  return speedup >= 1 ? format("%.3gx faster than", speedup)
                      : format("%.3gx slower than", 1 / speedup);
}

void print_summary(const Operator& op, Dtype dtype, const std::vector<Row>& rows) {
  // The kernel that a user of the stage gets; if it was not timed, the last that was.
  auto chosen = std::find_if(rows.begin(), rows.end(), [](const Row& row) { return row.picked; });
  if (chosen == rows.end()) {
    const auto last =
        std::find_if(rows.rbegin(), rows.rend(), [&](const Row& row) { return row.op == &op; });
    if (last == rows.rend()) return;
    chosen = std::prev(last.base());
  }
  const std::string place = to_string(chosen->shape) + " " + to_string(dtype);
  if (chosen->before && !chosen->over_before)
    std::printf("no speedup of %s over %s, the one before it, at %s: that was not timed\n",
                subject(*chosen).c_str(), chosen->before->name.c_str(), place.c_str());
  if (chosen->over_before)
    std::printf("%s is %s %s, the one before it, at %s\n", subject(*chosen).c_str(),
                ratio(*chosen->over_before).c_str(), chosen->before->name.c_str(), place.c_str());
  if (chosen->over_first && chosen->first != chosen->before)
    std::printf("%s is %s %s, the first, at %s\n", subject(*chosen).c_str(),
                ratio(*chosen->over_first).c_str(), chosen->first->name.c_str(), place.c_str());
  for (const Row& row : rows) {
    if (row.op == chosen->op) continue;
    std::printf("another operator: %s is %s %s, which computes %s, at %s\n",
                subject(*chosen).c_str(),
                ratio(row.timing.median_ms / chosen->timing.median_ms).c_str(),
                row.kernel->name.c_str(), to_string(*row.op).c_str(), place.c_str());
  }
}

// The row above is the rung before, if that was timed.
std::string over_before(const Row& row) {
  if (!row.before) return "-";
  return row.over_before ? format("%.3gx", *row.over_before) : row.before->name + " not timed";
}

void print_table_of_shape(const Operator& op, Dtype dtype, const std::vector<Row>& rows,
                          const Rates& rates) {
  const Shape& shape = rows.front().shape;
  const Cost least = least_cost(op, shape, dtype);
  std::printf("\n%s at %s %s: at least %.3g MB and %.3g GFLOP\n", to_string(op).c_str(),
              to_string(shape).c_str(), to_string(dtype).c_str(), least.bytes / 1e6,
              least.flops / 1e9);
  std::vector<std::vector<std::string>> lines = {
      {"kernel", "median ms", "min .. max", "GB/s", "of copy", "TFLOP/s", "of mma.sync",
       "over the one before", "over the first", "predicted ms", "rel error"}};
  for (const Row& row : rows) {
    const Cost row_least = least_cost(*row.op, shape, dtype);
    const double seconds = row.timing.median_ms / 1e3;
    const auto predicted = predicted_ms(row, rates);
    const char* const mark = row.op != &op ? ", another operator" : row.picked ? " *" : "";
    lines.push_back({row.kernel->name + mark, format("%.4g", row.timing.median_ms),
                     format("%.4g .. %.4g", row.timing.min_ms, row.timing.max_ms),
                     format("%.4g", row_least.bytes / seconds / 1e9),
                     format("%.3g%%", 100 * row_least.bytes / seconds / rates.copy_bytes_per_s),
                     format("%.3g", row_least.flops / seconds / 1e12), part_of_mma(row, rates),
                     over_before(row), row.over_first ? format("%.3gx", *row.over_first) : "-",
                     predicted ? format("%.4g", *predicted) : "-",
                     format("%.1e", row.error.rel())});
  }
  print_columns(lines);
  std::printf("  (* what the stage picks at this shape)\n");
  print_summary(op, dtype, rows);
}

// Six digits are more than any measurement has.
double rounded(double x) { return std::strtod(format("%.6g", x).c_str(), nullptr); }

}  // namespace

void compare_rungs(std::vector<Row>& rows, const Operator& op) {
  for (Row& row : rows) {
    if (row.op != &op) continue;
    for (const Row& other : rows) {
      if (other.op != &op || other.shape != row.shape) continue;
      const double factor = other.timing.median_ms / row.timing.median_ms;
      if (other.kernel == row.before) row.over_before = factor;
      if (row.first) continue;
      row.first = other.kernel;
      if (&other != &row) row.over_first = factor;
    }
  }
}

void print_table(const Operator& op, Dtype dtype, const std::vector<Row>& rows,
                 const Rates& rates) {
  std::printf("measured just now: copies %.4g GB/s (read + write)", rates.copy_bytes_per_s / 1e9);
  if (rates.fma_flops_per_s > 0)
    std::printf(", fp32 multiply-adds %.3g TFLOP/s", rates.fma_flops_per_s / 1e12);
  if (rates.mma_flops_per_s > 0)
    std::printf(", bf16 mma.sync %.3g TFLOP/s", rates.mma_flops_per_s / 1e12);
  std::printf("\n");
  for (auto first = rows.begin(); first != rows.end();) {
    const auto last =
        std::find_if(first, rows.end(), [&](const Row& row) { return row.shape != first->shape; });
    print_table_of_shape(op, dtype, {first, last}, rates);
    first = last;
  }
}

std::vector<Record> make_records(const Stage& stage, const Operator& op, Dtype dtype,
                                 const std::vector<Row>& rows, const Rates& rates,
                                 const Environment& where) {
  // What was not measured is null, and what there is not has an empty name.
  const auto optional = [](const std::optional<double>& value) {
    return value ? Record(rounded(*value)) : Record();
  };
  const auto tera = [](double per_s) {
    return per_s > 0 ? Record(rounded(per_s / 1e12)) : Record();
  };
  std::vector<Record> records;
  for (const Row& row : rows) {
    if (row.op != &op) continue;
    const Shape& s = row.shape;
    const Cost least = least_cost(op, s, dtype);
    const double seconds = row.timing.median_ms / 1e3;
    const auto predicted = predicted_ms(row, rates);
    Record record = {
        {"schema", 2},  // in 1 the baseline was the first of the table, as a rule
        {"stage", stage.name},
        {"kernel", row.kernel->name},
        {"home", row.stage},
        {"picked", row.picked},
        {"baseline", row.before ? row.before->name : ""},
        {"speedup", optional(row.over_before)},
        {"first", row.first ? row.first->name : ""},
        {"speedup_over_first", optional(row.over_first)},
        {"operator", op.name},
        {"inputs", op.distribution},
        {"shape", {{"B", s.B}, {"H", s.H}, {"L", s.L}, {"E", s.E}, {"M", s.M}}},
        {"dtype", to_string(dtype)},
        {"median_ms", rounded(row.timing.median_ms)},
        {"min_ms", rounded(row.timing.min_ms)},
        {"max_ms", rounded(row.timing.max_ms)},
        {"samples", row.timing.samples},
        {"bytes", least.bytes},
        {"flops", least.flops},
        {"gb_per_s", rounded(least.bytes / seconds / 1e9)},
        {"tflop_per_s", rounded(least.flops / seconds / 1e12)},
        {"copy_gb_per_s", rounded(rates.copy_bytes_per_s / 1e9)},
        {"fma_tflop_per_s", tera(rates.fma_flops_per_s)},
        {"mma_tflop_per_s", tera(rates.mma_flops_per_s)},
        {"predicted_ms", optional(predicted)},
        {"rel_error", rounded(row.error.rel())},
        {"max_abs_error", rounded(row.error.max_abs)},
        {"device", where.device},
        {"sm", where.sm},
        {"sm_clock_mhz", where.sm_clock_mhz},
        {"memory_clock_mhz", where.memory_clock_mhz},
        {"driver", where.driver},
        {"toolkit", where.toolkit},
        {"commit", where.commit},
        {"date", where.date},
    };
    Record others = Record::array();
    for (const Row& other : rows) {
      if (other.op == &op || other.shape != s) continue;
      others.push_back({
          {"operator", other.op->name},
          {"inputs", other.op->distribution},
          {"kernel", other.kernel->name},
          {"median_ms", rounded(other.timing.median_ms)},
          {"min_ms", rounded(other.timing.min_ms)},
          {"max_ms", rounded(other.timing.max_ms)},
          {"rel_error", rounded(other.error.rel())},
      });
    }
    if (!others.empty()) record["others"] = std::move(others);
    records.push_back(std::move(record));
  }
  return records;
}

void print_recorded(const Stage& stage, const std::filesystem::path& folder) {
  // The newest record of each kernel on the same inputs, by GPU, shape, dtype and distribution.
  std::map<std::array<std::string, 5>, Record> newest;
  for (const Record& record : read_records(folder, stage.name)) {
    const Record shape = record.value("shape", Record::object());
    std::string sizes;
    for (const char* axis : {"B", "H", "L", "E", "M"})
      sizes += format("%s%lld", sizes.empty() ? "" : ",", shape.value(axis, 0LL));
    newest[{record.value("device", ""), sizes, record.value("dtype", ""),
            record.value("inputs", ""), record.value("kernel", "")}] = record;
  }
  std::erase_if(newest, [](const auto& entry) { return entry.second.value("sm", "") == "host"; });
  if (newest.empty()) {
    std::printf("No GPU figures of this stage are recorded in docs/results.\n");
    return;
  }
  std::printf("Recorded on a GPU earlier (docs/results):\n");
  std::vector<std::vector<std::string>> lines = {{"kernel", "shape", "dtype", "inputs", "median ms",
                                                  "speedup", "over", "GPU", "date", "commit"}};
  for (const auto& [key, record] : newest) {
    const auto& [device, sizes, dtype, inputs, kernel] = key;
    // The sweep over L has one row per shape and kernel; what the stage picks is what it gives.
    if (!record.value("picked", false)) continue;
    const Record speedup = record.value("speedup", Record());
    lines.push_back({kernel, sizes, dtype, inputs, format("%.4g", record.value("median_ms", 0.0)),
                     speedup.is_number() ? format("%.3gx", speedup.get<double>()) : "-",
                     record.value("baseline", ""), device, record.value("date", "").substr(0, 10),
                     record.value("commit", "")});
  }
  print_columns(lines);
}

}  // namespace attn::driver
