# Asks a node for a resource as any client may, and waits for its event.
# Usage: ensure.py URL REQUEST
import asyncio
import json
import sys

import nats

NODE = "ccm.v1.default.node.web1_example_net"


async def main(url, request):
    client = await nats.connect(url)
    seen = asyncio.get_running_loop().create_future()

    async def event(message):
        seen.set_result(message.subject)

    await client.subscribe("ccm.v1.default.event.>", cb=event)
    reply = await client.request(f"{NODE}.ensure", request.encode(), timeout=20)
    print(reply.headers["Ccm-Identity"], json.loads(reply.data)["state"]["changed"])
    print(await asyncio.wait_for(seen, 20))
    await client.close()


asyncio.run(main(sys.argv[1], sys.argv[2]))
