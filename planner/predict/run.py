"""temporary"""

import math
import sys

import numpy as np

sys.path.insert(0, "/work/shared/design/prototype")
import kernel as K

from planner.predict.records import Run


def replay(requests, replicas, clients=None, cache=None, decoders=None, outages=(), limits=(), gaps=False, stop=None):
    n = requests.size
    keys = requests.key
    lim, allowed = math.inf, math.inf
    for l in limits:
        if l.metric == "ttft_s":
            lim, allowed = l.limit_s, l.late
    assert replicas.engine == "mixed"
    tt, dn, ad, tot, bad = K.run(
        K.cost_of(replicas.iteration),
        requests.input_tokens - requests.cached_tokens,
        requests.output_tokens,
        requests.arrival_s,
        budget=min(replicas.token_budget, 1e9),
        slots=min(replicas.slots, 1e9),
        kv=min(replicas.kv_tokens, 1e15),
        replicas=replicas.count,
        routing=replicas.routing if replicas.routing in K.ROUTINGS else "random",
        keys=keys,
        limit=lim,
        allowed=allowed,
    )
    a = requests.arrival_s
    z = np.zeros(n, np.int32)
    # prototype stops before
    rs = np.full(replicas.count, np.nansum(dn - ad) / replicas.count)
    return Run(
        a,
        ad,
        a + tt,
        dn,
        z,
        z,
        z,
        z,
        z,
        np.zeros(n),
        np.zeros(n),
        np.full(n, np.nan),
        z,
        rs * 0,
        rs * 0,
        rs,
        rs * 0,
        ended_early=(1 if bad else -1),
    )
