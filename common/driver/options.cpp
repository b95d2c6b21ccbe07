#include "common/driver/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <map>

#include "common/driver/environment.hpp"
#include "common/driver/results.hpp"

namespace attn::driver {
namespace {

// Each flag with what it takes; a flag that takes a value also with what the value may be.
struct Flag {
  const char* name;
  const char* value;
  const char* help;
};
constexpr Flag kFlags[] = {
    {"--shape", "B,H,L,E,M",
     "batch, heads, sequence length, head size of q and k, head size of v; may be given several "
     "times"},
    {"--dtype", "f32|bf16",
     "element type of inputs and outputs; not given: the stage's default, with --verify-only each "
     "in turn"},
    {"--inputs", "NAME",
     "what the inputs are drawn from; not given: the grid of shapes takes each in turn, the rest "
     "the stage's first"},
    {"--seed", "N", "seed of the inputs, a whole number from 0 to 2^64-1"},
    {"--kernel", "NAME", "run only this kernel of the stage"},
    {"--verify-only", nullptr, "check the results, time nothing"},
    {"--per-line", nullptr,
     "list the source with what each line asks of memory (the microscope's build only)"},
    {"--list", nullptr, "print the kernels, and which one the stage picks at the shape"},
    {"--results", "FILE", "append the measurements to this file, one JSON object per line"},
};

bool contains(const auto& range, const auto& value) {
  return std::find(range.begin(), range.end(), value) != range.end();
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// The values of one flag, in the order given.
using Values = std::map<std::string, std::vector<std::string>>;

const std::string& only(const Values& values, const std::string& flag) {
  const auto& given = values.at(flag);
  if (given.size() > 1)
    throw BadInput(flag + " is given " + std::to_string(given.size()) + " times; once is accepted");
  return given.front();
}

// Throws CLI::ParseError for what is not a flag of ours, or lacks its value.
Values read_flags(CLI::App& app, std::vector<std::string> arguments) {
  Values values;
  std::map<std::string, bool> switches;
  for (const auto& [name, value, help] : kFlags) {
    if (value) {
      // Each occurrence takes one value, and all occurrences are kept.
      app.add_option(name, values[name], help)->option_text(value)->allow_extra_args(false);
    } else {
      app.add_flag(name, switches[name], help);
    }
  }
  std::reverse(arguments.begin(), arguments.end());  // as this overload of parse() wants them
  app.parse(arguments);
  std::erase_if(values, [](const auto& entry) { return entry.second.empty(); });
  for (const auto& [name, given] : switches)
    if (given) values[name] = {"true"};
  return values;
}

std::string one_line(const CLI::ParseError& error, const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (const auto& flag : kFlags) names.push_back(flag.name);
  const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (!is_extra) {
    // The last flag lacks its value: an earlier one would have taken the next word for it.
    for (const auto& [name, value, help] : kFlags)
      if (value && !arguments.empty() && arguments.back() == name)
        return std::string(name) + " lacks its value: expected " + name + " " + value + ", " + help;
  }
  for (const auto& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (argument.starts_with("-") && !contains(names, name))
      return "unknown flag " + name + "; accepted are " + join(names) +
             ", --help and Google Benchmark's --benchmark_ flags";
  }
  return std::string(error.what()) + "; see --help";
}

template <class Parse>
auto parse_value(const std::string& flag, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const std::invalid_argument& error) {
    throw BadInput(flag + " " + text + ": " + error.what());
  }
}

uint64_t parse_seed(const std::string& text) {
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [next, status] = std::from_chars(text.data(), end, seed);
  if (status != std::errc() || next != end)
    throw std::invalid_argument("expected a whole number from 0 to 2^64-1");
  return seed;
}

// The element types that the stage has kernels of, its default first.
std::vector<Dtype> dtypes_of(const Stage& stage) {
  std::vector<Dtype> dtypes = {stage.default_dtype};
  for (const auto& kernel : stage.kernels)
    if (!contains(dtypes, kernel.dtype)) dtypes.push_back(kernel.dtype);
  return dtypes;
}

std::vector<std::string> kernel_names(const Stage& stage, const std::vector<Dtype>& dtypes) {
  std::vector<std::string> names;
  for (const auto& kernel : stage.kernels)
    if (contains(dtypes, kernel.dtype) && !contains(names, kernel.name))
      names.push_back(kernel.name);
  return names;
}

std::vector<std::string> distributions(const Stage& stage) {
  std::vector<std::string> names = {stage.op.distribution};
  for (const auto& variant : stage.variants) names.push_back(variant.op.distribution);
  return names;
}

}  // namespace

Options parse_options(const Stage& stage, int argc, char** argv) {
  Options options;
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    (argument.starts_with("--benchmark_") ? options.benchmark_flags : arguments)
        .push_back(argument);
  }

  CLI::App app(stage.name + ": " + stage.idea, stage.name);
  app.footer(
      "Flags of Google Benchmark are passed on, as --benchmark_filter=REGEX.\n"
      "Exit status: 0 all right, 1 wrong result or failed run, 2 bad input.");
  Values values;
  try {
    values = read_flags(app, arguments);
  } catch (const CLI::CallForHelp&) {
    options.help = app.help();
    return options;
  } catch (const CLI::ParseError& error) {
    throw BadInput(one_line(error, arguments));
  }

  if (values.count("--shape"))
    for (const auto& text : values["--shape"])
      options.shapes.push_back(parse_value("--shape", text, parse_shape));
  for (const Shape& shape : options.shapes)
    if (std::max(shape.E, shape.M) > stage.max_head_size)
      throw BadInput("--shape " + to_string(shape) + ": this stage takes head sizes from 1 to " +
                     std::to_string(stage.max_head_size));

  options.verify_only = values.count("--verify-only");
  options.list = values.count("--list");
  options.per_line = values.count("--per-line");
  if (options.per_line && !kMicroscope)
    throw BadInput(
        "--per-line: this build does not count; accepted is it by the build of `cmake --preset "
        "microscope`");
  options.dtypes = dtypes_of(stage);
  if (values.count("--dtype")) {
    const std::string& text = only(values, "--dtype");
    const Dtype dtype = parse_value("--dtype", text, parse_dtype);
    if (!contains(options.dtypes, dtype))
      throw BadInput("--dtype " + text + ": no kernel of this stage takes it; accepted is " +
                     to_string(stage.default_dtype));
    options.dtypes = {dtype};
  } else if (!options.verify_only || options.list) {
    options.dtypes = {stage.default_dtype};
  }
  if (values.count("--inputs")) {
    options.inputs = only(values, "--inputs");
    const auto names = distributions(stage);
    if (names.size() == 1)
      throw BadInput("--inputs " + options.inputs +
                     ": the inputs of this stage are of one kind; accepted is to leave it out");
    if (!contains(names, options.inputs))
      throw BadInput("--inputs " + options.inputs + ": expected one of " + join(names));
  }
  if (values.count("--seed"))
    options.seed = parse_value("--seed", only(values, "--seed"), parse_seed);
  if (values.count("--kernel")) {
    options.kernel = only(values, "--kernel");
    const auto names = kernel_names(stage, options.dtypes);
    if (!contains(names, options.kernel))
      throw BadInput("--kernel " + options.kernel + ": expected one of " + join(names));
    std::erase_if(options.dtypes,
                  [&](Dtype dtype) { return selected_kernels(stage, options, dtype).empty(); });
  }
  if (values.count("--results")) {
    options.results = only(values, "--results");
    if (const std::string reason = why_not_writable(options.results); !reason.empty())
      throw BadInput("--results " + options.results + ": " + reason +
                     "; expected a file that can be written, or does not exist yet");
  }
  return options;
}

std::vector<const Kernel*> selected_kernels(const Stage& stage, const Options& options,
                                            Dtype dtype) {
  std::vector<const Kernel*> kernels;
  for (const auto& kernel : stage.kernels) {
    if (kernel.dtype == dtype && (options.kernel.empty() || options.kernel == kernel.name))
      kernels.push_back(&kernel);
  }
  return kernels;
}

}  // namespace attn::driver
