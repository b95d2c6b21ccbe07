#include "common/driver/work.hpp"

#include <cstdio>

#include "common/driver/columns.hpp"
#include "common/driver/results.hpp"
#include "common/simt/microscope/launches.hpp"
#include "common/simt/microscope/report.hpp"

namespace attn::driver {
namespace {

using namespace simt::microscope;

std::string relative(const std::string& file) {
  const std::string root = std::string(ATTN_SOURCE_DIR) + "/";
  return file.starts_with(root) ? file.substr(root.size()) : file;
}

Record shared_record(const Work::Shared& x) {
  return {{"requests", x.requests}, {"wavefronts", x.wavefronts}, {"ideal", x.ideal}};
}

Record global_record(const Work::Global& x) {
  return {{"requests", x.requests}, {"sectors", x.sectors}, {"asked", x.asked}};
}

Record launch_record(const LaunchReport& launch) {
  const Work& w = launch.work;
  Record lines = Record::array();
  for (const LineWork& at : launch.lines) {
    const char* const space = at.count.space == Space::global   ? "global"
                              : at.count.space == Space::shared ? "shared"
                                                                : "";
    lines.push_back({{"file", relative(at.file)},
                     {"line", at.line},
                     {"what", simt::microscope::to_string(at.count.kind)},
                     {"space", space},
                     {"bytes", at.count.bytes},
                     {"requests", at.count.warps},
                     {"lanes", at.count.lanes},
                     {"sectors", at.count.sectors},
                     {"wavefronts", at.count.wavefronts},
                     {"ideal", at.count.ideal}});
  }
  return {{"name", launch.kernel},
          {"full_name", launch.full_name},
          {"grid", {launch.grid.x, launch.grid.y, launch.grid.z}},
          {"block", {launch.block.x, launch.block.y, launch.block.z}},
          {"shared_bytes", launch.shared_bytes},
          {"loads", global_record(w.loads)},
          {"stores", global_record(w.stores)},
          {"atomics", global_record(w.atomics)},
          {"atomic_lanes", w.atomic_lanes},
          {"contention", w.contention},
          {"most_atomics", launch.most_atomics},
          {"shared_loads", shared_record(w.shared_loads)},
          {"shared_stores", shared_record(w.shared_stores)},
          {"shared_copies", shared_record(w.shared_copies)},
          {"barriers", w.barriers},
          {"syncwarps", w.syncwarps},
          {"shuffles", w.shuffles},
          {"votes", w.votes},
          {"products", w.products},
          {"flops", w.flops},
          {"read_bytes", launch.read_bytes},
          {"written_bytes", launch.written_bytes},
          {"lines", lines}};
}

// One line of the table: a launch, or what a kernel's launches come to.
std::vector<std::string> table_line(const std::string& name, const LaunchReport& launch,
                                    double tokens, double least_bytes) {
  const Work& w = launch.work;
  const auto per_token = [&](double x) { return x == 0 ? "" : format("%.3g", x / tokens); };
  const double sectors = double(w.loads.sectors + w.stores.sectors + w.atomics.sectors);
  const double asked = double(w.loads.asked + w.stores.asked + w.atomics.asked);
  const double touched = double(launch.read_bytes + launch.written_bytes);
  const double wavefronts = double(w.wavefronts()), ideal = double(w.ideal());
  return {name,
          per_token(double(w.loads.sectors)),
          per_token(double(w.stores.sectors)),
          per_token(double(w.atomics.sectors)),
          sectors > 0 ? format("%.0f%%", 100 * asked / (32 * sectors)) : "",
          format("%.3gx", 32 * sectors / least_bytes),
          format("%.3gx", 32 * sectors / touched),
          per_token(wavefronts),
          wavefronts > ideal ? format("%.0f%%", 100 * (wavefronts - ideal) / ideal) : "",
          launch.most_atomics ? format("%u", launch.most_atomics) : "",
          per_token(double(w.barriers)),
          per_token(double(w.shuffles + w.votes)),
          per_token(w.flops),
          launch.shared_bytes ? format("%.1f", launch.shared_bytes / 1024.0) : ""};
}

LaunchReport sum(const std::vector<LaunchReport>& launches) {
  LaunchReport all{};
  for (const LaunchReport& launch : launches) {
    for (const LineWork& line : launch.lines) all.work.add(line.count);
    all.read_bytes += launch.read_bytes;
    all.written_bytes += launch.written_bytes;
    all.most_atomics = std::max(all.most_atomics, launch.most_atomics);
    all.shared_bytes = std::max(all.shared_bytes, launch.shared_bytes);
  }
  return all;
}

}  // namespace

void count_work(const Stage& stage, const Operator& op, const WorkPlan& plan,
                const Environment& environment) {
  std::vector<Record> records;
  for (const Shape& shape : plan.shapes) {
    const double tokens = double(shape.B) * shape.H * shape.L;
    const Cost least = least_cost(op, shape, plan.dtype);
    Tensors tensors(op, shape, plan.dtype, Layout::BHLD, /*on_host=*/false);
    tensors.fill_inputs(plan.seed);
    std::vector<std::vector<std::string>> lines = {
        {"kernel", "sectors read", "written", "by atomics", "used", "of least", "of touched",
         "wavefronts", "conflicts", "adds to one", "barriers", "shuffles", "mma flop",
         "shared KiB"}};
    std::vector<LaunchReport> listed;
    for (const Kernel* kernel : plan.kernels) {
      tensors.poison_outputs();
      start_counting();
      kernel->run(tensors);
      const std::vector<LaunchReport> launches = report(stop_counting());
      if (launches.size() > 1)
        lines.push_back(table_line(kernel->name, sum(launches), tokens, least.bytes));
      for (const LaunchReport& launch : launches) {
        const std::string name = launches.size() > 1 ? "  " + launch.kernel : kernel->name;
        lines.push_back(table_line(name, launch, tokens, least.bytes));
      }
      Record record = {
          {"schema", 1},
          {"stage", stage.name},
          {"kernel", kernel->name},
          {"operator", op.name},
          {"inputs", op.distribution},
          {"shape",
           {{"B", shape.B}, {"H", shape.H}, {"L", shape.L}, {"E", shape.E}, {"M", shape.M}}},
          {"dtype", to_string(plan.dtype)},
          {"tokens", tokens},
          {"least_bytes", least.bytes},
          {"launches", Record::array()},
          {"compiler", environment.toolkit},
          {"commit", environment.commit},
          {"date", environment.date}};
      for (const LaunchReport& launch : launches)
        record["launches"].push_back(launch_record(launch));
      records.push_back(std::move(record));
      listed.insert(listed.end(), launches.begin(), launches.end());
    }
    std::printf(
        "\nwork per token (a row of one head), %s at %s %s, the least is %.3g sectors of 32 "
        "bytes:\n",
        to_string(op).c_str(), to_string(shape).c_str(), to_string(plan.dtype).c_str(),
        least.bytes / 32 / tokens);
    print_columns(lines);
    if (plan.per_line)
      for (const LaunchReport& launch : listed) print_lines(launch);
  }
  if (plan.results.empty()) return;
  append_records(plan.results, records);
  std::printf("recorded in %s\n", plan.results.c_str());
}

}  // namespace attn::driver
