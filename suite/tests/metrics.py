"""Reads metrics with the parser of Prometheus' own client library, checks them, and prints each sample as JSON.

usage: metrics.py DEVICE FSTYPE MOUNTPOINT: what the labels of every sample say, which are not printed
"""

import json
import sys

from prometheus_client.parser import text_string_to_metric_families

text = sys.stdin.read()
mount = dict(zip(("device", "fstype", "mountpoint"), sys.argv[1:], strict=True))
samples = {}
for family in text_string_to_metric_families(text):
    assert family.type in ("counter", "gauge", "histogram"), family
    assert family.documentation.endswith("."), family
    buckets = {}
    for sample in family.samples:
        assert {name: sample.labels.pop(name, None) for name in mount} == mount, sample
        key = sample.name + json.dumps(sample.labels, sort_keys=True)
        assert key not in samples, f"{key} is there twice"
        samples[key] = sample.value
        labels = dict(sample.labels)
        bound = labels.pop("le", None)
        if sample.name.endswith("_bucket"):
            assert bound is not None, sample
            buckets.setdefault(json.dumps(labels), []).append((float(bound), sample.value))
        if family.type == "counter":
            assert sample.name.endswith("_total"), sample
    for labels, series in buckets.items():
        assert series == sorted(series) and series[-1][0] == float("inf"), series
        counts = [count for _, count in series]
        assert counts == sorted(counts), "buckets are cumulative"
        parts = [family.name + part + labels for part in ("_count", "_sum")]
        assert samples[parts[0]] == counts[-1] and samples[parts[1]] >= 0, labels
print(json.dumps(samples))
