// node --test examples/js

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

import { CallError, Device } from './device.js';
import { Journal } from './journal.js';

const G = 'group:a';

/** A sync service and a gateway with one conversation. */
class World {
  messages = []; // seq s is messages[s-1]
  changes = 0;
  listed = true;
  revokes = []; // {seq, at}: the change that it was
  unheard = 0; // sends that are taken and not answered from now on
  sends = 0;
  pulls = 0;
  sockets = new Set();

  add(text, sender = 'bob', clientMessageId = `${sender}-${this.messages.length}`) {
    this.messages.push({ conversation: G, seq: String(this.messages.length + 1), sender, clientMessageId, text });
    this.changes++;
    return this.messages.at(-1);
  }

  revoke(...seqs) {
    for (const seq of seqs) {
      const { text, ...rest } = this.messages[seq - 1];
      this.messages[seq - 1] = { ...rest, revoked: true };
      this.revokes.push({ seq, at: ++this.changes });
    }
  }

  watermarks() {
    return { conversation: G, minSeq: '1', maxSeq: String(this.messages.length), readSeq: '1' };
  }

  call(method, request) {
    switch (method) {
      case 'SyncConversations': {
        const known = request.version.startsWith('v') ? Number(request.version.slice(1)) : -1;
        const changed = this.listed && known < this.changes ? [{ watermarks: this.watermarks(), ...this.revoked(known) }] : [];
        return { changed, fullResync: known < 0, version: `v${this.changes}`, totalConversations: this.listed ? '1' : '0' };
      }
      case 'GetWatermarks':
        return {
          watermarks: request.conversations.map((c) => (c === G ? this.watermarks() : { conversation: c, error: { code: 'not_found' } })),
        };
      case 'Pull': {
        this.pulls++;
        return { pages: request.ranges.map((r) => this.page(r)) };
      }
      case 'Send': {
        this.sends++;
        const { sender, clientMessageId, text } = request.message;
        if (text === 'forbidden') throw new CallError('permission_denied', 'not a member');
        const recent = this.messages.slice(-10).find((m) => m.sender === sender && m.clientMessageId === clientMessageId);
        const { seq } = recent ?? this.add(text, sender, clientMessageId);
        if (this.unheard-- > 0) throw new CallError('unavailable', 'no answer');
        return { seq };
      }
    }
    throw new Error(method);
  }

  page({ begin, end }) {
    const last = Math.min(Number(end), Number(begin) + 6, this.messages.length); // pages of 7
    const page = { messages: this.messages.slice(Number(begin) - 1, last) };
    if (last < Math.min(Number(end), this.messages.length)) page.rest = { begin: String(last + 1), end };
    return page;
  }

  /** What was revoked since a version; of more than three only one is named. */
  revoked(known) {
    const seqs = this.revokes.filter(({ at }) => at > known).map(({ seq }) => seq).sort((a, b) => a - b);
    return seqs.length > 3 ? { revoked: seqs.slice(0, 1).map(String), moreRevoked: true } : { revoked: seqs.map(String) };
  }

  push(event) {
    for (const s of this.sockets) s.onmessage({ data: JSON.stringify({ push: { channel: 'user:alice', pub: { data: event } } }) });
  }

  /** Runs a device on file until done(journal), or for as long as it is not. */
  async run(file, act, done) {
    const world = this;
    globalThis.WebSocket = class {
      static OPEN = 1;
      readyState = 1;
      constructor() {
        queueMicrotask(() => this.onopen?.());
      }
      send(line) {
        if (!JSON.parse(line).connect) return;
        world.sockets.add(this);
        queueMicrotask(() => this.onmessage?.({ data: '{"id":1,"connect":{"client":"x","ping":25,"pong":true}}' }));
      }
      close() {
        world.sockets.delete(this);
      }
    };
    class Local extends Device {
      async call(method, request) {
        await null;
        return structuredClone(world.call(method, structuredClone(request)));
      }
    }
    const journal = new Journal(file, 'alice');
    const stop = new AbortController();
    const told = [];
    const device = new Local({
      user: 'alice', server: '', gateway: 'ws://x', journal, log() {}, recheck: world.recheck,
      onSent: (m, seq, error) => told.push([m.text, seq, error?.code]),
    });
    const running = device.run(stop.signal);
    await act(device);
    const late = Date.now() + Number(process.env.PATIENCE ?? 30_000);
    while (!done(journal) && Date.now() < late) await new Promise((r) => setTimeout(r, 1));
    const finished = done(journal);
    stop.abort();
    await running;
    assert.ok(finished, 'it never ends');
    journal.close();
    return { journal, told };
  }
}

const tempFile = () => join(mkdtempSync(join(tmpdir(), 'tidemark-')), 'state.jsonl');
const seqs = (journal) => journal.list(G).map((m) => Number(m.seq));
const upTo = (n) => Array.from({ length: n }, (_, i) => i + 1);

test('pushes in any order, twice, and with gaps', async () => {
  const world = new World();
  for (let i = 0; i < 10; i++) world.add('old');
  const { journal } = await world.run(
    tempFile(),
    async () => {
      while (world.sockets.size === 0) await new Promise((r) => setTimeout(r, 1));
      for (let i = 0; i < 10; i++) world.add('new');
      for (const seq of [11, 13, 13, 12, 15, 20, 19, 1]) world.push({ conversation: G, maxSeq: '20', message: world.messages[seq - 1] });
    },
    (j) => j.of(G).seq === 20,
  );
  assert.deepEqual(seqs(journal), upTo(20));
});

test('killed at any point, the file is right', async () => {
  const world = new World();
  for (let i = 0; i < 20; i++) world.add('old');
  world.unheard = 1;
  const file = tempFile();
  await world.run(
    file,
    async (device) => {
      device.send({ conversation: G, text: 'one' });
      device.send({ conversation: G, text: 'two' });
    },
    (j) => j.outbox.size === 0 && j.of(G).seq === 22 && j.version,
  );
  const whole = readFileSync(file);
  const cut = tempFile();
  // Before, within and after each line.
  const ends = [...whole.entries()].filter(([, byte]) => byte === 10).map(([at]) => at);
  for (const size of ends.flatMap((end) => [end - 9, end, end + 1])) {
    writeFileSync(cut, whole.subarray(0, size));
    const j = new Journal(cut, 'alice');
    j.close();
    assert.deepEqual(seqs(j).filter((s) => s <= j.of(G).seq), upTo(j.of(G).seq), `cut at ${size}: a message below the seq is missing`);
    if (j.version) assert.ok(j.of(G).seq >= 20, `cut at ${size}: the version covers what is not there`);
    for (const text of ['one', 'two']) {
      const put = whole.indexOf('\n', whole.indexOf(`"text":"${text}"`)) < size;
      const here = [...j.outbox.values(), ...j.list(G)].some((m) => m.text === text);
      const seq = Number(world.messages.find((m) => m.text === text).seq);
      assert.ok(!put || here || j.of(G).seq < seq, `cut at ${size}: ${text} is lost`);
    }
  }
});

test('whatever is lost of the numbers comes again', async () => {
  for (const lose of [
    (change) => change.version === undefined && [change],
    (change) => (change.numbers ? [{ numbers: { ...change.numbers, seq: 0 } }] : [change]),
    (change) => (change.numbers ? [{ numbers: { ...change.numbers, read: 0 } }] : [change]),
    (change) => (change.numbers ? [{ numbers: { conversation: 'group:other', seq: 1, read: 1, repair: 0, listed: false } }] : [change]),
    () => [],
  ]) {
    const world = new World();
    for (let i = 0; i < 20; i++) world.add('old');
    const file = tempFile();
    const complete = (j) => j.of(G).seq === 20 && j.of(G).read === 1 && j.of(G).listed && j.version;
    await world.run(file, async () => {}, complete);
    const changes = readFileSync(file, 'utf8').trim().split('\n').map((line) => JSON.parse(line));
    writeFileSync(file, changes.flatMap((c) => lose(c) || []).map((c) => JSON.stringify(c) + '\n').join(''));
    const { journal } = await world.run(file, async () => {}, complete);
    assert.deepEqual(seqs(journal), upTo(20));
  }
});

test('what may have arrived is looked for before it is sent again', async () => {
  const world = new World();
  const file = tempFile();
  const j = new Journal(file, 'alice');
  // An earlier life sent it and died; since then more came than the server looks back.
  const message = { conversation: G, clientMessageId: 'x', sender: 'alice', text: 'mine' };
  j.write({ put: message });
  j.close();
  world.call('Send', { message });
  for (let i = 0; i < 30; i++) world.add('later');
  await world.run(file, async () => {}, (k) => k.outbox.size === 0 && k.of(G).seq === 31);
  assert.equal(world.sends, 1);
});

test('a message that is refused holds up nothing', async () => {
  const world = new World();
  const { told } = await world.run(
    tempFile(),
    async (device) => {
      device.send({ conversation: G, text: 'forbidden' });
      device.send({ conversation: G, text: 'fine' });
    },
    (j) => j.outbox.size === 0,
  );
  assert.deepEqual(told, [['forbidden', 0, 'permission_denied'], ['fine', 1, undefined]]);
});

test('a file is one user\'s, and an old one is made small', () => {
  const file = tempFile();
  let j = new Journal(file, 'alice');
  for (let seq = 1; seq <= 3000; seq++) j.write({ numbers: { conversation: G, seq, read: 0, repair: 0, listed: true } });
  j.write({ message: { conversation: G, seq: '3000', text: 'x' } });
  j.write({ put: { conversation: G, clientMessageId: 'y' } });
  j.write({ version: 'v7' });
  j.close();
  const before = readFileSync(file).length;
  j = new Journal(file, 'alice');
  j.close();
  assert.ok(readFileSync(file).length < before / 100);
  j = new Journal(file, 'alice');
  j.close();
  assert.deepEqual([j.of(G).seq, j.list(G).length, j.outbox.size, j.version], [3000, 1, 1, 'v7']);
  assert.throws(() => new Journal(file, 'bob'), /alice/);
});

test('what is revoked while the device is away ends as a tombstone', async () => {
  const world = new World();
  for (let i = 0; i < 20; i++) world.add('old');
  const file = tempFile();
  const upToDate = (j) => j.version === `v${world.changes}`;
  const tombs = (j) => j.list(G).filter((m) => m.revoked && m.text === undefined).map((m) => Number(m.seq));
  await world.run(file, async () => {}, upToDate);
  world.revoke(3, 18);
  world.add('new');
  world.revoke(21);
  const before = world.pulls;
  let { journal } = await world.run(file, async () => {}, upToDate);
  assert.deepEqual(tombs(journal), [3, 18, 21]);
  assert.equal(world.pulls - before, 2);
  world.revoke(1, 2, 9, 10); // more than the server names
  ({ journal } = await world.run(file, async () => {}, upToDate));
  assert.deepEqual(tombs(journal), [1, 2, 3, 9, 10, 18, 21]);
  // The version is lost, and with it what the device knows.
  world.revoke(15);
  writeFileSync(file, readFileSync(file, 'utf8').split('\n').filter((line) => !line.includes('"version"')).join('\n'));
  ({ journal } = await world.run(file, async () => {}, upToDate));
  assert.deepEqual(tombs(journal), [1, 2, 3, 9, 10, 15, 18, 21]);
});

test('a pushed revoke is a tombstone', async () => {
  const world = new World();
  for (let i = 0; i < 5; i++) world.add('old');
  const gone = (j) => j.list(G)[1]?.revoked === true;
  const { journal } = await world.run(
    tempFile(),
    async () => {
      while (world.sockets.size === 0) await new Promise((done) => setImmediate(done));
      for (let i = 0; i < 50; i++) await new Promise((done) => setImmediate(done)); // it has synced
      const { text, ...rest } = world.messages[1];
      world.messages[1] = { ...rest, revoked: true }; // the list says nothing of it
      world.push({ conversation: G, maxSeq: '5', revoked: { seq: '2' } });
    },
    gone,
  );
  assert.equal(journal.list(G)[1].text, undefined);
});

test('a push that is lost is found by the recheck', async () => {
  const world = new World();
  world.recheck = 20;
  for (let i = 0; i < 5; i++) world.add('old');
  await world.run(
    tempFile(),
    async () => {
      while (world.sockets.size === 0) await new Promise((done) => setImmediate(done));
      world.add('lost');
      world.revoke(2);
    },
    (j) => j.of(G).seq === 6 && j.list(G)[1].revoked,
  );
});
