"""A ros2_control controller plugin around the policy in C99: a package that `colcon build` takes.

The policy's own C files (memory, preview, observer) are compiled in unchanged. `limits.hpp` holds the command to range
and rate and watches measurements and joint limits; it is small, knows no ROS, and is what `update` calls.
"""

import json
import re
import string
from collections.abc import Sequence

from firsthand_onboard import ControlSpec
from firsthand_onboard.base_control import BaseControl
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.numpy_observer import Observer
from firsthand_onboard.policy import Layer
from firsthand_onboard.spec import SpecError

from ..errors import UserError
from .c_source import c_files, comment_text, identifier
from .card import ModelCard

MAX_ROWS = 6000
"""Rows of a reference that the controller keeps; more are refused. Memory for them is taken once."""


def ros2_control_files(
    spec: ControlSpec,
    layers: Sequence[Layer],
    card: ModelCard,
    observer: Observer | None = None,
    control: BaseControl | None = None,
) -> dict[str, str]:
    """Names and texts of the package's files."""
    name = identifier(spec.robot)
    package = f"{name}_controller"
    sources = c_files(spec, layers, card, observer, control)
    plain = {
        "{name}": name,
        "{UPPER}": name.upper(),
        "{package}": package,
        "{class}": "".join(part.capitalize() for part in name.split("_")) + "Controller",
        "{maximum}": str(MAX_ROWS),
        "{begin_trajectory}": "" if control is None else f"    {name}_begin_trajectory(&memory_);\n",
        "{card}": "".join(f"// {comment_text(line)}\n" for line in card.lines()),
        "{states}": ", ".join(_cpp_string(state_interface(measured)) for measured in spec.layout.measured),
        "{commands}": ", ".join(_cpp_string(command_interface(command)) for command in spec.layout.commands),
        "{positions}": ", ".join(map(str, spec.layout.position)),
        "{position_count}": str(len(spec.layout.position)),
    }
    written = {
        "CMakeLists.txt": CMAKE,
        "package.xml": PACKAGE,
        f"{package}.xml": PLUGIN,
        f"include/{package}/limits.hpp": LIMITS,
        f"include/{package}/reference.hpp": REFERENCE,
        f"include/{package}/controller.hpp": HEADER,
        "src/controller.cpp": SOURCE,
        "README.md": README,
    }
    files = {file: _fill(text, plain) for file, text in written.items()}
    files[f"config/{package}.yaml"] = _parameters(package, plain["{class}"], spec, _limits(spec))
    files[f"include/{package}/{name}_policy.h"] = sources[f"{name}_policy.h"]
    files[f"src/{name}_policy.c"] = sources[f"{name}_policy.c"]
    files[f"test/{name}_policy_test.c"] = sources[f"{name}_policy_test.c"]
    return {f"{package}/{file}": text for file, text in files.items()}


def state_interface(measured: str) -> str:
    """`boom/position` of `boom.position`; a quantity without a joint is a position of its own."""
    joint, dot, quantity = measured.rpartition(".")
    return f"{joint}/{quantity}" if dot and joint else f"{measured}/position"


def command_interface(command: str) -> str:
    """The command interface, which depends on the hardware; effort, unless the user changes it."""
    return f"{command}/effort"


def _limits(spec: ControlSpec) -> GateLimits:
    try:
        return GateLimits.of(spec)
    except SpecError as error:
        raise UserError(f"a controller needs to know how the robot stands still, and {error}.") from None


def _cpp_string(text: str) -> str:
    """A name from anybody as a literal of C++: whatever could mean something there is written as bytes."""
    plain = set(string.ascii_letters + string.digits + " _./-+")
    return '"' + "".join(c if (c := chr(b)) in plain else f"\\{b:03o}" for b in text.encode(errors="replace")) + '"'


def _yaml_string(text: str) -> str:
    """A name from anybody as a text in YAML, on one line."""
    quoted = json.dumps(text.encode(errors="replace").decode(), ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def _fill(text: str, values: dict[str, str]) -> str:
    """All at once: what is filled in may look like something to be filled in."""
    return re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], text)


def _parameters(package: str, name: str, spec: ControlSpec, limits: GateLimits) -> str:
    """The YAML of parameters, with the values that the policy was trained with."""

    def numbers(values: Sequence[float]) -> str:
        return "[" + ", ".join(repr(float(value)) for value in values) + "]"

    states = ", ".join(_yaml_string(state_interface(measured)) for measured in spec.layout.measured)
    commands = ", ".join(_yaml_string(command_interface(command)) for command in spec.layout.commands)
    margin = [0.01 * (b - a) for a, b in zip(spec.limits.position_low, spec.limits.position_high, strict=True)]
    low = [a - m for a, m in zip(spec.limits.position_low, margin, strict=True)]
    high = [b + m for b, m in zip(spec.limits.position_high, margin, strict=True)]
    return f"""# Parameters of {package}. The numbers are those that the policy was trained with.
controller_manager:
  ros__parameters:
    update_rate: {max(round(1 / spec.period_s), 1)}  # Hz; it may be faster, the policy runs every {spec.period_s:g} s
    {package}:
      type: {package}/{name}

{package}:
  ros__parameters:
    # In the order in which the policy measures and commands. Name your hardware's interfaces here.
    state_interfaces: [{states}]
    command_interfaces: [{commands}]
    # What may be commanded. neutral is the command with which the robot stands still.
    command_low: {numbers(limits.low)}
    command_high: {numbers(limits.high)}
    neutral: {numbers(limits.neutral)}
    command_rate: {numbers(limits.rate)}  # per second; a fifth of a second for the whole range
    # A joint outside these is a fault: neutral, and the controller stops.
    position_low: {numbers(low)}
    position_high: {numbers(high)}
    # Steps in a row without a measurement; one more is a fault.
    max_missing: 3
    # A command is late when no update came for this many policy periods: then the motion begins anew.
    max_pause: 3.0
"""


CMAKE = """cmake_minimum_required(VERSION 3.16)
project({package} C CXX)

set(CMAKE_C_STANDARD 99)
set(CMAKE_CXX_STANDARD 17)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
add_compile_options(-Wall -Wextra -O3)

find_package(ament_cmake REQUIRED)
find_package(controller_interface REQUIRED)
find_package(hardware_interface REQUIRED)
find_package(pluginlib REQUIRED)
find_package(rclcpp REQUIRED)
find_package(rclcpp_lifecycle REQUIRED)
find_package(std_msgs REQUIRED)

add_library({package} SHARED src/controller.cpp src/{name}_policy.c)
target_include_directories({package} PUBLIC include include/{package})
ament_target_dependencies(
  {package} controller_interface hardware_interface pluginlib rclcpp rclcpp_lifecycle std_msgs)
pluginlib_export_plugin_description_file(controller_interface {package}.xml)

if(BUILD_TESTING)
  # The policy against its own test vectors, without ROS.
  add_executable({name}_policy_test test/{name}_policy_test.c src/{name}_policy.c)
  target_include_directories({name}_policy_test PRIVATE include/{package})
  target_link_libraries({name}_policy_test m)
  add_test(NAME {name}_policy_test COMMAND {name}_policy_test)
endif()

install(TARGETS {package} LIBRARY DESTINATION lib ARCHIVE DESTINATION lib RUNTIME DESTINATION bin)
install(DIRECTORY include/ DESTINATION include)
install(DIRECTORY config DESTINATION share/${PROJECT_NAME})
ament_export_libraries({package})
ament_package()
"""

PACKAGE = """<?xml version="1.0"?>
<package format="3">
  <name>{package}</name>
  <version>0.1.0</version>
  <description>A policy that firsthand has trained, as a ros2_control controller.</description>
  <maintainer email="nobody@example.org">who exported it</maintainer>
  <license>proprietary</license>
  <buildtool_depend>ament_cmake</buildtool_depend>
  <depend>controller_interface</depend>
  <depend>hardware_interface</depend>
  <depend>pluginlib</depend>
  <depend>rclcpp</depend>
  <depend>rclcpp_lifecycle</depend>
  <depend>std_msgs</depend>
  <export>
    <build_type>ament_cmake</build_type>
  </export>
</package>
"""

PLUGIN = """<library path="{package}">
  <class name="{package}/{class}" type="{package}::{class}"
         base_class_type="controller_interface::ControllerInterface">
    <description>Follows a reference with a policy that firsthand has trained.</description>
  </class>
</library>
"""

LIMITS = """// What stands between policy and hardware: range and rate of commands, missing measurements, joint limits.
// No allocation, no ROS.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "{name}_policy.h"

namespace {package}
{

enum class Verdict { kGood, kMissing, kLost, kJoint, kNoCommand };

inline const char * describe(Verdict verdict)
{
  switch (verdict) {
    case Verdict::kMissing: return "a measurement is missing";
    case Verdict::kLost: return "measurements are missing for too long";
    case Verdict::kJoint: return "a joint is outside its limits";
    case Verdict::kNoCommand: return "the policy gave no finite command";
    default: return "good";
  }
}

struct Limits
{
  static constexpr int kPositions = {position_count};
  static constexpr std::array<int, kPositions> kPosition{{{positions}}};

  std::array<float, {UPPER}_COMMANDS> low{}, high{}, neutral{}, rate{};
  std::array<float, kPositions> position_low{}, position_high{};
  int max_missing = 3;

  std::array<float, {UPPER}_COMMANDS> last{};  // the command applied before
  int missing = 0;                             // steps in a row without a measurement

  void begin()
  {
    last = neutral;
    missing = 0;
  }

  // What is measured, before the policy runs.
  Verdict check(const float * measured)
  {
    bool whole = true;
    for (int i = 0; i < {UPPER}_MEASURED; i++) whole = whole && std::isfinite(measured[i]);
    missing = whole ? 0 : missing + 1;
    if (missing > max_missing) return Verdict::kLost;
    for (int j = 0; j < kPositions; j++) {
      const float at = measured[kPosition[j]];
      if (std::isfinite(at) && !(at >= position_low[j] && at <= position_high[j])) return Verdict::kJoint;
    }
    return whole ? Verdict::kGood : Verdict::kMissing;
  }

  // The command inside its range, and no further from the last one than its rate allows in a policy's period.
  void limit(float * command)
  {
    for (int i = 0; i < {UPPER}_COMMANDS; i++) {
      const float step = rate[i] * static_cast<float>({UPPER}_PERIOD_S);
      const float near = std::min(std::max(command[i], last[i] - step), last[i] + step);
      command[i] = std::min(std::max(near, low[i]), high[i]);
    }
    for (int i = 0; i < {UPPER}_COMMANDS; i++) last[i] = command[i];
  }

  void stop(float * command)
  {
    for (int i = 0; i < {UPPER}_COMMANDS; i++) command[i] = last[i] = neutral[i];
  }
};

}  // namespace {package}
"""

REFERENCE = """// A reference from the thread that receives it to the one that controls: three buffers, no lock.
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <memory>

#include "{name}_policy.h"

namespace {package}
{

struct Reference
{
  static constexpr int kRows = {maximum};
  std::array<float, kRows * {UPPER}_OUTPUTS> points{};
  int rows = 0;
};

class ReferenceBuffer
{
public:
  ReferenceBuffer() : slots_(new Reference[3]) {}

  // The receiving thread: rows of finite coordinates, one after another. False where they are not, or do not fit.
  bool write(const double * values, std::size_t count)
  {
    if (count == 0 || count % {UPPER}_OUTPUTS != 0 || count > Reference::kRows * {UPPER}_OUTPUTS) return false;
    Reference & slot = slots_[writing_];
    for (std::size_t i = 0; i < count; i++) {
      slot.points[i] = static_cast<float>(values[i]);
      if (!std::isfinite(slot.points[i])) return false;
    }
    slot.rows = static_cast<int>(count / {UPPER}_OUTPUTS);
    writing_ = middle_.exchange(writing_ | kNew, std::memory_order_acq_rel) & kSlot;
    return true;
  }

  // The controlling thread: whether there is a newer one, which `get` then returns.
  bool update()
  {
    if (!(middle_.load(std::memory_order_acquire) & kNew)) return false;
    reading_ = middle_.exchange(reading_, std::memory_order_acq_rel) & kSlot;
    return true;
  }

  const Reference & get() const { return slots_[reading_]; }

  // Only while nobody writes: before the controller is active.
  void hold(const float * output)
  {
    while (update()) {
    }
    Reference & slot = slots_[reading_];
    for (int i = 0; i < {UPPER}_OUTPUTS; i++) slot.points[i] = output[i];
    slot.rows = 1;
  }

private:
  static constexpr int kSlot = 3, kNew = 4;
  std::unique_ptr<Reference[]> slots_;
  int writing_ = 0, reading_ = 1;
  std::atomic<int> middle_{2};
};

}  // namespace {package}
"""

HEADER = """{card}#pragma once

#include <array>
#include <string>
#include <vector>

#include "controller_interface/controller_interface.hpp"
#include "rclcpp/rclcpp.hpp"
#include "rclcpp_lifecycle/state.hpp"
#include "std_msgs/msg/float64_multi_array.hpp"

#include "{package}/limits.hpp"
#include "{package}/reference.hpp"
#include "{name}_policy.h"

namespace {package}
{

using CallbackReturn = rclcpp_lifecycle::node_interfaces::LifecycleNodeInterface::CallbackReturn;

class {class} : public controller_interface::ControllerInterface
{
public:
  CallbackReturn on_init() override;
  controller_interface::InterfaceConfiguration command_interface_configuration() const override;
  controller_interface::InterfaceConfiguration state_interface_configuration() const override;
  CallbackReturn on_configure(const rclcpp_lifecycle::State & previous) override;
  CallbackReturn on_activate(const rclcpp_lifecycle::State & previous) override;
  CallbackReturn on_deactivate(const rclcpp_lifecycle::State & previous) override;
  // Allocates nothing, takes no lock, prints nothing but a fault.
  controller_interface::return_type update(const rclcpp::Time & time, const rclcpp::Duration & period) override;

private:
  void measure();
  void apply();
  void begin();

  std::vector<std::string> state_names_, command_names_;
  std::array<std::size_t, {UPPER}_MEASURED> state_index_{};
  std::array<std::size_t, {UPPER}_COMMANDS> command_index_{};
  rclcpp::Subscription<std_msgs::msg::Float64MultiArray>::SharedPtr subscription_;
  ReferenceBuffer reference_;
  Limits limits_;
  {name}_memory memory_{};
  float measured_[{UPPER}_MEASURED]{}, points_[{UPPER}_POINTS * {UPPER}_OUTPUTS]{}, command_[{UPPER}_COMMANDS]{};
  double since_step_ = 0.0;
  double max_pause_ = 3.0;
  int step_ = 0;
};

}  // namespace {package}
"""

SOURCE = """{card}#include "{package}/controller.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "pluginlib/class_list_macros.hpp"

namespace {package}
{
namespace
{

// Newer releases of ros2_control return an optional, older ones a number.
template <typename Interface>
auto read(const Interface & interface, int) -> decltype(interface.get_optional().value_or(0.0))
{
  return interface.get_optional().value_or(std::numeric_limits<double>::quiet_NaN());
}
template <typename Interface>
double read(const Interface & interface, long)
{
  return interface.get_value();
}

template <std::size_t N>
bool take(const std::vector<double> & values, std::array<float, N> & into)
{
  if (values.size() != N) return false;
  for (std::size_t i = 0; i < N; i++) into[i] = static_cast<float>(values[i]);
  return true;
}

template <typename Interfaces, std::size_t N>
bool find(const Interfaces & interfaces, const std::vector<std::string> & names, std::array<std::size_t, N> & index)
{
  for (std::size_t i = 0; i < N; i++) {
    const auto at = std::find_if(
      interfaces.begin(), interfaces.end(), [&](const auto & one) { return one.get_name() == names[i]; });
    if (at == interfaces.end()) return false;
    index[i] = static_cast<std::size_t>(at - interfaces.begin());
  }
  return true;
}

}  // namespace

CallbackReturn {class}::on_init()
{
  auto_declare<std::vector<std::string>>("state_interfaces", {{states}});
  auto_declare<std::vector<std::string>>("command_interfaces", {{commands}});
  for (const char * name : {"command_low", "command_high", "neutral", "command_rate", "position_low", "position_high"})
    auto_declare<std::vector<double>>(name, std::vector<double>());
  auto_declare<int64_t>("max_missing", 3);
  auto_declare<double>("max_pause", 3.0);
  return CallbackReturn::SUCCESS;
}

controller_interface::InterfaceConfiguration {class}::command_interface_configuration() const
{
  return {controller_interface::interface_configuration_type::INDIVIDUAL, command_names_};
}

controller_interface::InterfaceConfiguration {class}::state_interface_configuration() const
{
  return {controller_interface::interface_configuration_type::INDIVIDUAL, state_names_};
}

CallbackReturn {class}::on_configure(const rclcpp_lifecycle::State &)
{
  auto node = get_node();
  state_names_ = node->get_parameter("state_interfaces").as_string_array();
  command_names_ = node->get_parameter("command_interfaces").as_string_array();
  if (state_names_.size() != {UPPER}_MEASURED || command_names_.size() != {UPPER}_COMMANDS) {
    RCLCPP_ERROR(
      node->get_logger(), "the policy measures %d quantities and commands %d, but %zu and %zu interfaces are named",
      {UPPER}_MEASURED, {UPPER}_COMMANDS, state_names_.size(), command_names_.size());
    return CallbackReturn::ERROR;
  }
  const auto numbers = [&](const char * name) { return node->get_parameter(name).as_double_array(); };
  if (
    !take(numbers("command_low"), limits_.low) || !take(numbers("command_high"), limits_.high) ||
    !take(numbers("neutral"), limits_.neutral) || !take(numbers("command_rate"), limits_.rate) ||
    !take(numbers("position_low"), limits_.position_low) || !take(numbers("position_high"), limits_.position_high)) {
    RCLCPP_ERROR(
      node->get_logger(), "limits must be given: %d numbers each for commands, %d for positions", {UPPER}_COMMANDS,
      Limits::kPositions);
    return CallbackReturn::ERROR;
  }
  for (int i = 0; i < {UPPER}_COMMANDS; i++)
    if (!(limits_.low[i] <= limits_.neutral[i] && limits_.neutral[i] <= limits_.high[i] && limits_.rate[i] > 0)) {
      RCLCPP_ERROR(node->get_logger(), "command %d: neutral must lie in its range, and its rate above 0", i);
      return CallbackReturn::ERROR;
    }
  limits_.max_missing = static_cast<int>(node->get_parameter("max_missing").as_int());
  max_pause_ = node->get_parameter("max_pause").as_double();
  subscription_ = node->create_subscription<std_msgs::msg::Float64MultiArray>(
    "~/reference", rclcpp::QoS(1).reliable(), [this, node](const std_msgs::msg::Float64MultiArray::SharedPtr message) {
      if (!reference_.write(message->data.data(), message->data.size()))
        RCLCPP_WARN(
          node->get_logger(), "a reference of %zu numbers is refused: it must be rows of %d finite numbers, at most %d",
          message->data.size(), {UPPER}_OUTPUTS, Reference::kRows);
    });
  return CallbackReturn::SUCCESS;
}

CallbackReturn {class}::on_activate(const rclcpp_lifecycle::State &)
{
  if (
    !find(state_interfaces_, state_names_, state_index_) ||
    !find(command_interfaces_, command_names_, command_index_)) {
    RCLCPP_ERROR(get_node()->get_logger(), "not every interface that the policy needs was given");
    return CallbackReturn::ERROR;
  }
  begin();
  float output[{UPPER}_OUTPUTS];
  {name}_output(measured_, output);
  reference_.hold(output);  // until a reference comes, where it is
  step_ = 0;
  return CallbackReturn::SUCCESS;
}

CallbackReturn {class}::on_deactivate(const rclcpp_lifecycle::State &)
{
  limits_.stop(command_);
  apply();
  return CallbackReturn::SUCCESS;
}

controller_interface::return_type {class}::update(const rclcpp::Time &, const rclcpp::Duration & period)
{
  since_step_ += period.seconds();
  // Faster updates than the policy's hold its command; half of an update early is on time.
  if (since_step_ + 0.5 * period.seconds() < {UPPER}_PERIOD_S) {
    apply();
    return controller_interface::return_type::OK;
  }
  if (since_step_ > max_pause_ * {UPPER}_PERIOD_S) begin();
  since_step_ = 0.0;
  measure();
  if (reference_.update()) {
    step_ = 0;
{begin_trajectory}  }
  const Reference & reference = reference_.get();
  Verdict verdict = limits_.check(measured_);
  if (verdict == Verdict::kGood || verdict == Verdict::kMissing) {
    {name}_points(reference.points.data(), reference.rows, step_, points_);
    const int status = {name}_step(&memory_, measured_, points_, command_);
    if (step_ < reference.rows) step_++;
    if (status & {UPPER}_LOST) verdict = Verdict::kLost;
    if (status & {UPPER}_NO_COMMAND) verdict = Verdict::kNoCommand;
  }
  if (verdict == Verdict::kGood) {
    limits_.limit(command_);
  } else {
    limits_.stop(command_);  // as the robot's own loop: neutral in a step without a measurement
  }
  {name}_applied(&memory_, command_);
  apply();
  if (verdict == Verdict::kGood || verdict == Verdict::kMissing) return controller_interface::return_type::OK;
  RCLCPP_ERROR(get_node()->get_logger(), "stopped: %s", describe(verdict));
  return controller_interface::return_type::ERROR;
}

void {class}::begin()
{
  measure();
  limits_.begin();
  {name}_begin(&memory_, measured_, limits_.neutral.data());
  for (int i = 0; i < {UPPER}_COMMANDS; i++) command_[i] = limits_.neutral[i];
  since_step_ = {UPPER}_PERIOD_S;  // the next update runs the policy
}

void {class}::measure()
{
  for (int i = 0; i < {UPPER}_MEASURED; i++)
    measured_[i] = static_cast<float>(read(state_interfaces_[state_index_[i]], 0));
}

void {class}::apply()
{
  for (int i = 0; i < {UPPER}_COMMANDS; i++)
    static_cast<void>(command_interfaces_[command_index_[i]].set_value(static_cast<double>(command_[i])));
}

}  // namespace {package}

PLUGINLIB_EXPORT_CLASS({package}::{class}, controller_interface::ControllerInterface)
"""

README = """# {package}

A policy that firsthand has trained, as a ros2_control controller. Build and start it:

```
cp -r {package} ~/ros2_ws/src/ && cd ~/ros2_ws && colcon build --packages-select {package}
ros2 run controller_manager spawner {package} --param-file src/{package}/config/{package}.yaml
ros2 topic pub --once /{package}/reference std_msgs/msg/Float64MultiArray "{data: [...]}"
```

1. **Name your interfaces** in `config/{package}.yaml`: `state_interfaces` and `command_interfaces`, in the order of
   the policy. Units are those of training.
2. **Set the limits** there: range and rate of commands, `neutral`, joint limits.
3. **Send references** on `~/reference`: rows of coordinates of the tracked output, one row per policy period,
   beginning now, at most {maximum} rows. A new one replaces the old; after the last row it is held. Without one the
   robot holds where it was activated.

The policy runs at its own period, also where the controller manager is faster. `update` allocates nothing.

**A fault** (joint outside its limits, measurements missing for too long, no finite command) writes neutral and returns
ERROR. **What is not here** and firsthand-onboard's gate has: stopping distances in front of joint limits, the
workspace box, acceleration limits, chatter, frozen sensors, the watchdog process. Keep your hardware's own limits on.

`test/{name}_policy_test.c` checks the policy against its test vectors: `colcon test`, or
`cc -std=c99 -O3 -Iinclude/{package} src/{name}_policy.c test/{name}_policy_test.c -lm && ./a.out`.
"""
