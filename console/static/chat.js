// Panes of several users beside each other, all in one conversation.

import { Api, ApiError, Device, State, spans } from './client.js';
import { clock, h, newId, plural, say, set, show, stored, tip } from './dom.js';
import { Ruler } from './ruler.js';

const MOST_PANES = 6;
const MOST_PULLS = 30;
const MOST_LINES = 40;
const ID = /^[A-Za-z0-9._~@-]{1,64}$/;
// Asks as somebody who never was in a group, to whom all of it is shown unless
// groups are closed: that is how the ruler knows the conversation's own bounds.
const OBSERVER = 'tidemark-console';

// faultOf says what is wrong with a conversation's id, '' when nothing is.
export function faultOf(conversation) {
  const [kind, ...ids] = conversation.split(':');
  if (kind === 'group' && ids.length === 1 && ID.test(ids[0])) return '';
  if (kind === 'single' && ids.length === 2 && ids.every((i) => ID.test(i))) {
    return ids[0] < ids[1] ? '' : `The smaller name comes first: single:${[...ids].sort().join(':')}`;
  }
  return 'A conversation is group:NAME, or single:NAME:NAME. Names are letters, digits and . _ ~ @ -';
}

export class Chat {
  // about is what the server has; token gives the administrator's token.
  constructor({ about, token, moved }) {
    Object.assign(this, { about, token, moved });
    this.panes = [];
    this.bounds = { min: 0, max: 0 };
    this.operator = new Api({ token });
    this.conversation = '';
    this.pageSize = 20;
    this.#build();
  }

  #build() {
    const id = newId('conversation');
    this.input = h('input', { id, name: 'conversation', autocomplete: 'off', spellcheck: 'false', autocapitalize: 'off', maxlength: 140, 'aria-describedby': id + '-fault' });
    this.fault = h('p', { class: 'fault', id: id + '-fault', role: 'alert' });
    const who = newId('who');
    this.who = h('input', { id: who, name: 'user', autocomplete: 'off', spellcheck: 'false', autocapitalize: 'off', maxlength: 64, placeholder: 'carol' });
    const size = newId('size');
    this.size = h('select', { id: size, onchange: () => this.#resize() }, [3, 20, 100].map((n) => h('option', { value: n, selected: n === 20 }, plural(n, 'message'))));
    this.grid = h('div', { class: 'panes' });
    this.node = h('section', { 'aria-label': 'Chat' },
      h('div', { class: 'bar' },
        h('form', { class: 'field', onsubmit: (e) => { e.preventDefault(); this.open(this.input.value.trim()); } },
          h('label', { for: id }, 'Conversation'), h('span', { class: 'joined' }, this.input, h('button', { type: 'submit' }, 'Open'))),
        h('form', { class: 'field', onsubmit: (e) => { e.preventDefault(); this.#addNamed(); } },
          h('label', { for: who }, 'Another user'), h('span', { class: 'joined' }, this.who, h('button', { type: 'submit' }, 'Add'))),
        h('div', { class: 'field' }, h('label', { for: size }, 'Page of a pull'), this.size)),
      this.fault, this.grid);
  }

  // show opens what is given, or what is there by default.
  show(conversation, users) {
    this.open(conversation);
    for (const u of users) this.add(u);
  }

  open(conversation) {
    const fault = faultOf(conversation);
    set(this.fault, fault);
    this.input.setAttribute('aria-invalid', fault ? 'true' : 'false');
    if (fault) return;
    this.input.value = conversation;
    if (conversation === this.conversation) return;
    this.conversation = conversation;
    this.bounds = { min: 0, max: 0 };
    for (const p of this.panes) p.open(conversation);
    this.look();
    this.moved();
  }

  #addNamed() {
    const name = this.who.value.trim();
    if (this.add(name)) this.who.value = '';
  }

  add(name) {
    const fault = !ID.test(name) ? 'A user\'s name is 1 to 64 letters, digits and . _ ~ @ -'
      : this.panes.some((p) => p.user === name) ? `${name} has a pane already.`
        : this.panes.length >= MOST_PANES ? `There is room for ${MOST_PANES} panes.` : '';
    set(this.fault, fault);
    if (fault) return false;
    const pane = new Pane(this, name);
    this.panes.push(pane);
    this.grid.append(pane.node);
    pane.open(this.conversation);
    pane.start();
    this.moved();
    return true;
  }

  remove(pane) {
    pane.end();
    const at = this.panes.indexOf(pane);
    this.panes.splice(at, 1);
    pane.node.remove();
    (this.panes[Math.min(at, this.panes.length - 1)]?.node.querySelector('button') ?? this.who).focus();
    this.moved();
  }

  #resize() {
    this.pageSize = Number(this.size.value);
    for (const p of this.panes) p.device.pageSize = this.pageSize;
  }

  // look finds out the conversation's bounds, soon after something happened.
  look() {
    if (this.looking) return;
    this.looking = setTimeout(async () => {
      this.looking = null;
      const conversation = this.conversation;
      const seen = this.panes.map((p) => p.room).filter((r) => r?.max > 0);
      let min = Math.min(...seen.map((r) => r.min).filter((n) => n > 0), Infinity);
      let max = Math.max(...seen.map((r) => r.max), this.bounds.max);
      if (conversation.startsWith('group:')) {
        try {
          const res = await this.operator.call('GetWatermarks', { user: OBSERVER, conversations: [conversation] });
          const w = res.watermarks?.[0];
          if (w && !w.error) [min, max] = [Number(w.minSeq ?? 0), Math.max(max, Number(w.maxSeq ?? 0))];
        } catch { /* then what the panes see has to do */ }
      }
      if (conversation !== this.conversation) return;
      this.bounds = { min: Number.isFinite(min) ? min : 1, max };
      for (const p of this.panes) p.draw();
    }, 150);
  }

  // authorized tells all panes that there is another token.
  authorized() {
    for (const p of this.panes) p.restart();
    this.look();
  }
}

const NUMBERS = [
  ['min', 'Min', 'The lowest seq that this user can see now: the conversation’s minimum or the beginning of the window, whichever is higher.'],
  ['max', 'Max', 'The highest seq that this user can see: the latest message, or where the window ends.'],
  ['read', 'Read', 'The read watermark: this user has read up to here. It only ever rises.'],
  ['unread', 'Unread', 'Messages that can be seen and stand above the read watermark.'],
  ['window', 'Window', 'The seqs that this user may see: one interval for each time as a member. A kick ends it, joining again begins another one.'],
];

const STATES = {
  [State.offline]: ['Offline', 'off'],
  [State.connecting]: ['Connecting', 'busy'],
  [State.catchingUp]: ['Catching up', 'busy'],
  [State.live]: ['Live', 'good'],
  [State.waiting]: ['Connection lost', 'bad'],
  [State.refused]: ['Refused', 'bad'],
  [State.pulling]: ['Not live', 'off'],
};

class Pane {
  constructor(chat, user) {
    this.chat = chat;
    this.user = user;
    this.kept = stored('sessionStorage', 'token.' + user);
    this.token = this.kept.get() ?? '';
    this.pulls = [];
    this.rows = new Map();
    this.#build();
    this.#makeDevice();
  }

  get room() { return this.device.rooms.get(this.conversation); }

  #makeDevice() {
    const { about } = this.chat;
    const live = about.live && this.#ownToken() !== null;
    this.device = new Device({
      user: this.user,
      device: 'console-' + Math.floor(Math.random() * 2 ** 32).toString(36),
      api: new Api({ token: () => this.token || this.chat.token() }),
      pageSize: this.chat.pageSize,
      live: live ? { url: new URL('live', location.href.replace(/^http/, 'ws')).href.replace(/#.*/, ''), token: () => this.#ownToken() ?? '' } : null,
      on: {
        state: (state, why, pause) => this.#state(state, why, pause),
        change: () => { this.draw(); this.chat.look(); },
        pull: (p) => this.#pulled(p),
        note: (words, kind, err) => this.#log(err && !words.startsWith('Not sent') ? inWords(err) + (err.passing ? ' Trying again.' : '') : words, kind),
      },
    });
  }

  // #ownToken gives the token to connect with: the gateway takes each user's own
  // only. null: there is none.
  #ownToken() {
    if (!this.chat.about.auth) return '';
    if (this.token) return this.token;
    const shared = this.chat.token();
    return subjectOf(shared) === this.user ? shared : null;
  }

  start() { this.device.comeBack(); }

  end() { this.device.goOffline(); }

  restart() {
    const conversation = this.conversation;
    this.end();
    this.#makeDevice();
    this.conversation = '';
    this.open(conversation);
    this.start();
  }

  open(conversation) {
    if (this.conversation && this.conversation !== conversation) this.device.forget(this.conversation);
    this.conversation = conversation;
    this.pulls = [];
    for (const r of this.rows.values()) r.node.remove();
    this.rows.clear();
    this.device.open(conversation);
    this.draw();
  }

  #build() {
    const title = newId('pane');
    this.badge = h('span', { class: 'badge' });
    this.why = h('p', { class: 'why', hidden: true });
    this.status = h('p', { class: 'visually-hidden', role: 'status' });
    this.numbers = Object.fromEntries(NUMBERS.map(([key]) => [key, h('dd', { 'data-number': key }, '–')]));
    this.ruler = new Ruler('Ruler of ' + this.user);
    this.list = h('div', { class: 'messages', role: 'log', 'aria-label': 'Messages that ' + this.user + ' sees', 'aria-busy': 'true', tabindex: 0 });
    this.empty = h('div', { class: 'empty', hidden: true });
    const input = newId('text');
    this.text = h('input', { id: input, name: 'text', autocomplete: 'off', placeholder: 'Message', maxlength: 4000 });
    this.sendButton = h('button', { type: 'submit', class: 'primary' }, 'Send');
    this.form = h('form', { class: 'compose', onsubmit: (e) => { e.preventDefault(); this.#send(); } },
      h('label', { for: input, class: 'visually-hidden' }, 'Message of ' + this.user), this.text, this.sendButton);
    this.lines = h('ol', { class: 'log', tabindex: 0, 'aria-label': 'What happened to ' + this.user });
    this.node = h('article', { class: 'pane', 'aria-labelledby': title, 'data-user': this.user },
      h('header', {}, h('h2', { id: title }, this.user), this.badge,
        h('span', { class: 'spacer' }),
        this.line = this.#button('Go offline', () => this.#toggle()),
        this.#button('Close', () => this.chat.remove(this), { class: 'quiet', 'aria-label': 'Close the pane of ' + this.user })),
      this.why, this.#tokenForm(),
      h('dl', { class: 'numbers' }, NUMBERS.map(([key, word, words]) => h('div', {}, h('dt', {}, tip(word, words)), this.numbers[key]))),
      this.ruler.node,
      h('div', { class: 'stage' }, this.list, this.empty),
      this.form, this.#actions(), this.status,
      h('details', { class: 'happened', open: true }, h('summary', {}, 'What happened'), this.lines));
  }

  #button(words, act, more = {}) {
    return h('button', { type: 'button', onclick: act, ...more }, words);
  }

  #actions() {
    const history = newId('history');
    this.history = h('select', { id: history }, h('option', { value: 'HISTORY_NONE' }, 'what comes from now on'), h('option', { value: 'HISTORY_ALL' }, 'everything'));
    this.buttons = {
      read: this.#button('Mark read', () => this.#markRead(this.room.max)),
      older: this.#button('Pull older', () => this.device.older(this.conversation)),
      check: this.#button('Check now', () => this.device.check(), { hidden: true }),
      revoke: this.#button('Revoke last', () => this.#revokeLast()),
      clear: this.#button('Clear', () => this.#act('Cleared', () => this.device.clear(this.conversation), (r) => `nothing up to seq ${r.maxSeq ?? 0} is to be seen any more`)),
      kick: this.#button('Kick', () => this.#kick()),
      join: this.#button('Join', () => this.#join()),
    };
    const b = this.buttons;
    this.joining = h('span', { class: 'joined join' }, b.join, h('label', { for: history, class: 'visually-hidden' }, 'What ' + this.user + ' sees after joining'), this.history);
    return h('div', { class: 'actions', role: 'group', 'aria-label': 'Actions on ' + this.user }, b.read, b.older, b.check, b.revoke, b.clear, b.kick, this.joining);
  }

  #tokenForm() {
    if (!this.chat.about.auth) return null;
    const id = newId('token');
    const input = h('input', { id, type: 'password', autocomplete: 'off', spellcheck: 'false', value: this.token });
    const node = h('details', { class: 'token' }, h('summary', {}, 'Token of ' + this.user),
      h('form', { onsubmit: (e) => {
        e.preventDefault();
        this.token = input.value.trim();
        this.kept.set(this.token);
        node.open = !this.token;
        this.restart();
      } },
        h('p', {}, 'The gateway takes each user’s own token only: ', h('code', {}, 'tidemark token --user ' + this.user)),
        h('label', { for: id }, 'Token'), h('span', { class: 'joined' }, input, h('button', { type: 'submit' }, 'Use'))));
    return node;
  }

  #state(state, why, pause) {
    const [words, cls] = STATES[state];
    if (this.badge.textContent !== words) say(this.status, `${this.user}: ${words}`);
    set(this.badge, words);
    this.badge.className = 'badge ' + cls;
    this.node.dataset.state = state;
    let more = why;
    if (state === State.waiting) more = `${why}. Trying again${pause >= 1000 ? ` in ${Math.round(pause / 1000)} s` : ''}; what is missed is pulled then.`;
    if (state === State.offline) more = 'Offline: nothing is pushed here. What you send waits, and goes out when ' + this.user + ' comes back.';
    if (state === State.refused) more = `The gateway refuses this connection: ${why}. “Check now” pulls what is new.`;
    if (state === State.pulling) {
      more = this.chat.about.live ? `Not live without a token of ${this.user}’s own. “Check now” pulls what is new.` : 'No gateway is reached from here, so nothing is pushed. “Check now” pulls what is new.';
    }
    set(this.why, more ?? '');
    show(this.why, Boolean(more));
    set(this.line, state === State.offline ? 'Come back' : 'Go offline');
    if (state === State.live && this.before !== state) this.#log('Live: everything up to seq ' + (this.room?.max ?? 0) + ' is here.');
    if (state === State.offline && this.before) this.#log('Went offline.');
    this.before = state;
    this.list.setAttribute('aria-busy', String(state === State.connecting || state === State.catchingUp));
    this.draw();
  }

  #toggle() {
    if (this.device.online) this.device.goOffline();
    else this.device.comeBack();
  }

  #log(words, kind = 'info') {
    this.lines.prepend(h('li', { class: kind }, h('time', {}, clock(Date.now())), ' ', words));
    while (this.lines.children.length > MOST_LINES) this.lines.lastChild.remove();
    if (kind !== 'pull') say(this.status, `${this.user}: ${words}`);
  }

  #pulled(p) {
    this.pulls.push(p);
    if (this.pulls.length > MOST_PULLS) this.pulls.shift();
    const what = p.count === 0 ? 'nothing' : plural(p.count, 'message');
    const end = p.rest ? `; ${p.rest[0]}–${p.rest[1]} is left` : p.isEnd ? '; that is all' : '';
    this.#log(`Pulled ${p.begin}–${p.end}: ${what}${end}.`, 'pull');
  }

  // #act does something and says what came of it.
  async #act(done, what, words = () => '') {
    try {
      const res = await what();
      const more = words(res);
      this.#log(`${done}${more ? ': ' + more : ''}.`, 'done');
      return res;
    } catch (err) {
      if (err.name === 'AbortError') return null;
      this.#log(inWords(err), 'error');
      return null;
    }
  }

  #send() {
    const words = this.text.value;
    if (!words.trim()) return;
    this.device.send(this.conversation, words);
    this.text.value = '';
  }

  #markRead(seq) {
    return this.#act('Marked read', () => this.device.markRead(this.conversation, seq), (r) => `up to ${r.read}, ${r.unread} unread`);
  }

  #revoke(seq) {
    return this.#act('Revoked', () => this.device.revoke(this.conversation, seq), () => `seq ${seq} is a tombstone for everybody`);
  }

  #lastOwn() {
    return [...(this.room?.messages.values() ?? [])].filter((m) => m.sender === this.user && !m.revoked).sort((a, b) => b.seq - a.seq)[0];
  }

  #revokeLast() {
    const m = this.#lastOwn();
    if (m) return this.#revoke(m.seq);
    return undefined;
  }

  // A kick and a join are ordered by others, so they work on a user who is
  // offline, too.
  async #kick() {
    const actor = this.chat.panes.find((p) => p !== this)?.user ?? OBSERVER;
    await this.#act(`Kicked by ${actor}`, () => this.chat.operator.call('Leave', { conversation: this.conversation, user: this.user, actor }),
      (r) => `sees nothing above seq ${r.maxSeq ?? 0}`);
    this.#settle();
  }

  async #join() {
    const history = this.history.value;
    await this.#act('Joined', () => this.chat.operator.call('Join', { conversation: this.conversation, user: this.user, history }),
      (r) => `sees ${history === 'HISTORY_ALL' ? 'everything' : `what comes after seq ${r.maxSeq ?? 0}`}`);
    this.#settle();
  }

  #settle() {
    if (this.device.online) this.device.check();
    this.chat.look();
  }

  // draw brings the pane up to date with the next frame.
  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.#draw();
    });
  }

  #draw() {
    const room = this.room;
    if (!room) return;
    const shown = room.visible.length > 0;
    this.#number('min', shown ? room.min : '–');
    this.#number('max', shown ? room.max : '–');
    this.#number('read', room.asked && !room.error ? room.read : '–');
    this.#number('unread', room.asked && !room.error ? room.unread : '–');
    this.#number('window', windowOf(room));
    const { bounds } = this.chat;
    this.ruler.update({
      min: bounds.min, max: Math.max(bounds.max, room.max), visible: room.visible, known: room.known, read: room.read, pulls: this.pulls,
    });
    this.#messages(room);
    this.#controls(room);
  }

  #number(key, value) {
    const node = this.numbers[key];
    const before = node.textContent;
    set(node, value);
    if (before !== String(value) && before !== '–') {
      node.classList.remove('moved');
      void node.offsetWidth; // so that it starts again
      node.classList.add('moved');
    }
  }

  #controls(room) {
    const online = Boolean(this.device.online);
    const b = this.buttons;
    const former = !room.member && room.membership > 0;
    // The two of a single conversation need not join it, and others cannot.
    const party = partyOf(this.conversation, this.user);
    const outside = room.asked && !room.member && (party === null || former);
    show(b.kick, room.member);
    show(this.joining, outside);
    set(b.join, former ? 'Rejoin' : 'Join');
    show(b.check, this.device.state === State.pulling || this.device.state === State.refused);
    b.read.disabled = !online || room.unread === 0;
    b.older.disabled = !online || !room.hasOlder();
    b.clear.disabled = !online || room.visible.length === 0;
    b.revoke.disabled = !online || !this.#lastOwn();
    this.sendButton.disabled = this.text.disabled = former || party === false;
    this.text.placeholder = former ? 'Not a member any more' : party === false ? 'Not one of the two' : 'Message';
    // What there is to say where no message is.
    const none = room.messages.size === 0 && this.device.outbox.length === 0;
    show(this.empty, none);
    if (none) set(this.empty, this.#nothing(room, former, party));
  }

  #nothing(room, former, party) {
    if (party === false) return `${this.user} is not one of the two in this conversation.`;
    if (!room.asked) return this.device.online ? 'Asking what there is …' : 'Come back to see what there is.';
    if (room.error && room.error.reason !== 'unknown_conversation') return inWords(room.error);
    if (former) return 'Not a member any more, and nothing is left to be seen. Rejoin to be pushed what comes.';
    if (!room.member && party === null) return `${this.user} is not a member. Join to be pushed what comes.`;
    return room.max > 0 ? 'Nothing to be seen here: write something.' : 'No message yet: write the first one.';
  }

  // #messages shows what there is in order, the seqs between that may not be
  // seen, how far it is read, and what is not sent yet.
  #messages(room) {
    const rows = [];
    let before = 0;
    let unreadShown = false;
    for (const m of [...room.messages.values()].sort((a, b) => a.seq - b.seq)) {
      if (before > 0 && m.seq > before + 1) {
        for (const [from, to, words] of gapsIn(room, before + 1, m.seq - 1)) {
          rows.push([`gap-${from}-${to}-${words}`, '', () => h('p', { class: 'gap' }, from === to ? `seq ${from} is ${words}` : `seqs ${from}–${to} are ${words}`)]);
        }
      }
      if (!unreadShown && m.seq > room.read && m.sender !== this.user) {
        unreadShown = true;
        rows.push([`unread-${m.seq}`, '', () => h('p', { class: 'unread-line' }, 'Unread')]);
      }
      rows.push(this.#row(m, room));
      before = m.seq;
    }
    for (const o of this.device.outbox.filter((x) => x.conversation === this.conversation)) rows.push(this.#waiting(o));
    const atEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    const wanted = new Set(rows.map(([key]) => key));
    for (const [key, r] of this.rows) {
      if (!wanted.has(key)) {
        r.node.remove();
        this.rows.delete(key);
      }
    }
    let at = this.list.firstChild;
    for (const [key, state, make] of rows) {
      let r = this.rows.get(key);
      if (!r || r.state !== state) {
        const node = make();
        if (r) r.node.replaceWith(node);
        if (at === r?.node) at = node;
        r = { node, state };
        this.rows.set(key, r);
      }
      if (r.node === at) at = at.nextSibling;
      else this.list.insertBefore(r.node, at);
    }
    if (atEnd) this.list.scrollTop = this.list.scrollHeight;
  }

  #row(m, room) {
    const own = m.sender === this.user;
    const read = own && this.conversation.startsWith('single:') && (m.seq <= room.peer || Boolean(m.isRead));
    return [`m-${m.seq}`, `${m.revoked ? 'r' : ''}${read ? 'x' : ''}${m.seq <= room.read ? 'y' : ''}${m.clientMessageId}`, () => h('div', { class: 'message' + (own ? ' own' : '') + (m.revoked ? ' revoked' : ''), 'data-seq': m.seq },
      h('span', { class: 'seq' }, h('span', { class: 'visually-hidden' }, 'seq '), m.seq),
      h('span', { class: 'said' }, h('b', {}, m.sender), ' ',
        m.revoked ? h('i', {}, 'revoked' + (m.revokedBy ? ' by ' + m.revokedBy : '')) : bodyOf(m),
        read ? h('span', { class: 'tick' }, ' read') : null),
      m.revoked ? null : h('span', { class: 'row-actions' },
        m.seq <= room.read ? null : h('button', { type: 'button', 'aria-label': `Read to here, seq ${m.seq}`, onclick: () => this.#markRead(m.seq) }, 'Read to here'),
        own ? h('button', { type: 'button', 'aria-label': `Revoke seq ${m.seq}`, onclick: () => this.#revoke(m.seq) }, 'Revoke') : null))];
  }

  #waiting(o) {
    const words = { waiting: 'waits until ' + this.user + ' is online', sending: 'sending', failed: 'not sent: ' + o.error }[o.state];
    return [`o-${o.id}`, o.state, () => h('div', { class: 'message own pending ' + o.state }, h('span', { class: 'seq', 'aria-hidden': 'true' }, '·'),
      h('span', { class: 'said' }, h('b', {}, this.user), ' ', o.text, ' ', h('i', {}, words)),
      o.state === 'failed' ? h('span', { class: 'row-actions shown' }, h('button', { type: 'button', onclick: () => this.device.discard(o.id) }, 'Discard')) : null)];
  }
}

// gapsIn says why seqs are not shown: some may not be seen, some were not pulled.
function gapsIn(room, from, to) {
  const all = [[from, to]];
  const hidden = spans.without(all, room.visible).map(([f, t]) => [f, t, 'outside of the window']);
  const left = spans.without(spans.both(all, room.visible), room.known).map(([f, t]) => [f, t, 'not here: “Pull older” brings them']);
  return [...hidden, ...left].sort((a, b) => a[0] - b[0]);
}

// partyOf tells whether a user is one of the two of a single conversation; null
// where it is none.
function partyOf(conversation, user) {
  const [kind, ...users] = conversation.split(':');
  return kind === 'single' ? users.includes(user) : null;
}

function windowOf(room) {
  if (!room.asked || room.error) return '–';
  if (room.visible.length === 0) return 'nothing';
  return room.visible.map(([from, to], i) => (i === room.visible.length - 1 && room.member ? `${from}–` : from === to ? `${from}` : `${from}–${to}`)).join(', ');
}

function bodyOf(m) {
  if (m.text !== undefined) return m.text;
  if (m.json !== undefined) return JSON.stringify(m.json);
  return m.data ? '(binary data)' : '';
}

// inWords says an error so that a person knows what to do.
function inWords(err) {
  if (!(err instanceof ApiError)) return String(err.message ?? err);
  const known = {
    token_missing: 'A token is needed. Enter one above.',
    token_invalid: 'The token is not good here.',
    token_expired: 'The token has expired. Enter a new one.',
    admin_required: 'That takes an administrator’s token.',
    other_user: 'The token speaks for another user. Enter an administrator’s, or this user’s own.',
    not_member: 'The user is not a member any more.',
    not_sender: 'Only its sender may revoke a message.',
    unknown_conversation: 'There is no such conversation, or the user may not know of it.',
    window_full: 'The user joined and left too often.',
  }[err.reason];
  return known ?? (err.code === 'network' ? 'The server cannot be reached.' : err.message.replace(/[^.]$/, '$&.'));
}

// subjectOf gives the user for whom a token speaks, to tell whose it is. It
// trusts nothing: the server checks.
export function subjectOf(token) {
  try {
    return JSON.parse(atob(token.split('.')[1].replaceAll('-', '+').replaceAll('_', '/'))).sub ?? '';
  } catch {
    return '';
  }
}
