#!/usr/bin/env bash
# Prints the path of a Python with DuckDB; see python.sh. SLUICE_DUCKDB names another one.
exec "$(dirname "$0")/python.sh" duckdb SLUICE_DUCKDB 'import duckdb; print({42: "yes"}[duckdb.sql("select 42").fetchall()[0][0]])'
