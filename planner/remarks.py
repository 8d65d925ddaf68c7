"""What a plan has to say, as a code with values; the sentences are made here and nowhere else."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.record import Record
from planner.units import format_count, format_duration, format_percent, format_usd


@dataclass(frozen=True, slots=True)
class Remark(Record):
    """One finding.

    Parameters
    ----------
    code
        What it is, for programs.
    values
        The numbers and names in it, JSON-ready.
    """

    code: str
    values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return _WRITER.format(SENTENCES[self.code], **self.values)


class _Writer(string.Formatter):
    """Format strings that know our units."""

    units: Mapping[str, Callable[[float], str]] = {
        "count": format_count,
        "duration": format_duration,
        "percent": format_percent,
        "usd": format_usd,
        "s": lambda n: "" if n == 1 else "s",
    }

    def format_field(self, value: Any, format_spec: str) -> str:
        """One value, in a unit or as usual."""
        unit = self.units.get(format_spec) if isinstance(value, (int, float)) else None
        return str(super().format_field(value, format_spec)) if unit is None else unit(value)


_WRITER = _Writer()

SENTENCES: Mapping[str, str] = {
    # why a pool has the replicas it has
    "promise": "{promise} (one replica fewer breaks it)",
    "fleet_promise": "{promise} of the fleet, shared out between its pools",
    "only_pool_promise": "{promise}",
    "minimum": "the minimum of {replicas} replicas",
    "one_replica": "the minimum of one",
    "utilization_cap": "utilization cap {cap:.0%} of the maximum throughput",
    "hardware_floor": "what the arithmetic alone takes at the GPU's peak",
    "nobody_decodes": "nobody decodes",
    "stands": "the plan, whose fleet stands",
    # assumptions
    "iteration_times": "{model} ({dtype}) on {gpu} x {parallel}: iteration times {trust}{likeness}{profile}",
    "gpu_price": "{gpu} at ${price:g} per GPU and hour{source}",
    "chosen": "chosen, as not given: {what}",
    "osl_scale": "every output is {factor:.10g} times as long as in the workload (--osl-scale)",
    "dropped_longer": "{share:.3%} of requests are longer than {tokens:,} tokens and left out (--drop-longer-than)",
    "shared_prefix": "every prompt longer than {tokens:,} tokens begins with the same {tokens:,}: found in every cache and kept "
    "there once; {share:.1%} of prompts are no longer and share nothing (--shared-prefix)",
    "own_rate": "rate {rate:count} requests/s, the workload's own mean",
    "short_trace": "rate {rate:count} requests/s, the mean of a trace of {span_s:duration}: how much busier the busiest hour of a "
    "day is it cannot know (--rate, --headroom)",
    "busiest_hour": "rate {rate:count} requests/s, the busiest hour's: {ratio:.2f} times the mean of {mean:count} (--rate-is peak "
    "takes the rate as given)",
    "headroom": "sized for {rate:count} requests/s: {before:count} and {headroom:percent} headroom",
    "paced": "{clients:,} clients that send at constant gaps each",
    "surge": "flash crowds of {factor:g} times the rate for {length_s:duration}{ramp}: the promises are kept for their requests "
    "and those of as long after them; {rate:count} requests/s is the rate between them",
    "in_flight": "clients have {limit:,} requests under way at most: one beyond waits with its client, which no latency counts",
    "poisson": "Poisson arrivals",
    "arrivals": "{assumed}",
    "bursts": "bursts as in the trace: index of dispersion of counts {windows}{scaled} (--burst poisson ignores them)",
    "failures": "a replica fails {failures_per_hour:g} times an hour and is back after {repair_hours:g} h "
    "(failures_per_hour, repair_hours in a configuration file)",
    "length_split": "lengths: {split}",
    "no_compression": "compression not proposed: no category of the workload is known to be compressible "
    "(--p-c gives a share)",
    "gateway": "gateway: {summary} (--routing {routing}): {gateway}",
    "room": "pools keep room for their longest prompt and an output of {output:,} tokens (--max-output); a client that sends no "
    "max_tokens may go on to --max-model-len",
    "oracle": "routing on input + output tokens{because}: an oracle for the output length; pools keep room for the longest "
    "request seen, no more (--route-on input is what a gateway sees)",
    "kv_transfer": "KV cache over {gbps:g} Gbit/s per GPU plus {base_s:duration}: {kib_per_token:,.0f} KiB per token, "
    "{mean_s:duration} for a prompt of mean length (--kv-transfer-gbps, --kv-transfer-base); transfers do not delay each other",
    "prefill_caches": "prompts that come back are kept by the prefill replicas, answers are not: they are computed again with the "
    "next prompt; every prompt is moved whole",
    "prefill_replica": "a prefill replica takes one whole prompt at a time; {spread}; decode replicas are chosen at random",
    # notes
    "caveat": "{text}",
    "small_fleet": "a fleet of this size is what the trace's own {rate:count} requests/s need; try --rate 1000",
    "spot": "{pool}: {spot:,} of the {replicas:,} replicas on spot at {price:usd} per GPU and hour",
    "speculation_gains": "{pool}: speculation yields {tokens:.2f} tokens a step{assumed}; median TPOT {tpot_s:duration} at load "
    "{load:.2f}, {plain_s:duration} without it; a replica sustains {capacity:count}/s, {plain_capacity:count}/s without: it gains "
    "at every load",
    "speculation_crosses": "{pool}: speculation yields {tokens:.2f} tokens a step{assumed}; median TPOT {tpot_s:duration} at load "
    "{load:.2f}, {plain_s:duration} without it; a replica sustains {capacity:count}/s, {plain_capacity:count}/s without: it loses "
    "from load {crossing:.2f} on",
    "cost_of_bursts": "bursts cost {extra:,} of the {replicas:,} replicas: Poisson arrivals would need {calm:,} "
    "(--burst poisson)",
    "cost_of_bursts_unshared": "bursts cost {extra:,} of the {replicas:,} replicas: Poisson arrivals would need {calm:,} "
    "(--burst poisson); a gateway that compares replicas shares them better (--routing p2c, least)",
    "other_growth": "traffic beyond the trace's own taken as more {growth} would break {promise}: {value_s:duration} with this "
    "fleet (--growth {growth} sizes for it)",
    "moves": "from the fleet there is: {pool} keeps {keep:,}, takes {move:,} restarted with its settings and adds {add:,} x {what}",
    "retire": "from the fleet there is: retire {retire:,} of {pool} (TP{tp} of {gpu})",
    "chance": "the promises hold with a chance of about {share:.0%}, as far as the errors of iteration times, method and sample "
    "are known ({promise} is the least sure); {measure} would narrow it most",
    "oracle_compresses": "a gateway that knows output lengths and shortens prompts of up to {gamma:g} x {boundary:count} tokens "
    "({compressed:percent} of requests, each succeeding with p_c {p_c}) would take {usd_per_hour:usd}/hour, {saving:percent} less "
    "(--compress)",
    "scheduler": "{pool}: under {scheduler} a replica completes at most {capacity_per_s:.4g} requests/s by theory ({source}), "
    "{simulated_per_s:.4g} as simulated with a backlog; {replicas:,} replicas keep the promises in simulation, of which its "
    "capacity asks for {least_replicas:,}; the engine's own scheduler takes {own_replicas:,}",
    "scheduler_costs": "under {scheduler} the fleet takes {usd_per_hour:usd}/hour, under the engine's own scheduler "
    "{own_usd_per_hour:usd}",
    "scheduler_poisson": "latencies under {scheduler} are simulated ({runs} runs of {requests:,} requests of one replica, Poisson "
    "arrivals, any replica at random; bands are 95% intervals)",
    "compression_costs": "{borderline:percent} of the prompts are tried by the compressor ({source}: median {p50_s:duration}, P99 "
    "{p99_s:duration} a prompt, which their TTFT bears): {busy:.2f} CPU cores busy, {cores:,} bought, {usd_per_hour:usd}/hour "
    "beside the GPUs (--cpu-price)",
    "compression_by_p_c": "at {boundary:count} tokens, an hour at {costs} (none, the measured share with its 95% interval, all)",
    "compression_by_gamma": "at {boundary:count} tokens and the measured share, an hour at {costs}",
    "compression_pays_nothing": "as measured, compressing prompts does not pay here; if every prompt of what can be compressed at "
    "all were, the fleet would take {usd_per_hour:usd}/hour",
    "compression_elsewhere": "compression was measured at {measured:count} tokens, gamma {measured_gamma:g}; the plan compresses "
    "at {boundary:count}, gamma {gamma:g}, where p_c and times may differ: fleetopt compress measure --boundary {boundary:.0f} "
    "--gamma {gamma:g}",
    "compression_breaks": "{pool}: {promise} is {value_s:duration} and up to {with_compression_s:duration} for a prompt that is "
    "compressed, above the {limit_s:duration} promised",
    "oracle_saves": "a gateway that knows output lengths and cuts at {boundary:count} tokens would take {usd_per_hour:usd}/hour, "
    "{saving:percent} less (--route-on total)",
    "oracle_saves_nothing": "knowing output lengths and compressing prompts saves nothing here (the best cut: {boundary:count} "
    "tokens, gamma {gamma:g}; --compress)",
    "at_no_size": "{pools} of the pools examined keep {promise} at no size (the nearest, idle, needs {best})",
    "full_occupancy": "a pool up to {boundary:count} tokens has {slots} slots, its iterations take {iteration_s:duration} when "
    "all are busy, and a long prompt's prefill and first token {first_token_s:duration}: eq. 8 leaves nothing below that",
    "unproven": "the search sized {sized} pool{sized:s} to choose among {fleets:count} fleets: no other is expected to be cheaper, "
    "but proven is only that none saves more than {gap_usd_per_hour:usd}/hour",
    "other_shape_fails": "{shape} does not keep the promises: {reason}",
    "host_memory_loses": "host memory for prompts ({gib:g} GiB) is not used: fetching them takes longer than it saves, the fleet "
    "with it would cost {with_usd_per_hour:usd}/hour",
    "host_memory_fails": "host memory for prompts ({gib:g} GiB) is not used: with it no fleet keeps the promises",
    "routing_chosen": "routing {routing} is the cheapest for these sessions: {others}",
    "other_shape": "{best}: {best_usd_per_hour:usd}/hour; {shape} would cost {usd_per_hour:usd}/hour ({saved:percent} saved)",
    # warnings
    "admits_less": "{pool}: admits {admitted:,} tokens, its longest prompt with the longest output has {room:,}: {cut:.2%} of the "
    "requests seen would be cut",
    "profile_band": "{pool}: if iterations take {band:percent} longer than the {provenance} profile says, a promise breaks at "
    "any number of replicas; calibrate before buying (fleetopt calibrate)",
    "pool": "{pool}: {warning}",
    "no_promise": "{pool}: the prediction is not reliable here, so its latency is no promise and no chance of one is told; "
    "--verify decides (sized with the margin that held in 95% of the cases simulated)",
    "below_hardware": "impossible on this hardware: {gpus:,} GPUs, but the arithmetic alone takes {least:,.0f} {gpu} at 100% of "
    "peak; profile {profile} does not charge for prefill or reads",
    "not_searched": "{option} of {names} changes nothing: not among the GPU types searched (--gpu)",
    "no_sessions": "{option} changes nothing: prefix caches are computed from the sessions of a workload, and none are taken here",
    "other_profile": "--{option} changes nothing: profile {profile} is of {model} on {gpu}",
    "spot_without_price": "--spot-share changes nothing without a spot price (--spot-price GPU=USD)",
    "spot_without_share": "--spot-price changes nothing without --spot-share: all replicas are on demand",
}
"""Code -> the sentence, a format string over the remark's values."""
