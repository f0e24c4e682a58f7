// node-redis against the server on the port of the first argument; ../README.md says what it checks.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setTimeout } from 'node:timers/promises';
import { createClient, WatchError } from 'redis';

const connect = async () => {
  const client = createClient({ socket: { port: Number(process.argv[2]) } });
  client.on('error', () => {}); // The restart; the client connects anew by itself.
  return client.connect();
};
const client = await connect();
assert.equal(await client.ping(), 'PONG');
await client.set('coral', 'reef');
assert.equal(await client.get('coral'), 'reef');
console.log('ok connect');

// Commands of one turn of the event loop are sent as one pipeline.
const replies = [client.set('dives', '40'), client.incrBy('dives', 2), client.get('dives')];
assert.deepEqual(await Promise.all(replies), ['OK', 42, '42']);
console.log('ok pipeline');

const other = await connect();
await client.watch('dives');
await other.incr('dives');
await assert.rejects(client.multi().set('dives', '0').exec(), WatchError);
await client.watch('dives');
assert.deepEqual(await client.multi().incr('dives').get('dives').exec(), [44, '44']);
console.log('ok transaction');

const keys = Array.from({ length: 1000 }, (_, number) => `reef:${number}`);
await Promise.all(keys.map((key) => client.set(key, 'x')));
const options = { MATCH: 'reef:*', COUNT: 100 };
let step = await client.scan('0', options);
const found = step.keys;
console.log('restart');
await once(process.stdin, 'data');
while (String(step.cursor) !== '0') {
  step = await client.scan(step.cursor, options);
  found.push(...step.keys);
}
assert.deepEqual(found.sort(), keys.sort());
console.log('ok scan');

await client.set('tide', 'low', { PX: 50 });
await client.set('coral', 'reef', { EX: 100 });
const seconds = await client.ttl('coral');
assert(98 <= seconds && seconds <= 100);
while (await client.exists('tide')) await setTimeout(10);
console.log('ok expiry');
process.exit();
