// A device of a user: it keeps the user's conversations complete, as package
// client does in Go. It knows the version of the list, and of each conversation
// the highest seq up to which it has everything, the read watermark, and the
// repair number. From these:
//   - each visible message is kept once, in order, whatever order pushes come in;
//     gaps are pulled.
//   - after a reconnect, and every five minutes, it asks what changed in the list
//     since its version.
//   - of a message that is revoked, meanwhile or now, it keeps the tombstone.
//   - what of these is lost comes again.
//   - what send() took is sent, each message once, a conversation's in order.
//
// One thing happens at a time (see run). A number is written after the message
// that it covers, and the version after all that it covers.

import { backOff, sleep } from './wait.js';
import { stream } from './live.js';

/** An error that the service answered with. */
export class CallError extends Error {
  constructor(code, message, retryAfter) {
    super(message);
    this.code = code;
    this.retryAfter = retryAfter; // seconds
  }
  /** The service will say the same however often it is asked. */
  get final() {
    return ['invalid_argument', 'not_found', 'permission_denied', 'already_exists', 'failed_precondition'].includes(this.code);
  }
}

const PAGE = 100; // messages of one pull
const GIVEN = 500; // conversations that one call may name
const RECHECK = 300_000; // ms after which a connected device asks what changed
const QUEUED = 256; // events; a burst that does not fit costs a sync

export class Device {
  #jobs = [];
  #wake = () => {};
  #events = 0;
  #resync = false;
  #synced = false;
  #outgoing = () => {};

  /**
   * journal keeps the state. onMessage(message) is called after a message was
   * kept, with its tombstone once more when it is revoked, onEvent(event) for every other event, onSent(message, seq, error) once
   * a message has its seq or was refused. getToken gives a token where the
   * deployment wants one.
   */
  constructor({ user, device = '', server, gateway, journal, getToken, onMessage, onEvent, onSent, log = console.error, recheck = RECHECK }) {
    Object.assign(this, { user, device, server, gateway, journal, getToken, onMessage, onEvent, onSent, log, recheck });
  }

  /** Runs until signal aborts. */
  async run(signal) {
    this.signal = signal;
    signal.addEventListener('abort', () => {
      this.#wake();
      this.#outgoing();
    });
    const live = stream({
      url: this.gateway, user: this.user, device: this.device, getToken: this.getToken, signal,
      connected: () => this.#requestSync(), event: (e) => this.#offer(e),
    });
    await Promise.all([this.#loop(), this.#sending(), this.#rechecking(), live]);
  }

  /** Takes a message: when it returns, it is in the file and will be sent. */
  send(message) {
    message = { sender: this.user, device: this.device, clientMessageId: crypto.randomUUID(), sendTimeMs: String(Date.now()), ...message };
    this.journal.write({ put: message });
    this.#outgoing();
    return message.clientMessageId;
  }

  /** Raises the read watermark; in a single conversation the peer is told. */
  async acknowledge(conversation, seq) {
    return this.call('MarkConversationRead', { user: this.user, conversation, readSeq: String(seq), device: this.device });
  }

  async call(method, request) {
    const headers = { 'content-type': 'application/json' };
    if (this.getToken) headers.authorization = `Bearer ${await this.getToken()}`;
    const response = await fetch(`${this.server}/tidemark.v1.SyncService/${method}`, {
      method: 'POST', headers, body: JSON.stringify(request), signal: AbortSignal.any([this.signal, AbortSignal.timeout(30_000)]),
    });
    const answer = await response.json();
    // An answer without a code is not the service's.
    if (!response.ok) throw new CallError(answer.code ?? 'unknown', answer.message ?? response.statusText, Number(response.headers.get('retry-after') ?? 0));
    return answer;
  }

  // ---- one thing at a time

  #enqueue(job) {
    this.#jobs.push(job);
    this.#wake();
  }

  #requestSync() {
    if (this.#resync) return;
    this.#resync = true;
    this.#enqueue(async () => {
      this.#resync = false;
      await this.#syncAll();
      this.#synced = true;
      this.#outgoing();
    });
  }

  // Finds pushes that were lost without a trace. Devices that connected together
  // ask at different times.
  async #rechecking() {
    while (!this.signal.aborted) {
      await sleep(this.recheck * (0.9 + 0.2 * Math.random()), this.signal);
      if (!this.signal.aborted) this.#requestSync();
    }
  }

  #offer(event) {
    if (this.#events >= QUEUED) return this.#requestSync();
    this.#events++;
    this.#enqueue(async () => {
      this.#events--;
      await this.#apply(event);
    });
  }

  async #loop() {
    while (!this.signal.aborted) {
      const job = this.#jobs.shift();
      if (job) await job();
      else await new Promise((wake) => (this.#wake = wake));
    }
  }

  #inLoop(job) {
    return new Promise((done, failed) => {
      this.signal.addEventListener('abort', done);
      this.#enqueue(() => job().then(done, failed).finally(() => this.signal.removeEventListener('abort', done)));
    });
  }

  // Repeats what the server failed, for as long as the device runs.
  async #retry(act) {
    const pause = backOff();
    while (!this.signal.aborted) {
      try {
        return await act();
      } catch (error) {
        if (this.signal.aborted) return undefined;
        if (error instanceof BrokenError) throw error;
        this.log(`trying again: ${error.message}`);
        await sleep(Math.max(pause.next(), (error.retryAfter ?? 0) * 1000), this.signal);
      }
    }
    return undefined;
  }

  // ---- what comes

  async #apply(event) {
    const { conversation, message } = event;
    const n = this.journal.of(conversation);
    const catchUp = () => this.#retry(() => this.#syncSome([conversation]));
    if (Number(event.repairNumber ?? 0) > n.repair) return catchUp();
    if (message) {
      const seq = Number(message.seq);
      if (seq <= n.seq) return undefined;
      return n.seq > 0 && seq === n.seq + 1 ? this.#deliver(message) : catchUp();
    }
    const known = ['window', 'revoked', 'read', 'minSeq', 'repaired', 'policy'].some((kind) => event[kind]);
    if (!known && Number(event.maxSeq ?? 0) > n.seq) await catchUp(); // a hint, or news that this version does not know
    const gone = Number(event.revoked?.seq ?? 0);
    if (gone > 0 && gone <= n.seq) await this.#retry(() => this.#pullSeqs(conversation, [gone]));
    const read = Number(event.read?.readSeq ?? 0);
    if (event.read?.user === this.user && read > n.read) this.#save(conversation, { read });
    this.onEvent?.(event);
    return undefined;
  }

  async #syncAll() {
    const total = await this.#walk();
    if (this.signal.aborted) return;
    if (total !== undefined && total !== this.#known((n) => n.listed).length) {
      // Some numbers are lost, and not the version that says that they are here.
      this.journal.write({ version: '' });
      await this.#walk();
    }
    // Groups that the user wrote to without joining; at first what is lost, too.
    const first = !this.#synced;
    const ask = this.#known((n) => !n.listed || (first && (n.seq === 0 || n.read === 0)));
    for (let i = 0; i < ask.length; i += GIVEN) await this.#retry(() => this.#syncSome(ask.slice(i, i + GIVEN)));
  }

  #known(such) {
    return [...this.journal.numbers].filter(([, n]) => such(n)).map(([conversation]) => conversation).sort();
  }

  // Reads what changed in the list. Gives how many conversations the server has
  // in it, unless it brought all of them.
  async #walk() {
    // Without any numbers the version says that things are here which are not.
    const version = this.journal.numbers.size > 0 ? this.journal.version : '';
    const seen = new Set();
    let failures = 0;
    for (let pageToken = ''; ; ) {
      const page = await this.#retry(() =>
        this.call('SyncConversations', { user: this.user, version, pageToken }).catch((error) => {
          if (++failures >= 3) pageToken = ''; // the server may not know any more where it stood
          throw error;
        }),
      );
      if (!page) return undefined;
      for (const [entries, listed] of [[page.changed ?? [], true], [page.removed ?? [], false]]) {
        for (const { watermarks, revoked = [], moreRevoked } of entries) {
          seen.add(watermarks.conversation);
          const had = this.journal.of(watermarks.conversation).seq;
          await this.#retry(() => this.#catchUp(watermarks));
          // What is above has just come.
          if (moreRevoked && had > 0) await this.#retry(() => this.#pull(watermarks.conversation, 1, had));
          else await this.#retry(() => this.#pullSeqs(watermarks.conversation, revoked.map(Number).filter((seq) => seq <= had)));
          if (this.signal.aborted) return undefined;
          if (this.journal.of(watermarks.conversation).listed !== listed) this.#save(watermarks.conversation, { listed });
          if (!listed) {
            const visible = (watermarks.visible ?? []).map((r) => ({ begin: Number(r.begin), end: Number(r.end) }));
            this.journal.write({ forget: { conversation: watermarks.conversation, visible } });
          }
        }
      }
      pageToken = page.nextPageToken ?? '';
      if (pageToken) continue;
      if (page.fullResync) {
        for (const conversation of this.#known((n) => n.listed)) if (!seen.has(conversation)) this.#save(conversation, { listed: false });
      }
      this.journal.write({ version: page.version });
      return page.fullResync ? undefined : Number(page.totalConversations ?? 0);
    }
  }

  async #syncSome(conversations) {
    const { watermarks = [] } = await this.call('GetWatermarks', { user: this.user, conversations });
    for (const w of watermarks) await this.#catchUp(w);
  }

  // Pulls what a conversation's watermarks say is missing.
  async #catchUp(w) {
    if (w.error) {
      if (Number(w.error.retryAfterMs ?? 0) > 0) throw new Error(w.error.message);
      return; // not this user's to see
    }
    const { conversation } = w;
    const n = this.journal.of(conversation);
    const max = Number(w.maxSeq ?? 0);
    const repair = Number(w.repairNumber ?? 0);
    if (repair > n.repair) {
      const from = Number(w.repairFrom ?? 0);
      if (n.seq > 0 && from <= n.seq) await this.#pull(conversation, from, n.seq);
      this.#save(conversation, { repair });
    }
    if (Number(w.readSeq ?? 0) > n.read) this.#save(conversation, { read: Number(w.readSeq) });
    if (max <= n.seq) return;
    await this.#pull(conversation, n.seq + 1, max);
    // Everything up to max is accounted for, also where a window has a gap.
    if (max > this.journal.of(conversation).seq) this.#save(conversation, { seq: max });
  }

  // Takes begin..end, oldest first, following rest until it is absent.
  async #pull(conversation, begin, end) {
    for (;;) {
      const { pages } = await this.call('Pull', {
        user: this.user, ranges: [{ conversation, begin: String(begin), end: String(end), num: String(PAGE), order: 'ORDER_ASC', keep: 'KEEP_NEAR_BEGIN' }],
      });
      const [page] = pages;
      if (page.error) throw new Error(page.error.message);
      for (const message of page.messages ?? []) this.#deliver(message);
      if (!page.rest) return;
      if (Number(page.rest.begin) <= begin && !page.messages?.length) throw new Error(`the page of ${conversation} did not move on`);
      begin = Number(page.rest.begin);
    }
  }

  // Takes messages again, those of many seqs with one call.
  async #pullSeqs(conversation, seqs) {
    const ranges = [];
    for (const seq of seqs) {
      if (ranges.at(-1)?.end === seq - 1) ranges.at(-1).end = seq;
      else ranges.push({ begin: seq, end: seq });
    }
    for (let i = 0; i < ranges.length; i += GIVEN) {
      const part = ranges.slice(i, i + GIVEN);
      const { pages } = await this.call('Pull', {
        user: this.user, ranges: part.map(({ begin, end }) => ({ conversation, begin: String(begin), end: String(end), num: String(PAGE), order: 'ORDER_ASC', keep: 'KEEP_NEAR_BEGIN' })),
      });
      for (const [k, page] of pages.entries()) {
        if (page.error) throw new Error(page.error.message);
        for (const message of page.messages ?? []) this.#deliver(message);
        if (page.rest) await this.#pull(conversation, Number(page.rest.begin), part[k].end);
      }
    }
  }

  // Keeps a message, then its seq. An own one leaves the outbox in between:
  // afterwards it would not come again.
  #deliver(message) {
    const seq = Number(message.seq);
    broken(() => this.journal.write({ message }));
    this.onMessage?.(message);
    if (message.sender === this.user && this.journal.waiting(message)) this.#settle(message, seq);
    if (seq > this.journal.of(message.conversation).seq) this.#save(message.conversation, { seq });
  }

  #save(conversation, change) {
    broken(() => this.journal.write({ numbers: { conversation, ...this.journal.of(conversation), ...change } }));
  }

  // ---- what goes

  async #sending() {
    const pause = backOff();
    while (!this.signal.aborted) {
      const messages = [...this.journal.outbox.values()];
      // What an earlier life sent and did not live to note comes with the list.
      if (messages.length === 0 || !this.#synced) {
        if (messages.length > 0) this.#requestSync();
        await new Promise((wake) => (this.#outgoing = wake));
        continue;
      }
      if (await this.#round(messages)) await sleep(pause.next(), this.signal);
      else pause.reset();
    }
  }

  // Tries each message once, a conversation's in order; tells whether one failed.
  // Then the conversations are brought up to date: own messages take their place,
  // and of those whose answer was lost the ones that arrived are found.
  async #round(messages) {
    const touched = new Set();
    const blocked = new Set();
    for (const message of messages) {
      const { conversation } = message;
      if (blocked.has(conversation) || !this.journal.waiting(message) || this.signal.aborted) continue;
      touched.add(conversation);
      try {
        const { seq = 0 } = await this.call('Send', { message, waitForSeq: true });
        await this.#inLoop(async () => this.#settle(message, Number(seq)));
      } catch (error) {
        if (error instanceof BrokenError) throw error;
        if (error.final) {
          await this.#inLoop(async () => this.#settle(message, 0, error));
          continue;
        }
        if (!this.signal.aborted) this.log(`not sent yet: ${error.message}`);
        blocked.add(conversation);
      }
    }
    const conversations = [...touched];
    for (let i = 0; i < conversations.length; i += GIVEN) {
      await this.#inLoop(() => this.#retry(() => this.#syncSome(conversations.slice(i, i + GIVEN))));
    }
    return blocked.size > 0;
  }

  #settle(message, seq, error) {
    if (!this.journal.waiting(message)) return;
    this.onSent?.(message, seq, error);
    broken(() => this.journal.write({ remove: { conversation: message.conversation, clientMessageId: message.clientMessageId } }));
  }
}

/** The file cannot be written: trying again is not for the device to decide. */
class BrokenError extends Error {}

function broken(act) {
  try {
    act();
  } catch (error) {
    throw new BrokenError(error.message, { cause: error });
  }
}
