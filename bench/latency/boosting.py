"""Predicts the rows of samples with XGBoost, each by a model that was trained on what had ended before it was picked.

    boosting.py ROWS PREDICTIONS [--every N] [--least N] [--threads N]

ROWS are JSON lines as bench/latency writes them; PREDICTIONS gets a line for each, with a prediction in ms by each model, null
before there is one. The hyper-parameters and the features of the models without "more" in their names are those of llm-d's latency
predictor; "more" adds what a router can know besides.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

Row = dict[str, Any]

TREES = 200
PARAMETERS: dict[str, Any] = {
    "max_depth": 6,
    "learning_rate": 0.05,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "min_child_weight": 5,
    "gamma": 0.2,
    "reg_alpha": 0.01,
    "reg_lambda": 0.1,
    "tree_method": "hist",
    "seed": 1,
}
PREFIX_BUCKETS = 4


def ttft_features(row: Row) -> list[float]:
    """What llm-d's model of the time to the first token sees; the last one is a category."""
    score = min(max(row["prefix_cache_score"], 0.0), 1.0)
    return tpot_features(row) + [
        row["prefix_cache_score"],
        (1 - row["prefix_cache_score"]) * row["input_token_length"],
        min(int(score * PREFIX_BUCKETS), PREFIX_BUCKETS - 1),
    ]


def tpot_features(row: Row) -> list[float]:
    """What its model of the time per token sees."""
    return [
        float(row["num_request_waiting"] > 0),
        row["kv_cache_percentage"],
        row["input_token_length"],
        row["num_request_waiting"],
        row["num_request_running"],
        row["prefill_tokens_in_flight"],
        row["decode_tokens_in_flight"],
    ]


def more_features(row: Row) -> list[float]:
    """All of it, and what else is known at the pick: exact uncached tokens, their attention, decodes, the phase of the engine's step."""
    uncached = row["uncached_tokens"]
    known = [uncached, uncached * (row["input_token_length"] - uncached / 2), row["decoding"], row["since_chunk_ms"], row["endpoint"]]
    return known + ttft_features(row)


@dataclass(frozen=True)
class Model:
    """What is trained: target and features, whether on the logarithm, and the quantile; None is the mean."""

    name: str
    target: str
    features: Any
    categories: int = 0  # how many of the last features are categories
    log: bool = False
    quantile: float | None = None

    def train(self, rows: list[Row], threads: int) -> xgboost.Booster:
        y = np.array([row[self.target] for row in rows])
        parameters = PARAMETERS | {"nthread": threads}
        if self.quantile is None:
            parameters["objective"] = "reg:squarederror"
        else:
            parameters |= {"objective": "reg:quantileerror", "quantile_alpha": self.quantile}
        return xgboost.train(parameters, self.matrix(rows, np.log(y) if self.log else y), TREES)

    def predict(self, booster: xgboost.Booster, rows: list[Row]) -> np.ndarray:
        said = booster.predict(self.matrix(rows))
        return np.exp(said) if self.log else np.maximum(said, 0)

    def matrix(self, rows: list[Row], labels: np.ndarray | None = None) -> xgboost.DMatrix:
        x = np.array([self.features(row) for row in rows], dtype=np.float64)
        types = ["q"] * (x.shape[1] - self.categories) + ["c"] * self.categories
        return xgboost.DMatrix(x, labels, feature_types=types, enable_categorical=True)


TTFT, TPOT = "actual_ttft_ms", "actual_tpot_ms"
MODELS = [
    Model("ttft_mean", TTFT, ttft_features, 1),
    Model("ttft_log", TTFT, ttft_features, 1, log=True),
    Model("ttft_p90", TTFT, ttft_features, 1, quantile=0.9),
    Model("ttft_mean_more", TTFT, more_features, 1),
    Model("ttft_log_more", TTFT, more_features, 1, log=True),
    Model("tpot_mean", TPOT, tpot_features),
    Model("tpot_log", TPOT, tpot_features, log=True),
]


def prequential(rows: list[Row], every: int, least: int, threads: int) -> list[dict[str, float | None]]:
    """A prediction of each row by each model. Every so many rows the models are trained anew, on all rows that ended before the next
    one was picked, once there are at least so many."""
    said: list[dict[str, float | None]] = [{m.name: None for m in MODELS} for _ in rows]
    for begin in range(every, len(rows), every):
        ended = [row for row in rows[:begin] if row["end_ms"] <= rows[begin]["pick_ms"]]
        for model in MODELS:
            known = [row for row in ended if row[model.target] > 0]
            if len(known) < least:
                continue
            part = rows[begin : begin + every]
            for i, value in enumerate(model.predict(model.train(known, threads), part)):
                said[begin + i][model.name] = round(float(value), 4)
        if begin // every % 10 == 0:
            print(f"boosting: {begin} of {len(rows)} rows", file=sys.stderr, flush=True)
    return said


def load(path: Path) -> list[Row]:
    """The rows of a file, in the order of their picks. An error names the line."""
    rows: list[Row] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            row["pick_ms"], row["end_ms"], more_features(row), float(row[TTFT]), float(row[TPOT])
        except (ValueError, KeyError, TypeError) as problem:
            raise SystemExit(f"boosting: {path}: line {number}: {problem!r}") from problem
        rows.append(row)
    if not rows:
        raise SystemExit(f"boosting: {path}: has no rows")
    if any(a["pick_ms"] > b["pick_ms"] for a, b in zip(rows, rows[1:])):
        raise SystemExit(f"boosting: {path}: rows are not in the order of their picks")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="boosting", description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--every", type=int, default=500, help="rows between two trainings")
    parser.add_argument("--least", type=int, default=100, help="rows that a first training needs")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    for name in ("every", "least", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: must be > 0, got {getattr(options, name)}")
    try:
        rows = load(options.rows)
        said = prequential(rows, options.every, options.least, options.threads)
        options.predictions.write_text("".join(json.dumps(line) + "\n" for line in said))
    except OSError as problem:
        raise SystemExit(f"boosting: {problem}") from problem


if __name__ == "__main__":
    main()
