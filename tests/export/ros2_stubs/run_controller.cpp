// Runs an exported controller beside its C policy: what `update` writes must be the policy's command inside the limits.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "std_msgs/msg/float64_multi_array.hpp"
#include "toy_controller/controller.hpp"

std::unique_ptr<controller_interface::ControllerInterface> make_plugin();

static long allocations = 0;
void * operator new(std::size_t size)
{
  allocations++;
  return std::malloc(size);
}
void operator delete(void * at) noexcept { std::free(at); }
void operator delete(void * at, std::size_t) noexcept { std::free(at); }

static int failures = 0;
static void expect(bool good, const char * what)
{
  if (!good) {
    failures++;
    std::printf("FAILED: %s\n", what);
  }
}

int main()
{
  using controller_interface::return_type;
  using CallbackReturn = controller_interface::CallbackReturn;
  const rclcpp_lifecycle::State none;
  const rclcpp::Time now;
  auto controller = make_plugin();
  expect(controller->on_init() == CallbackReturn::SUCCESS, "on_init");
  expect(controller->on_configure(none) == CallbackReturn::ERROR, "no limits are no limits");
  auto & parameters = controller->get_node()->parameters;
  const double rate = 6.0;
  parameters["command_low"].value = std::vector<double>{-1.0, -2.0};
  parameters["command_high"].value = std::vector<double>{1.0, 1.0};
  parameters["neutral"].value = std::vector<double>{0.0, 0.0};
  parameters["command_rate"].value = std::vector<double>{rate, rate};
  parameters["position_low"].value = std::vector<double>{-3.0, -3.0};
  parameters["position_high"].value = std::vector<double>{3.0, 3.0};
  expect(controller->on_configure(none) == CallbackReturn::SUCCESS, "on_configure");
  double measured[TOY_MEASURED] = {0.1, -0.2}, written[TOY_COMMANDS] = {9.0, 9.0};
  const auto states = controller->state_interface_configuration().names;
  const auto commands = controller->command_interface_configuration().names;
  expect(states.size() == TOY_MEASURED && states[0] == "p0/position", "state interfaces");
  for (int i = TOY_MEASURED - 1; i >= 0; i--)  // in another order than asked for
    controller->state_interfaces_.emplace_back(states[i], &measured[i]);
  for (int i = 0; i < TOY_COMMANDS; i++) controller->command_interfaces_.emplace_back(commands[i], &written[i]);
  expect(controller->on_activate(none) == CallbackReturn::SUCCESS, "on_activate");

  // The same by hand.
  toy_memory memory;
  const float neutral[TOY_COMMANDS] = {0.0f, 0.0f};
  float y[TOY_MEASURED], points[TOY_POINTS * TOY_OUTPUTS], command[TOY_COMMANDS], last[TOY_COMMANDS] = {0.0f, 0.0f};
  for (int i = 0; i < TOY_MEASURED; i++) y[i] = static_cast<float>(measured[i]);
  toy_begin(&memory, y, neutral);
  float held[TOY_OUTPUTS];
  toy_output(y, held);

  auto * topic = static_cast<rclcpp::Subscription<std_msgs::msg::Float64MultiArray> *>(
    controller->get_node()->subscription.get());
  auto message = std::make_shared<std_msgs::msg::Float64MultiArray>();
  std::vector<float> reference(held, held + TOY_OUTPUTS);
  int rows = 1, step = 0, limited = 0, free_steps = 0;
  const float low[TOY_COMMANDS] = {-1.0f, -2.0f}, high[TOY_COMMANDS] = {1.0f, 1.0f};
  const float reach = static_cast<float>(rate) * static_cast<float>(TOY_PERIOD_S);
  for (int k = 0; k < 400; k++) {
    if (k == 20) {  // a reference of 50 rows; one that does not fit is refused
      message->data.assign(3, 0.0);
      topic->callback(message);
      rows = 50;
      message->data.resize(rows * TOY_OUTPUTS);
      reference.resize(rows * TOY_OUTPUTS);
      for (int i = 0; i < rows * TOY_OUTPUTS; i++) message->data[i] = reference[i] = std::sin(0.1f * i);
      topic->callback(message);
      step = 0;
    }
    if (k == 30) {  // one that is not finite is refused, too: the one before goes on
      message->data[1] = NAN;
      topic->callback(message);
    }
    for (int i = 0; i < TOY_MEASURED; i++) measured[i] = std::cos(0.07 * k + i);
    const bool missing = k == 100 || k == 101;
    if (missing) measured[1] = NAN;
    const long before = allocations;
    // The controller manager runs twice as fast as the policy: every other update only holds.
    const return_type first = controller->update(now, rclcpp::Duration(TOY_PERIOD_S / 2));
    const return_type second = k == 0 ? first : controller->update(now, rclcpp::Duration(TOY_PERIOD_S / 2));
    expect(allocations == before, "update allocates");
    expect(first == return_type::OK && second == return_type::OK, "update is OK");

    for (int i = 0; i < TOY_MEASURED; i++) y[i] = static_cast<float>(measured[i]);
    toy_points(reference.data(), rows, step, points);
    if (step < rows) step++;
    toy_step(&memory, y, points, command);
    for (int i = 0; i < TOY_COMMANDS; i++) {
      float wanted = std::fmin(std::fmax(command[i], last[i] - reach), last[i] + reach);
      wanted = missing ? 0.0f : std::fmin(std::fmax(wanted, low[i]), high[i]);
      limited += wanted != command[i];
      free_steps += wanted == command[i];
      expect(static_cast<float>(written[i]) == wanted, "update writes the policy's command inside its limits");
      command[i] = last[i] = wanted;
    }
    toy_applied(&memory, command);
  }
  expect(limited > 4 && free_steps > 100, "both limited and free commands were seen");

  measured[0] = 5.0;  // outside its limits
  controller->update(now, rclcpp::Duration(TOY_PERIOD_S / 2));
  expect(controller->update(now, rclcpp::Duration(TOY_PERIOD_S)) == return_type::ERROR, "a joint limit is a fault");
  expect(written[0] == 0.0 && written[1] == 0.0, "a fault writes neutral");
  measured[0] = 0.5;
  expect(controller->on_activate(none) == CallbackReturn::SUCCESS, "activated again");
  measured[0] = NAN;
  int good = 0;
  while (good < 10 && controller->update(now, rclcpp::Duration(TOY_PERIOD_S)) == return_type::OK) good++;
  expect(good == 3, "measurements may be missing three times in a row");
  written[0] = 1.0;
  controller->on_deactivate(none);
  expect(written[0] == 0.0, "deactivated in neutral");
  std::printf("%d limited, %d free, %d failures\n", limited, free_steps, failures);
  return failures != 0;
}
