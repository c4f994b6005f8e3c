// A device's state in one file of JSON lines. Each line is one change, appended
// with one write, so whenever the process is killed the file holds every change
// up to some point and at most a part of the next one, which is cut off when it
// is opened again.

import { closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, truncateSync, writeSync } from 'node:fs';

const outKey = (conversation, id) => `${conversation} ${id}`;

export class Journal {
  #fd;
  #lines = 0;
  user = '';
  version = ''; // of the list
  numbers = new Map(); // conversation -> {seq, read, repair, listed}
  messages = new Map(); // conversation -> Map(seq -> message)
  outbox = new Map(); // "conversation id" -> message, in order

  constructor(file, user) {
    if (existsSync(file)) this.#read(file);
    if (this.user && this.user !== user) throw new Error(`${file} is the state of ${this.user}, not of ${user}`);
    // Most lines of an old file are about numbers that have changed since.
    if (this.#lines > 1000 + 2 * this.#size()) this.#rewrite(file, user);
    this.#fd = openSync(file, 'a');
    if (!this.user) this.write({ user });
  }

  /** Notes a change, in memory and in the file. */
  write(change) {
    this.#line(this.#fd, change);
    this.#apply(change);
  }

  close() {
    closeSync(this.#fd);
  }

  /** What the device knows of a conversation. */
  of(conversation) {
    return this.numbers.get(conversation) ?? { seq: 0, read: 0, repair: 0, listed: false };
  }

  /** The messages of a conversation, oldest first. */
  list(conversation) {
    return [...(this.messages.get(conversation) ?? new Map())].sort(([a], [b]) => a - b).map(([, m]) => m);
  }

  waiting(message) {
    return this.outbox.has(outKey(message.conversation, message.clientMessageId));
  }

  #read(file) {
    const whole = readFileSync(file);
    const end = whole.lastIndexOf(10) + 1;
    if (end < whole.length) truncateSync(file, end);
    for (const line of whole.toString('utf8', 0, end).split('\n')) {
      if (!line) continue;
      this.#apply(JSON.parse(line));
      this.#lines++;
    }
  }

  #line(fd, change) {
    const line = Buffer.from(JSON.stringify(change) + '\n');
    for (let at = 0; at < line.length; ) at += writeSync(fd, line, at);
  }

  #apply(change) {
    if (change.user) this.user = change.user;
    if (change.version !== undefined) this.version = change.version;
    if (change.numbers) {
      const { conversation, ...n } = change.numbers;
      this.numbers.set(conversation, n);
    }
    if (change.message) {
      const { conversation, seq } = change.message;
      if (!this.messages.has(conversation)) this.messages.set(conversation, new Map());
      this.messages.get(conversation).set(Number(seq), change.message);
    }
    if (change.put) this.outbox.set(outKey(change.put.conversation, change.put.clientMessageId), change.put);
    if (change.remove) this.outbox.delete(outKey(change.remove.conversation, change.remove.clientMessageId));
    if (change.forget) {
      const { conversation, visible } = change.forget;
      for (const seq of this.messages.get(conversation)?.keys() ?? []) {
        if (!visible.some((r) => r.begin <= seq && seq <= r.end)) this.messages.get(conversation).delete(seq);
      }
    }
  }

  #size() {
    let size = this.numbers.size + this.outbox.size;
    for (const of of this.messages.values()) size += of.size;
    return size;
  }

  // The new file takes the old one's place when all of it is on the disk.
  #rewrite(file, user) {
    const fd = openSync(file + '.new', 'w');
    this.#line(fd, { user });
    for (const conversation of this.messages.keys()) for (const message of this.list(conversation)) this.#line(fd, { message });
    for (const [conversation, n] of this.numbers) this.#line(fd, { numbers: { conversation, ...n } });
    for (const put of this.outbox.values()) this.#line(fd, { put });
    this.#line(fd, { version: this.version });
    fsyncSync(fd);
    closeSync(fd);
    renameSync(file + '.new', file);
  }
}
