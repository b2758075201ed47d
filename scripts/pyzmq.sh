#!/usr/bin/env bash
# Prints the path of a Python with pyzmq, and so libzmq; see python.sh. SLUICE_PYZMQ names another one.
exec "$(dirname "$0")/python.sh" pyzmq SLUICE_PYZMQ 'import zmq; print({4: "yes"}[zmq.zmq_version_info()[0]])'
