"""A ZeroMQ socket of libzmq, driven line by line.

    peer.py TYPE bind|connect ADDRESS [OPTION=VALUE...]

Prints "ready PORT" and then obeys lines of standard input, answering each with a line:

    subscribe TOPIC            subscribe (SUB)
    send FRAME...              send a message
    flood FIRST COUNT SIZE     send messages t, sequence number, SIZE bytes that repeat its last byte
    recv                       receive a message: got FRAME...
    drain MS                   receive until MS pass without a message: drained COUNT FIRST LAST FAULTS
    replay COUNT               answer a request of "", START as an engine's replay socket does (ROUTER)

Frames and topics are hexadecimal; - is the empty one; larger ones are shown as *LENGTH:CRC32.
Options: sndhwm, rcvhwm, heartbeat (ms), mechanism (PLAIN or CURVE, this side being the server).
The end of standard input ends the process, and so do two minutes.
"""

import errno
import queue
import signal
import sys
import threading
import time
import zlib

import zmq

END = b"\xff" * 8


def show(frame):
    if len(frame) > 64:
        return f"*{len(frame)}:{zlib.crc32(frame)}"
    return frame.hex() or "-"


def frame(text):
    return b"" if text == "-" else bytes.fromhex(text)


def body(seq, size):
    return bytes([seq & 0xFF]) * size


def open_socket(context, kind, how, address, options):
    socket = context.socket(getattr(zmq, kind))
    socket.linger = 0
    socket.ipv6 = "[" in address
    socket.rcvtimeo = 20_000
    if "sndhwm" in options:
        socket.sndhwm = int(options["sndhwm"])
    if "rcvhwm" in options:
        socket.rcvhwm = int(options["rcvhwm"])
    if "heartbeat" in options:
        socket.heartbeat_ivl = int(options["heartbeat"])
        socket.heartbeat_timeout = 50 * int(options["heartbeat"])
        socket.heartbeat_ttl = 60_000
    if options.get("mechanism") == "PLAIN":
        socket.plain_server = True
    if options.get("mechanism") == "CURVE":
        _, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_server = True
    (bind if how == "bind" else zmq.Socket.connect)(socket, address)
    return socket


def bind(socket, address):
    """Binds, and waits for a port that another process has for a moment."""
    for attempt in range(100):
        try:
            return socket.bind(address)
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE or attempt == 99:
                raise
            time.sleep(0.1)


def flood(socket, first, count, size):
    for seq in range(first, first + count):
        socket.send_multipart([b"t", seq.to_bytes(8, "big"), body(seq, size)])
    return "flooded"


def drain(socket, wait):
    count, faults, first, last = 0, 0, -1, -1
    while socket.poll(wait):
        topic, seq, payload = socket.recv_multipart()
        seq = int.from_bytes(seq, "big")
        if topic != b"t" or seq <= last or payload != body(seq, len(payload)):
            faults += 1
        count, first, last = count + 1, seq if count == 0 else first, seq
    return f"drained {count} {first} {last} {faults}"


def replay(socket, count):
    peer, empty, start = socket.recv_multipart()
    for seq in range(int.from_bytes(start, "big"), count):
        socket.send_multipart([peer, empty, seq.to_bytes(8, "big"), body(seq, 100)])
    socket.send_multipart([peer, empty, END, b""])
    return f"replayed {int.from_bytes(start, 'big')}"


def obey(socket, command, arguments):
    if command == "subscribe":
        socket.subscribe(frame(arguments[0]))
        return "subscribed"
    if command == "send":
        socket.send_multipart([frame(a) for a in arguments])
        return "sent"
    if command == "recv":
        return "got " + " ".join(show(f) for f in socket.recv_multipart())
    return {"flood": flood, "drain": drain, "replay": replay}[command](socket, *map(int, arguments))


def orders(socket):
    """Lines of standard input. Between them the socket is looked at, since libzmq greets a bound socket's peers only
    from its user's calls."""
    lines = queue.Queue()

    def read():
        for line in sys.stdin:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=0.01)
        except queue.Empty:
            socket.get(zmq.EVENTS)
            continue
        if line is None:
            return
        yield line


def main():
    signal.alarm(120)
    kind, how, address, *options = sys.argv[1:]
    with zmq.Context() as context:
        with open_socket(context, kind, how, address, dict(o.split("=") for o in options)) as socket:
            print("ready", socket.last_endpoint.decode().rsplit(":", 1)[1], flush=True)
            for line in orders(socket):
                command, *arguments = line.split()
                try:
                    print(obey(socket, command, arguments), flush=True)
                except zmq.ZMQError as error:
                    print("error", error, flush=True)


main()
