#!/usr/bin/env bash
# Prints the path of a Python with XGBoost; see python.sh. SLUICE_XGBOOST names another one.
exec "$(dirname "$0")/python.sh" xgboost SLUICE_XGBOOST 'import numpy, xgboost; print({2: "yes"}[xgboost.DMatrix(numpy.zeros((2, 1))).num_row()])'
