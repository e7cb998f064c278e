"""The part that learner and robot share, without JAX: specification, state, kinematics, references, policy."""

from .arm_model import ArmModel as ArmModel
from .numpy_observer import NumpyController as NumpyController
from .numpy_observer import NumpyObserver as NumpyObserver
from .observer import ObserverSettings as ObserverSettings
from .policy import NumpyPolicy as NumpyPolicy
from .policy_file import load_controller as load_controller
from .policy_file import load_observer as load_observer
from .policy_file import load_policy as load_policy
from .policy_file import policy_to_bytes as policy_to_bytes
from .serial_chain import ChainJoint as ChainJoint
from .serial_chain import SerialChain as SerialChain
from .spec import ControlSpec as ControlSpec
from .spec import Limits as Limits
from .spec import PlanarChain as PlanarChain
from .spec import PlanarJoint as PlanarJoint
from .spec import PolicyShape as PolicyShape
from .spec import ReferenceSpec as ReferenceSpec
from .spec import Scales as Scales
from .spec import SelectedOutput as SelectedOutput
from .spec import SpecError as SpecError
from .spec import StateLayout as StateLayout

__version__ = "0.1.0"
