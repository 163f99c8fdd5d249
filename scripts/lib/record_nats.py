"""Proxy between a NATS client and a server that writes requests and replies to files.

Usage: record_nats.py HOST:PORT ADDRESS_FILE DIRECTORY

Each connection of a client is one exchange. Its name and command are the lines of ADDRESS_FILE.name. An exchange
is a JSON document: the requests in order, each with its replies. Reply subjects and facts of this machine are left
out.
"""

import asyncio
import json
import sys

HOST, PORT = sys.argv[1].rsplit(":", 1)
ADDRESS_FILE, DIRECTORY = sys.argv[2:4]


def headers(block):
    """Returns the headers of a message as a mapping."""
    lines = block.decode().split("\r\n")[1:]
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {name: value.strip() for name, value in pairs}


def without_facts(payload):
    """Returns a payload with empty facts, if it has any."""
    try:
        document = json.loads(payload)
    except ValueError:
        return payload
    if not isinstance(document, dict) or "facts" not in document:
        return payload
    return json.dumps({**document, "facts": {}})


async def messages(reader, writer, kinds):
    """Copies a stream and yields its messages: subject, reply subject, headers and payload."""
    while line := await reader.readline():
        writer.write(line)
        words = line.decode(errors="replace").split()
        kind = words[0].upper() if words else ""
        if kind not in kinds:
            continue
        body = await reader.readexactly(int(words[-1]) + 2)
        writer.write(body)
        has_headers = kind.startswith("H")
        sizes = 2 if has_headers else 1
        names = words[1:-sizes]
        if kind in ("MSG", "HMSG"):
            names = [names[0]] + names[2:]
        split = int(words[-2]) if has_headers else 0
        yield {
            "subject": names[0],
            "reply": names[1] if len(names) > 1 else None,
            "headers": headers(body[:split]) if has_headers else {},
            "payload": without_facts(body[split:-2].decode()),
        }


async def exchange(client, client_writer):
    with open(f"{ADDRESS_FILE}.name") as file:
        name, command = file.read().splitlines()
    server, server_writer = await asyncio.open_connection(HOST, PORT)
    requests, by_inbox = [], {}

    async def upstream():
        async for message in messages(client, server_writer, {"PUB", "HPUB"}):
            inbox = message.pop("reply")
            message["replies"] = []
            if inbox:
                requests.append(message)
                by_inbox[inbox] = message
        server_writer.close()

    async def downstream():
        async for message in messages(server, client_writer, {"MSG", "HMSG"}):
            message.pop("reply")
            request = by_inbox.get(message.pop("subject"))
            if request:
                request["replies"].append(message)
        client_writer.close()

    await asyncio.gather(upstream(), downstream(), return_exceptions=True)
    if requests:
        with open(f"{DIRECTORY}/{name}.json", "w") as file:
            json.dump({"command": command, "requests": requests}, file, indent=2, sort_keys=True)
            file.write("\n")


async def main():
    proxy = await asyncio.start_server(exchange, "127.0.0.1", 0)
    host, port = proxy.sockets[0].getsockname()
    with open(ADDRESS_FILE, "w") as file:
        file.write(f"{host}:{port}")
    await proxy.serve_forever()


asyncio.run(main())
