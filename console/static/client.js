// A Tidemark client: one device of one user. It needs fetch and WebSocket, as
// browsers and Node 22 have them, and knows nothing of a page.
//
// Device keeps conversations complete. For each it remembers which seqs it has
// accounted for, as a set of intervals, and asks for what can be seen and is not
// in it. So pushes may come twice, in any order or not at all, a window may open,
// close and open again, and the conversation may be repaired: what is missing is
// pulled, what was there is ignored, what may not be seen any more is dropped.
//
// Everything of one device happens in one queue, in the order in which it came.
// A server that fails is asked again, with growing pauses, for as long as the
// device is online.

const SERVICE = '/tidemark.v1.SyncService/';

// ApiError is what the server answered instead of an answer. code is Connect's
// name, "network" when there was no answer at all; reason is one word of
// docs/errors.md, or empty.
export class ApiError extends Error {
  constructor(code, message, reason = '', retryAfterMs = 0) {
    super(message);
    this.name = 'ApiError';
    this.code = code;
    this.reason = reason;
    this.retryAfterMs = retryAfterMs;
  }

  // passing tells whether trying again makes sense.
  get passing() {
    return ['network', 'unavailable', 'deadline_exceeded', 'resource_exhausted', 'aborted', 'internal', 'unknown'].includes(this.code);
  }
}

// Api calls the sync service with JSON.
export class Api {
  // token is asked before each call; it gives '' where nobody is asked for one.
  constructor({ base = '', token = () => '', fetch = globalThis.fetch.bind(globalThis) } = {}) {
    this.base = base;
    this.token = token;
    this.fetch = fetch;
  }

  async call(method, request, { signal } = {}) {
    const headers = { 'content-type': 'application/json', 'connect-protocol-version': '1' };
    const token = await this.token();
    if (token) headers.authorization = 'Bearer ' + token;
    let res, body;
    try {
      res = await this.fetch(this.base + SERVICE + method, { method: 'POST', headers, body: JSON.stringify(request), signal });
      body = await res.json();
    } catch (err) {
      if (signal?.aborted) throw err;
      throw new ApiError('network', res ? `the server answered ${res.status} and no JSON` : 'the server cannot be reached');
    }
    if (res.ok) return body;
    const info = (body.details ?? []).find((d) => d.type === 'google.rpc.ErrorInfo');
    throw new ApiError(body.code ?? 'unknown', body.message ?? `the server answered ${res.status}`,
      info?.debug?.reason ?? '', 1000 * Number(res.headers.get('retry-after') ?? 0));
  }
}

// backoff gives the pause before try n (from 0): doubled each time, and never
// the same for two devices.
export function backoff(n, random = Math.random) {
  const most = Math.min(10_000, 200 * 2 ** Math.min(n, 10));
  return Math.round(most / 2 + (random() * most) / 2);
}

// The states of a device's connection.
export const State = Object.freeze({
  offline: 'offline', // because it was told to be
  connecting: 'connecting',
  catchingUp: 'catching up',
  live: 'live',
  waiting: 'waiting', // lost, tries again
  refused: 'refused', // for good
  pulling: 'pulling', // there is no gateway for it: it asks when it is told to
});

// Live is a connection to the gateway: centrifuge's protocol in JSON over
// WebSocket. It connects again by itself until it is stopped or refused.
export class Live {
  // on.state(state, why), on.connected() before the first event of a connection,
  // and on.event(pushEvent). token as in Api.
  constructor({ url, user, device, token = () => '', WebSocket = globalThis.WebSocket, random = Math.random, on }) {
    Object.assign(this, { url, user, device, token, WebSocket, random, on });
    this.tries = 0;
    this.running = false;
  }

  start() {
    if (this.running) return;
    this.running = true;
    this.tries = 0;
    this.#connect();
  }

  // stop ends the connection; nothing is called back afterwards.
  stop() {
    this.running = false;
    this.#drop();
  }

  #drop() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    clearTimeout(this.renewal);
    const socket = this.socket;
    this.socket = null;
    this.connectedOnce = false;
    socket?.close();
  }

  async #connect() {
    this.on.state(State.connecting, '');
    let token;
    try {
      token = await this.token();
    } catch (err) {
      return this.#refuse(err.message);
    }
    if (!this.running) return;
    const socket = new this.WebSocket(this.url);
    this.socket = socket;
    this.id = 1;
    // Who does not answer at all is given up, too.
    this.#hear(15_000);
    socket.onopen = () => this.#send({ connect: { token, name: 'tidemark-js', data: { user: this.user, device: this.device } } });
    socket.onmessage = (m) => {
      if (this.socket !== socket) return;
      for (const line of String(m.data).split('\n')) {
        if (!line) continue;
        let frame;
        try {
          frame = JSON.parse(line);
        } catch {
          return this.#lost('the gateway sent what is no JSON');
        }
        this.#frame(frame);
        if (this.socket !== socket) return;
      }
    };
    socket.onclose = (e) => {
      if (this.socket !== socket) return;
      if ((e.code >= 3500 && e.code < 4000) || (e.code >= 4500 && e.code < 5000)) return this.#refuse(e.reason);
      this.#lost(e.reason || (this.connectedOnce ? 'the connection broke' : 'the gateway cannot be reached'));
    };
  }

  #send(command) {
    this.socket?.send(JSON.stringify({ id: this.id++, ...command }));
  }

  // #hear gives the other side ms to say something.
  #hear(ms) {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.#lost('the gateway went silent'), ms);
  }

  #frame(f) {
    this.#hear(this.ping ? this.ping * 1000 + 10_000 : 60_000);
    if (f.error) {
      // 109: the token was good once. Who gives it may have a new one by now.
      if (f.error.code === 109 && !this.renewed) {
        this.renewed = true;
        return this.#lost('the token has expired');
      }
      if (f.error.code === 109) return this.#refuse('the token has expired');
      return f.error.temporary || f.error.code === 100 ? this.#lost(f.error.message) : this.#refuse(f.error.message);
    }
    if (f.connect) {
      this.tries = 0;
      this.renewed = false;
      this.connectedOnce = true;
      this.ping = f.connect.ping ?? 0;
      this.pong = Boolean(f.connect.pong);
      this.#renewIn(f.connect);
      this.on.connected();
    } else if (f.refresh) {
      this.#renewIn(f.refresh);
    } else if (f.push?.pub) {
      this.on.event(f.push.pub.data);
    } else if (f.push?.disconnect) {
      const { code, reason } = f.push.disconnect;
      if (code >= 3500 && code < 4000) this.#refuse(reason);
    } else if (Object.keys(f).length === 0 && this.pong) {
      this.socket.send('{}');
    }
  }

  // #renewIn brings a new token shortly before the one that is used expires.
  #renewIn({ expires, ttl }) {
    clearTimeout(this.renewal);
    if (!expires || !ttl) return;
    this.renewal = setTimeout(async () => {
      const token = await Promise.resolve(this.token()).catch(() => '');
      if (token) this.#send({ refresh: { token } });
    }, Math.min(Math.max(ttl - 10, 1) * 1000, 2 ** 31 - 1));
  }

  #lost(why) {
    this.#drop();
    if (!this.running) return;
    const pause = backoff(this.tries++, this.random);
    this.on.state(State.waiting, why, pause);
    this.timer = setTimeout(() => this.#connect(), pause);
  }

  #refuse(why) {
    this.running = false;
    this.#drop();
    this.on.state(State.refused, why || 'the gateway refuses the connection');
  }
}

// Spans are sets of seqs as closed intervals [from, to], sorted, apart from each
// other. They are never changed in place.
export const spans = {
  // union of two sets
  add(a, b) {
    const out = [];
    for (const [from, to] of [...a, ...b].filter(([f, t]) => f <= t).sort((x, y) => x[0] - y[0])) {
      const last = out.at(-1);
      if (last && from <= last[1] + 1) last[1] = Math.max(last[1], to);
      else out.push([from, to]);
    }
    return out;
  },

  // what is in both
  both(a, b) {
    const out = [];
    for (const [f1, t1] of a) {
      for (const [f2, t2] of b) {
        const [from, to] = [Math.max(f1, f2), Math.min(t1, t2)];
        if (from <= to) out.push([from, to]);
      }
    }
    return out;
  },

  // what is in a and not in b
  without(a, b) {
    let out = a;
    for (const [f2, t2] of b) {
      out = out.flatMap(([f1, t1]) => [[f1, Math.min(t1, f2 - 1)], [Math.max(f1, t2 + 1), t1]].filter(([f, t]) => f <= t));
    }
    return out;
  },

  has: (a, seq) => a.some(([from, to]) => from <= seq && seq <= to),
  count: (a) => a.reduce((n, [from, to]) => n + to - from + 1, 0),
};

// Room is what a device knows of a conversation.
class Room {
  constructor(conversation, newest) {
    this.conversation = conversation;
    this.newest = newest;
    this.from = 0; // asked for by older(); 0: the newest ones alone
    this.asked = false; // the watermarks have been had
    this.error = null; // why they cannot be had
    this.known = []; // seqs that are accounted for
    this.messages = new Map(); // by seq
    this.visible = [];
    this.min = 0;
    this.max = 0;
    this.read = 0;
    this.unread = 0;
    this.peer = 0;
    this.repair = 0;
    this.member = false;
    this.membership = 0;
    this.opens = 0; // where the window opened that is open now
  }

  // missing is what can be seen, is wanted and not there.
  missing() {
    const from = this.from || Math.max(1, this.max - this.newest + 1);
    return spans.without(spans.both(this.visible, [[from, this.max]]), this.known);
  }

  // hasOlder tells whether there is more to see than what was wanted.
  hasOlder() {
    return spans.without(this.visible, this.known).length > 0;
  }

  // prune forgets what cannot be seen any more.
  prune() {
    this.known = spans.both(this.known, this.visible);
    for (const seq of this.messages.keys()) if (!spans.has(this.visible, seq)) this.messages.delete(seq);
  }
}

const num = (v) => Number(v ?? 0);
const pair = (r) => (r ? [num(r.begin), num(r.end)] : null);

// How long what the server has may take to be pushed, in milliseconds.
const GRACE = 500;

// The most events that wait while the device pulls. One more costs a comparison of
// watermarks, nothing else.
const MOST_EVENTS = 256;

// Device is one device of one user.
//
// on.state(state, why), on.change(conversation) after anything that a view shows,
// on.pull({conversation, begin, end, covered, rest, isEnd, count, ms}),
// on.note(text, kind, error): something worth telling a person; kind is info or
// error.
export class Device {
  constructor({ user, device, api, live = null, pageSize = 20, newest = 200, random = Math.random, on = {} }) {
    Object.assign(this, { user, device, api, pageSize, newest, random });
    this.on = { state() {}, change() {}, pull() {}, note() {}, ...on };
    this.rooms = new Map();
    this.outbox = []; // sends that have no seq yet, oldest first
    this.state = State.offline;
    this.why = '';
    this.tail = Promise.resolve();
    this.waiting = 0; // events in the queue
    this.stale = new Set(); // conversations whose numbers are to be asked for
    this.live = live && new Live({
      ...live, user, device, random,
      on: {
        state: (s, why, pause) => this.#become(s, why, pause),
        connected: () => this.#connected(),
        event: (e) => this.#offer(e),
      },
    });
  }

  // comeBack goes online: connects, compares watermarks, pulls what is missing,
  // and sends what waits.
  comeBack() {
    if (this.online) return;
    this.online = new AbortController();
    if (this.live) return this.live.start();
    this.#become(State.pulling, '');
    this.check();
  }

  // goOffline ends the connection and every call that is under way.
  goOffline() {
    this.online?.abort();
    this.online = null;
    this.live?.stop();
    clearTimeout(this.numbers);
    clearTimeout(this.late);
    this.numbers = this.late = null;
    this.#become(State.offline, '');
  }

  // open begins to follow a conversation.
  open(conversation) {
    let room = this.rooms.get(conversation);
    if (!room) {
      room = new Room(conversation, this.newest);
      this.rooms.set(conversation, room);
      if (this.online) this.#queue(() => this.#sync([conversation]));
    }
    return room;
  }

  // leave stops following it.
  forget(conversation) {
    this.rooms.delete(conversation);
    this.outbox = this.outbox.filter((o) => o.conversation !== conversation);
  }

  // check compares watermarks and pulls what is missing.
  check() {
    return this.#queue(() => this.#sync([...this.rooms.keys()]));
  }

  // older asks for a page before what is there.
  older(conversation) {
    const room = this.open(conversation);
    return this.#queue(async () => {
      const gone = spans.without(room.visible, room.known).at(-1);
      if (!gone) return;
      room.from = Math.max(1, gone[1] - this.pageSize + 1);
      await this.#fill(room);
    });
  }

  // send puts a message into the outbox and sends it when the device is online.
  // A try that fails is repeated under the same id, so it stands once.
  send(conversation, text) {
    const entry = { conversation, text, id: this.#newId(), state: 'waiting', error: '', sentAt: Date.now() };
    this.outbox.push(entry);
    this.on.change(conversation);
    if (this.online) this.#flush();
    return entry;
  }

  // discard takes a message out of the outbox.
  discard(id) {
    const gone = this.outbox.find((o) => o.id === id);
    this.outbox = this.outbox.filter((o) => o !== gone);
    if (gone) this.on.change(gone.conversation);
  }

  // markRead raises the read watermark. In a single conversation the peer is told.
  async markRead(conversation, seq) {
    const res = await this.#own('MarkConversationRead', { conversation, readSeq: seq });
    const room = this.open(conversation);
    room.read = Math.max(room.read, num(res.readSeq));
    room.unread = num(res.unread);
    this.on.change(conversation);
    return { read: room.read, unread: room.unread };
  }

  clear(conversation) {
    return this.#command('Clear', conversation, { user: this.user });
  }

  join(conversation, history = 'HISTORY_NONE') {
    return this.#command('Join', conversation, { user: this.user, history });
  }

  // leave closes the window; with an actor it is a kick.
  leave(conversation, actor = '') {
    return this.#command('Leave', conversation, { user: this.user, actor });
  }

  revoke(conversation, seq) {
    return this.#command('Revoke', conversation, { seq, actor: this.user });
  }

  #newId() {
    this.made = (this.made ?? 0) + 1;
    return `${this.device}-${Date.now().toString(36)}-${this.made.toString(36)}-${Math.floor(this.random() * 2 ** 32).toString(36)}`;
  }

  async #command(method, conversation, request) {
    const res = await this.api.call(method, { conversation, opId: this.#newId(), ...request }, { signal: this.online?.signal });
    // Its event may come before or after; either way the numbers are asked for.
    if (this.online) await this.#queue(() => this.#sync([conversation]));
    return res;
  }

  #own(method, request) {
    return this.api.call(method, { user: this.user, device: this.device, ...request }, { signal: this.online?.signal });
  }

  #become(state, why, pause = 0) {
    this.state = state;
    this.why = why ?? '';
    this.on.state(state, this.why, pause);
  }

  // #queue runs what is given after all that came before.
  #queue(job) {
    const run = this.online;
    const done = this.tail.then(() => (run && run === this.online ? job() : undefined));
    this.tail = done.catch((err) => {
      if (!run?.signal.aborted) this.on.note(err.message, 'error', err);
    });
    return this.tail;
  }

  #connected() {
    this.#become(State.catchingUp, '');
    this.#queue(async () => {
      await this.#sync([...this.rooms.keys()]);
      await this.#revokes().catch((err) => this.on.note(err.message, 'error', err));
      if (this.state === State.catchingUp) this.#become(State.live, '');
    });
    this.#flush();
  }

  #offer(e) {
    if (!this.rooms.has(e.conversation)) return;
    if (this.waiting >= MOST_EVENTS) {
      this.stale.add(e.conversation);
      return;
    }
    this.waiting++;
    this.#queue(async () => {
      await this.#apply(e);
      if (this.waiting === 1 && this.stale.size > 0) this.#refreshSoon();
    }).finally(() => this.waiting--);
  }

  async #apply(e) {
    const room = this.rooms.get(e.conversation);
    if (!room || e.transient) return undefined; // typing and the like are not kept
    if (num(e.repairNumber) > room.repair) return this.#sync([room.conversation]);
    if (e.message) return this.#pushed(room, e.message);
    if (e.read) {
      const { user, readSeq, receiptSeq } = e.read;
      if (user === this.user) room.read = Math.max(room.read, num(readSeq));
      else room.peer = Math.max(room.peer, num(receiptSeq));
    } else if (e.revoked) {
      this.#tombstone(room, e.revoked);
    } else if (e.window || e.minSeq || e.repaired) {
      const member = e.window?.member;
      const last = member?.user === this.user ? member.memberships?.at(-1) : null;
      if (last) room.opens = num(last.upper) === 0 ? num(last.lower) : 0;
      return this.#sync([room.conversation]);
    } else if (num(e.maxSeq) > room.max) {
      return this.#sync([room.conversation]); // there is more than what is pushed
    }
    this.#numbersSoon(room);
    return undefined;
  }

  // #pushed takes a message: one that is known is ignored, one that follows what
  // is known is delivered, and before any other one the gap is pulled.
  #pushed(room, m) {
    const seq = num(m.seq);
    if (spans.has(room.known, seq)) return undefined;
    const missing = room.missing();
    const follows = spans.has(room.known, seq - 1) || seq === room.opens || (room.asked && seq === (missing[0]?.[0] ?? room.max + 1));
    room.max = Math.max(room.max, seq);
    if (!follows) {
      if (room.known.length > 0) this.on.note(`Seq ${seq} came before those in front of it: the gap is pulled.`, 'info');
      return this.#sync([room.conversation]);
    }
    // The window's edge is as old as the last answer; what is pushed is visible.
    room.visible = spans.add(room.visible, [[seq, seq]]);
    this.#deliver(room, m);
    this.#numbersSoon(room);
    return undefined;
  }

  #deliver(room, m) {
    const seq = num(m.seq);
    room.messages.set(seq, { ...m, seq });
    room.known = spans.add(room.known, [[seq, seq]]);
    if (m.sender === this.user) this.outbox = this.outbox.filter((o) => o.id !== m.clientMessageId || o.conversation !== room.conversation);
  }

  #tombstone(room, { seq, by, timeMs }) {
    const m = room.messages.get(num(seq));
    if (m) room.messages.set(num(seq), { ...m, text: '', data: undefined, json: undefined, revoked: true, revokedBy: by, revokedTimeMs: timeMs });
  }

  // #numbersSoon asks for the numbers once after a burst of events.
  #numbersSoon(room) {
    this.on.change(room.conversation);
    this.stale.add(room.conversation);
    this.#refreshSoon();
  }

  #refreshSoon() {
    if (this.numbers) return;
    this.numbers = setTimeout(() => {
      this.numbers = null;
      const convs = [...this.stale].filter((c) => this.rooms.has(c));
      this.stale.clear();
      if (convs.length > 0) this.#queue(() => this.#sync(convs, this.state === State.live));
    }, 60);
  }

  // #pullSoon gives what is pushed the time to come: what has not by then is
  // pulled.
  #pullSoon(room) {
    if (this.late) return;
    this.late = setTimeout(() => {
      this.late = null;
      if (room.missing().length > 0) this.check();
    }, GRACE);
  }

  // #sync compares watermarks and pulls what is missing, until it has worked.
  // With patience a message that the server has and that was not pushed yet is
  // waited for.
  async #sync(conversations, patient = false) {
    if (conversations.length === 0) return;
    await this.#retry(async () => {
      const { signal } = this.online;
      for (let i = 0; i < conversations.length; i += 500) {
        const given = conversations.slice(i, i + 500);
        let res;
        try {
          res = await this.api.call('GetWatermarks', { user: this.user, conversations: given }, { signal });
        } catch (err) {
          if (err instanceof ApiError && !err.passing) this.#refused(given, err);
          throw err;
        }
        for (const w of res.watermarks ?? []) await this.#take(w, patient);
      }
    });
  }

  #refused(conversations, error) {
    for (const c of conversations) {
      const room = this.rooms.get(c);
      if (room) Object.assign(room, { asked: true, error });
      this.on.change(c);
    }
  }

  async #take(w, patient) {
    const room = this.rooms.get(w.conversation);
    if (!room) return;
    if (w.error) {
      const err = new ApiError(w.error.code, w.error.message, w.error.reason, num(w.error.retryAfterMs));
      if (err.retryAfterMs > 0) throw err;
      // Nobody has written yet, or it is not ours to see.
      Object.assign(room, { asked: true, error: err, visible: [], min: 0, max: 0, read: 0, unread: 0, member: false });
      room.prune();
      this.on.change(room.conversation);
      return;
    }
    Object.assign(room, {
      asked: true, error: null, min: num(w.minSeq), max: num(w.maxSeq), read: num(w.readSeq), unread: num(w.unread), peer: num(w.peerReceiptSeq),
      visible: (w.visible ?? []).map(pair), member: Boolean(w.member), membership: num(w.membership),
    });
    if (num(w.repairNumber) > room.repair) {
      if (room.repair > 0 || room.known.length > 0) {
        const from = num(w.repairFrom);
        room.known = spans.without(room.known, [[from, Number.MAX_SAFE_INTEGER]]);
        this.on.note(`The conversation was repaired: everything from seq ${from} is pulled again.`, 'info');
      }
      room.repair = num(w.repairNumber);
    }
    room.prune();
    if (!patient) await this.#fill(room);
    else if (room.missing().length > 0) this.#pullSoon(room);
    this.on.change(room.conversation);
  }

  // #revokes learns what was revoked while the device was away, from what changed
  // in the list since it last asked, and pulls the tombstones.
  async #revokes() {
    for (let pageToken = '', more = true; more;) {
      const page = await this.#retry(() => this.api.call('SyncConversations', { user: this.user, version: this.version ?? '', pageToken }, { signal: this.online.signal }));
      if (!page) return;
      for (const { watermarks, revoked = [], moreRevoked } of [...(page.changed ?? []), ...(page.removed ?? [])]) {
        const room = this.rooms.get(watermarks.conversation);
        if (room) await this.#retry(() => (moreRevoked ? this.#again(room) : this.#fetch(room, revoked.map(num))));
      }
      pageToken = page.nextPageToken ?? '';
      more = pageToken !== '';
      if (!more) this.version = page.version;
    }
  }

  // #fetch pulls single messages again that are here and stand revoked elsewhere.
  async #fetch(room, seqs) {
    for (const seq of seqs) {
      const had = room.messages.get(seq);
      if (!had || had.revoked) continue;
      const page = await this.#pull(room, seq, seq);
      for (const m of page.messages ?? []) this.#deliver(room, m);
      this.on.change(room.conversation);
    }
  }

  // #again forgets all messages of a room and pulls the newest.
  #again(room) {
    room.messages.clear();
    room.known = [];
    return this.#sync([room.conversation]);
  }

  // #fill pulls what is missing, oldest first.
  async #fill(room) {
    for (;;) {
      const [gap] = room.missing();
      if (!gap) return;
      let [begin, end] = gap;
      while (begin <= end) {
        const page = await this.#pull(room, begin, end);
        for (const m of page.messages ?? []) this.#deliver(room, m);
        const rest = pair(page.rest);
        const done = rest ? rest[0] - 1 : end;
        if (done < begin) throw new ApiError('unavailable', `the page ${begin}..${end} did not move on`, 'gap');
        // What the page does not have cannot be seen any more.
        room.known = spans.add(room.known, [[begin, done]]);
        begin = done + 1;
        this.on.change(room.conversation);
      }
    }
  }

  async #pull(room, begin, end) {
    const since = performance.now();
    const res = await this.api.call('Pull', {
      user: this.user,
      ranges: [{ conversation: room.conversation, begin, end, num: this.pageSize, order: 'ORDER_ASC', keep: 'KEEP_NEAR_BEGIN' }],
    }, { signal: this.online.signal });
    const page = res.pages?.[0];
    if (!page) throw new ApiError('internal', 'an answer without a page');
    if (page.error) throw new ApiError(page.error.code, page.error.message, page.error.reason, num(page.error.retryAfterMs));
    this.on.pull({
      conversation: room.conversation, begin, end, covered: pair(page.covered), rest: pair(page.rest), isEnd: Boolean(page.isEnd),
      count: (page.messages ?? []).length, ms: performance.now() - since,
    });
    return page;
  }

  // #retry repeats what the server failed, while the device is online.
  async #retry(job) {
    const run = this.online;
    for (let n = 0; run && run === this.online; n++) {
      try {
        return await job();
      } catch (err) {
        if (run.signal.aborted) return undefined;
        if (!(err instanceof ApiError) || !err.passing) throw err;
        this.on.note(`${err.message}; trying again`, 'error', err);
        await new Promise((go) => {
          const t = setTimeout(go, Math.max(err.retryAfterMs, backoff(n, this.random)));
          run.signal.addEventListener('abort', () => { clearTimeout(t); go(); }, { once: true });
        });
      }
    }
    return undefined;
  }

  // #flush sends what waits, one after the other.
  async #flush() {
    if (this.flushing) return;
    this.flushing = true;
    try {
      for (let next; this.online && (next = this.outbox.find((o) => o.state !== 'failed'));) await this.#sendOne(next);
    } finally {
      this.flushing = false;
    }
  }

  async #sendOne(entry) {
    entry.state = 'sending';
    this.on.change(entry.conversation);
    const run = this.online;
    let res;
    try {
      res = await this.#retry(() => this.api.call('Send', {
        waitForSeq: true,
        message: { conversation: entry.conversation, sender: this.user, clientMessageId: entry.id, text: entry.text, device: this.device },
      }, { signal: run.signal }));
    } catch (err) {
      Object.assign(entry, { state: 'failed', error: err.message });
      this.on.note(`Not sent: ${err.message}`, 'error', err);
      this.on.change(entry.conversation);
      return;
    }
    if (!res) {
      entry.state = 'waiting'; // went offline meanwhile
      this.on.change(entry.conversation);
      return;
    }
    this.outbox = this.outbox.filter((o) => o !== entry);
    const m = { conversation: entry.conversation, seq: res.seq, sender: this.user, clientMessageId: entry.id, text: entry.text, device: this.device, sendTimeMs: entry.sentAt };
    await this.#queue(() => {
      const room = this.rooms.get(entry.conversation);
      return room && this.#pushed(room, m);
    });
  }
}
