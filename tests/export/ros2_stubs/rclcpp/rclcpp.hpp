#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#define RCLCPP_ERROR(logger, ...) (static_cast<void>(logger), std::fprintf(stderr, __VA_ARGS__), std::fputc('\n', stderr))
#define RCLCPP_WARN(logger, ...) RCLCPP_ERROR(logger, __VA_ARGS__)

namespace rclcpp
{
struct Logger
{
};
class Time
{
};
class Duration
{
public:
  explicit Duration(double seconds) : seconds_(seconds) {}
  double seconds() const { return seconds_; }

private:
  double seconds_;
};
struct QoS
{
  explicit QoS(int) {}
  QoS & reliable() { return *this; }
};
template <typename Message>
struct Subscription
{
  using SharedPtr = std::shared_ptr<Subscription<Message>>;
  std::function<void(std::shared_ptr<Message>)> callback;
};
struct Parameter
{
  std::variant<std::vector<std::string>, std::vector<double>, int64_t, double> value;
  std::vector<std::string> as_string_array() const { return std::get<std::vector<std::string>>(value); }
  std::vector<double> as_double_array() const { return std::get<std::vector<double>>(value); }
  int64_t as_int() const { return std::get<int64_t>(value); }
  double as_double() const { return std::get<double>(value); }
};
class Node
{
public:
  Logger get_logger() const { return {}; }
  Parameter get_parameter(const std::string & name) const { return parameters.at(name); }
  template <typename Message, typename Callback>
  std::shared_ptr<Subscription<Message>> create_subscription(const std::string &, QoS, Callback callback)
  {
    auto made = std::make_shared<Subscription<Message>>();
    made->callback = callback;
    subscription = made;
    return made;
  }
  std::map<std::string, Parameter> parameters;
  std::shared_ptr<void> subscription;
};
}  // namespace rclcpp
