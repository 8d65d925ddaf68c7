"""From replicas to the cheapest fleet: pools, search, explanation, the plan."""
