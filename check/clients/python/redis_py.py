"""redis-py against the server on the port of the first argument; ../README.md says what it checks."""

import sys
import time

import redis

client = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
assert client.ping()
client.set("coral", "reef")
assert client.get("coral") == "reef"
print("ok connect", flush=True)

# A pipeline of redis-py is a transaction unless it is told otherwise.
pipeline = client.pipeline()
pipeline.set("dives", 40).incrby("dives", 2).get("dives")
assert pipeline.execute() == [True, 42, "42"]
print("ok pipeline", flush=True)

with client.pipeline() as transaction:
    transaction.watch("dives")
    client.incr("dives")
    transaction.multi()
    transaction.set("dives", 0)
    try:
        transaction.execute()
        raise AssertionError("EXEC ignored a watched key that changed")
    except redis.WatchError:
        pass
assert client.transaction(lambda pipe: pipe.multi() or pipe.incr("dives"), "dives") == [44]
print("ok transaction", flush=True)

pipeline = client.pipeline(transaction=False)
for number in range(1000):
    pipeline.set(f"reef:{number}", number)
pipeline.execute()
cursor, found = client.scan(match="reef:*", count=100)
print("restart", flush=True)
sys.stdin.readline()
while cursor:
    cursor, keys = client.scan(cursor, match="reef:*", count=100)
    found += keys
assert sorted(found) == sorted(f"reef:{number}" for number in range(1000))
print("ok scan", flush=True)

client.set("tide", "low", px=50)
client.set("coral", "reef", ex=100)
assert 98 <= client.ttl("coral") <= 100
while client.exists("tide"):
    time.sleep(0.01)
print("ok expiry", flush=True)
