# Encrypts or decrypts with pyrage, the Python interface of the crate age.
#
# usage: age.py encrypt RECIPIENT <plain >base64
#        age.py decrypt KEY-FILE <base64 >plain
import base64
import sys

import pyrage

action, argument = sys.argv[1:]
data = sys.stdin.buffer.read()
if action == "encrypt":
    recipient = pyrage.x25519.Recipient.from_str(argument)
    sys.stdout.buffer.write(base64.b64encode(pyrage.encrypt(data, [recipient])))
else:
    with open(argument, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.startswith("AGE-SECRET-KEY-")]
    identities = [pyrage.x25519.Identity.from_str(line) for line in lines]
    sys.stdout.buffer.write(pyrage.decrypt(base64.b64decode(data), identities))
