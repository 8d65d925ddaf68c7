"""What the package lends, and where it lies: read when a name is first used, and by type checkers."""

__all__: list[str]

from planner.ask.batch import BatchRoom as BatchRoom
from planner.ask.batch import batch as batch
from planner.ask.batching import Batching as Batching
from planner.ask.batching import batching as batching
from planner.ask.capacity import Capacity as Capacity
from planner.ask.capacity import capacity as capacity
from planner.ask.classes import TieredPlan as TieredPlan
from planner.ask.classes import plan_tiers as plan_tiers
from planner.ask.costs import Costs as Costs
from planner.ask.costs import cost as cost
from planner.ask.evaluation import Evaluation as Evaluation
from planner.ask.evaluation import evaluate as evaluate
from planner.ask.growth import Growth as Growth
from planner.ask.growth import growth as growth
from planner.ask.overview import overview as overview
from planner.ask.plan import plan as plan
from planner.ask.schedule import Schedule as Schedule
from planner.ask.schedule import schedule as schedule
from planner.ask.services import ServicesPlan as ServicesPlan
from planner.ask.services import plan_services as plan_services
from planner.ask.simulate import Verification as Verification
from planner.ask.simulate import simulate as simulate
from planner.ask.stability import Stability as Stability
from planner.ask.stability import stability as stability
from planner.ask.wait import WaitSettings as WaitSettings
from planner.ask.wait import wait as wait
from planner.ask.what_if import Sweep as Sweep
from planner.ask.what_if import SweepPoint as SweepPoint
from planner.ask.what_if import what_if as what_if
from planner.calibrate import calibrate as calibrate
from planner.calibrate.result import Calibration as Calibration
from planner.calibrate.result import CalibrationSet as CalibrationSet
from planner.errors import CalibrationError as CalibrationError
from planner.errors import CheckFailedError as CheckFailedError
from planner.errors import FleetOptError as FleetOptError
from planner.errors import InfeasibleError as InfeasibleError
from planner.errors import InputError as InputError
from planner.operate.autoscale.derive import Autoscaling as Autoscaling
from planner.operate.autoscale.derive import autoscale as autoscale
from planner.operate.deploy import Rendered as Rendered
from planner.operate.deploy import deploy as deploy
from planner.operate.deploy.acceptance import Acceptance as Acceptance
from planner.operate.deploy.acceptance import accept as accept
from planner.operate.deploy.acceptance import acceptance_job as acceptance_job
from planner.operate.monitor.check import FleetCheck as FleetCheck
from planner.operate.monitor.check import check as check
from planner.operate.monitor.measured import metrics as metrics
from planner.operate.monitor.rules import monitoring_rules as monitoring_rules
from planner.papers.compare import Comparison as Comparison
from planner.papers.compare import compare_policies as compare_policies
from planner.papers.printed import Reproduction as Reproduction
from planner.papers.printed import reproduce as reproduce
from planner.plans import Plan as Plan
from planner.plans import PoolPlan as PoolPlan
from planner.promise import Promise as Promise
from planner.promise import Slo as Slo
from planner.shared.version import __version__ as __version__
from planner.workload.importing import load_workload as load_workload
from planner.workload.workload import Workload as Workload

HOME: dict[str, str]
