// The part of ROS 2 that an exported controller uses, for a test without ROS.
#pragma once

namespace rclcpp_lifecycle
{
class State
{
};
namespace node_interfaces
{
struct LifecycleNodeInterface
{
  enum class CallbackReturn { SUCCESS, FAILURE, ERROR };
};
}  // namespace node_interfaces
}  // namespace rclcpp_lifecycle
