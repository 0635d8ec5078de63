"""Passes descriptors of all kinds through the bus in place of a configuration file.

Arguments: the front's program, a folder, a configuration file. Prints a line for each kind.
"""

import array
import fcntl
import json
import os
import socket
import subprocess
import sys

front, folder, conf = sys.argv[1:]
text = open(conf, "rb").read()


def memory(sealed):
    descriptor = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(descriptor, text)
    if sealed:
        # F_ADD_SEALS of fcntl(2): SEAL, SHRINK, GROW, WRITE.
        fcntl.fcntl(descriptor, 1033, 15)
    return descriptor


os.mkfifo(folder + "/fifo")
os.symlink("/etc/shadow", folder + "/link")
kinds = {
    "fifo": os.open(folder + "/fifo", os.O_RDONLY | os.O_NONBLOCK),
    "endless": os.open("/dev/zero", os.O_RDONLY),
    "folder": os.open(folder, os.O_RDONLY),
    "link": os.open(folder + "/link", os.O_PATH | os.O_NOFOLLOW),
    "name": os.open("/etc/shadow", os.O_PATH),
    "socket": socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach(),
    "file": os.open(conf, os.O_RDONLY),
    "unsealed": memory(False),
    "sealed": memory(True),
}
request = {"Up": {"tunnel": "u-home", "source": {"Passed": {"key_files": []}}}}
message = json.dumps({"version": 1, "message": request}).encode()
for kind, descriptor in kinds.items():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rights = array.array("i", [descriptor]).tobytes()
    near.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    ended = subprocess.run([front, "call"], stdin=far, capture_output=True, text=True)
    lines = ended.stderr.splitlines() or [""]
    # A refusal is one line; `taupe up` prints more.
    print(kind, ended.returncode, lines[0] if ended.returncode == 0 else "|".join(lines))
