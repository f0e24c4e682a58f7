// ioredis against the server on the port of the first argument; ../README.md says what it checks.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setTimeout } from 'node:timers/promises';
import Redis from 'ioredis';

const client = new Redis(Number(process.argv[2]));
client.on('error', () => {}); // The restart; the client connects anew by itself.
assert.equal(await client.ping(), 'PONG');
await client.set('coral', 'reef');
assert.equal(await client.get('coral'), 'reef');
console.log('ok connect');

const replies = await client.pipeline().set('dives', 40).incrby('dives', 2).get('dives').exec();
assert.deepEqual(replies, [[null, 'OK'], [null, 42], [null, '42']]);
console.log('ok pipeline');

const other = client.duplicate();
await client.watch('dives');
await other.incr('dives');
assert.equal(await client.multi().set('dives', 0).exec(), null);
await client.watch('dives');
assert.deepEqual(await client.multi().incr('dives').exec(), [[null, 44]]);
other.disconnect();
console.log('ok transaction');

const keys = Array.from({ length: 1000 }, (_, number) => `reef:${number}`);
await Promise.all(keys.map((key) => client.set(key, 'x')));
let [cursor, found] = await client.scan(0, 'MATCH', 'reef:*', 'COUNT', 100);
console.log('restart');
await once(process.stdin, 'data');
while (cursor !== '0') {
  const [next, some] = await client.scan(cursor, 'MATCH', 'reef:*', 'COUNT', 100);
  cursor = next;
  found.push(...some);
}
assert.deepEqual(found.sort(), keys.sort());
console.log('ok scan');

await client.set('tide', 'low', 'PX', 50);
await client.set('coral', 'reef', 'EX', 100);
const seconds = await client.ttl('coral');
assert(98 <= seconds && seconds <= 100);
while (await client.exists('tide')) await setTimeout(10);
console.log('ok expiry');
process.exit();
