"""From a workload to the cheapest fleet: replica, pool, fleet, explanation."""
