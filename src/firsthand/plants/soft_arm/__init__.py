"""The simulated soft arm: three cable-driven segments standing upright."""

from firsthand.plants.soft_arm.arm import SoftArm as SoftArm
from firsthand.plants.soft_arm.arm import SoftArmState as SoftArmState
from firsthand.plants.soft_arm.parameters import ArmEffects as ArmEffects
from firsthand.plants.soft_arm.parameters import SoftArmParameters as SoftArmParameters
