// A device as small as one can be: what is typed as "<conversation> <text>" is
// sent, what comes is printed, and everything is kept in a file.
//
//   node --experimental-websocket chat.js --user alice --file alice.jsonl     (Node 20; later ones need no flag)
//
// --dump prints what the file has instead, a message in JSON a line.

import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';

import { Device } from './device.js';
import { Journal } from './journal.js';

const { values: flags } = parseArgs({
  options: {
    server: { type: 'string', default: 'http://127.0.0.1:8080' },
    gateway: { type: 'string', default: 'ws://127.0.0.1:8081/connection/websocket' },
    user: { type: 'string' },
    device: { type: 'string', default: 'chat-js' },
    file: { type: 'string' },
    dump: { type: 'boolean', default: false },
  },
});
if (!flags.user || !flags.file) {
  console.error('chat: --user and --file are required');
  process.exit(2);
}

// Written when it returns: console.log may still have it in memory when the
// process is killed or exits.
function print(line) {
  const bytes = Buffer.from(line + '\n');
  for (let at = 0; at < bytes.length; ) at += writeSync(1, bytes, at);
}
const say = (...fields) => print(fields.join('\t'));

const journal = new Journal(flags.file, flags.user);
if (flags.dump) {
  for (const conversation of [...journal.messages.keys()].sort()) for (const m of journal.list(conversation)) print(JSON.stringify(m));
  process.exit(0);
}

const device = new Device({
  ...flags, journal,
  getToken: process.env.TIDEMARK_TOKEN ? async () => process.env.TIDEMARK_TOKEN : undefined,
  onMessage: (m) => say('message', m.conversation, m.seq, m.sender, m.text ?? ''),
  onSent: (m, seq, error) => (error ? say('refused', m.clientMessageId, error.message) : say('sent', m.clientMessageId, seq)),
});

const stopping = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => stopping.abort());
createInterface({ input: process.stdin }).on('line', (line) => {
  const [conversation, ...text] = line.split(' ');
  say('queued', device.send({ conversation, text: text.join(' ') }));
});
await device.run(stopping.signal);
journal.close();
process.exit(0);
