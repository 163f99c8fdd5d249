# Makes a bucket and an object store with another client and fills them.
# Usage: stores.py URL BUNDLE
import asyncio
import sys

import nats
from nats.js.api import KeyValueConfig


async def main(url, bundle):
    client = await nats.connect(url)
    jetstream = client.jetstream()
    bucket = await jetstream.create_key_value(KeyValueConfig(bucket="CONFIG", history=2))
    await bucket.put("motd", b"hello from another client")
    await bucket.put("site.data", b"hierarchy:\n  order:\n  - default\ndata:\n  color: blue\n")
    await bucket.put("gone", b"x")
    await bucket.delete("gone")
    store = await jetstream.create_object_store("MANIFESTS")
    with open(bundle, "rb") as file:
        await store.put("sites/web.tgz", file.read())
    await client.close()


asyncio.run(main(sys.argv[1], sys.argv[2]))
