"""Records exchanges of Choria's clients and servers. Used by scripts/interop --record.

Usage: choria-recorder.py SERVER CA FILE             writes every message to FILE, one JSON document per line
       choria-recorder.py pairs FILE OUTPUT CLIENT COMMAND   writes the last request of FILE with its reply
"""
import asyncio
import base64
import json
import ssl
import sys


async def record(server, ca, file):
    import nats

    tls = ssl.create_default_context(cafile=ca)
    client = await nats.connect(server, tls=tls)
    with open(file, "a") as out:

        async def write(message):
            body = message.data.decode()
            print(json.dumps({"subject": message.subject, "body": json.loads(body)}), file=out, flush=True)

        for subject in ["*.broadcast.>", "*.node.>", "*.reply.>"]:
            await client.subscribe(subject, cb=write)
        print("recording", flush=True)
        await asyncio.Event().wait()


def inner(document):
    """Returns the request or reply of a transport message."""
    secure = json.loads(base64.b64decode(document["data"]))
    return json.loads(base64.b64decode(secure.get("request") or secure["reply"]))


def pairs(file, output, client, command):
    messages = [json.loads(line) for line in open(file)]
    replies = {}
    for message in messages:
        if ".reply." in message["subject"]:
            replies[inner(message["body"])["request"]] = message
    for message in reversed(messages):
        request = None if ".reply." in message["subject"] else inner(message["body"])
        if request and request["id"] in replies:
            reply = replies[request["id"]]
            document = {
                "command": command,
                "subject": message["subject"],
                "request": message["body"],
                "reply": reply["body"],
                "client": json.load(open(client)) if client != "-" else None,
            }
            with open(output, "w") as out:
                json.dump(document, out, indent=2, sort_keys=True)
                out.write("\n")
            return
    sys.exit(f"no request with a reply in {file}")


if sys.argv[1] == "pairs":
    pairs(*sys.argv[2:])
else:
    asyncio.run(record(*sys.argv[1:]))
