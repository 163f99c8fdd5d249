# Discovers services as any client may, and prints what answered as JSON.
# Usage: micro.py URL SUBJECT EXPECTED
import asyncio
import json
import sys

import nats


async def gather(client, subject, body, expected):
    inbox = client.new_inbox()
    found = await client.subscribe(inbox)
    await client.publish(subject, body, reply=inbox)
    replies = []
    while len(replies) < expected:
        message = await found.next_msg(timeout=20)
        replies.append({
            "body": json.loads(message.data),
            "headers": message.headers or {},
        })
    return replies


async def main(url, subject, expected):
    client = await nats.connect(url)
    # A request without a reply subject must do no harm.
    await client.publish("$SRV.PING", b"")
    await client.publish(subject, b"{}")
    await client.flush()
    said = {}
    said["replies"] = await gather(client, subject, b"{}", expected)
    for verb in ["PING", "INFO", "STATS"]:
        said[verb] = await gather(client, f"$SRV.{verb}.ccm", b"", expected)
    print(json.dumps(said))
    await client.close()


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
