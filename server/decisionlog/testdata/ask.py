"""Runs SQL in DuckDB: statements and questions as JSON on standard input, the questions' rows as JSON on standard output."""
import json
import sys

import duckdb

asked = json.load(sys.stdin)
db = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
for statement in asked["statements"]:
    db.execute(statement)
answers = []
for question in asked["questions"]:
    answer = db.execute(question)
    answers.append({"rows": [[str(v) for v in row] for row in answer.fetchall()]})
json.dump(answers, sys.stdout)
