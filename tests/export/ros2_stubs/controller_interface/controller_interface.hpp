#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rclcpp/rclcpp.hpp"
#include "rclcpp_lifecycle/state.hpp"

namespace hardware_interface
{
class Interface
{
public:
  Interface(std::string name, double * at) : name_(std::move(name)), at_(at) {}
  const std::string & get_name() const { return name_; }
  double get_value() const { return *at_; }
  void set_value(double value) { *at_ = value; }

private:
  std::string name_;
  double * at_;
};
}  // namespace hardware_interface

namespace controller_interface
{
using CallbackReturn = rclcpp_lifecycle::node_interfaces::LifecycleNodeInterface::CallbackReturn;
enum class return_type { OK, ERROR };
enum class interface_configuration_type { ALL, INDIVIDUAL, NONE };
struct InterfaceConfiguration
{
  interface_configuration_type type;
  std::vector<std::string> names;
};
class ControllerInterface
{
public:
  virtual ~ControllerInterface() = default;
  virtual CallbackReturn on_init() = 0;
  virtual InterfaceConfiguration command_interface_configuration() const = 0;
  virtual InterfaceConfiguration state_interface_configuration() const = 0;
  virtual CallbackReturn on_configure(const rclcpp_lifecycle::State &) { return CallbackReturn::SUCCESS; }
  virtual CallbackReturn on_activate(const rclcpp_lifecycle::State &) { return CallbackReturn::SUCCESS; }
  virtual CallbackReturn on_deactivate(const rclcpp_lifecycle::State &) { return CallbackReturn::SUCCESS; }
  virtual return_type update(const rclcpp::Time &, const rclcpp::Duration &) = 0;
  std::shared_ptr<rclcpp::Node> get_node() const { return node_; }
  std::vector<hardware_interface::Interface> command_interfaces_, state_interfaces_;

protected:
  template <typename T>
  T auto_declare(const std::string & name, const T & value)
  {
    node_->parameters.emplace(name, rclcpp::Parameter{value});
    return value;
  }

private:
  std::shared_ptr<rclcpp::Node> node_ = std::make_shared<rclcpp::Node>();
};
}  // namespace controller_interface
