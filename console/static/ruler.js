// The seq ruler: where a conversation begins and ends, what a user may see of
// it, how far it has read, and what was pulled.

import { h, s, set } from './dom.js';

const LANES = 5; // pulls that are drawn
const LEAST = 3; // lanes that are there when nothing was pulled, too
const LANE = 15;
const PAD = 12;

const Y = { flag: 11, line: 22, band: 34, read: 52, window: 62, pulls: 76 };

export class Ruler {
  constructor(name) {
    this.name = name;
    this.svg = s('svg', { class: 'ruler', role: 'img' });
    this.summary = h('p', { class: 'visually-hidden' });
    this.node = h('figure', { class: 'ruler-box' }, this.svg, this.summary, h('figcaption', { class: 'legend', 'aria-hidden': 'true' },
      key('conversation', 'the conversation'), key('window', 'may be seen'), key('known', 'is here'), key('read', 'read'), key('pull', 'pulled page')));
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  // model: {min, max} of the conversation, visible and known as intervals, read,
  // pulls with {begin, end, covered, isEnd}, newest last.
  update(model) {
    this.model = model;
    this.draw();
  }

  draw() {
    const width = this.node.clientWidth;
    const m = this.model;
    if (!m || width === 0) return;
    const pulls = m.pulls.slice(-LANES);
    const height = Y.pulls + Math.max(pulls.length, LEAST) * LANE;
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.svg.setAttribute('height', height);
    this.svg.setAttribute('width', width);
    this.svg.setAttribute('aria-label', this.#words(m));
    set(this.summary, pulls.length ? 'Pages pulled: ' + pulls.map((p) => `${p.begin} to ${p.end}`).join(', ') : 'Nothing was pulled.');
    if (m.max < 1) {
      this.svg.replaceChildren(text(width / 2, Y.band, 'No message yet: the ruler begins with seq 1.', 'middle', 'ruler-empty'));
      return;
    }
    const lo = this.#lowest(m, pulls) - 0.6;
    const hi = Math.max(m.max, ...m.visible.map((v) => v[1])) + 0.6;
    const x = (seq) => PAD + ((seq - lo) / (hi - lo)) * (width - 2 * PAD);
    const bar = (cls, [from, to], y, tall, more = {}) => s('rect', {
      class: cls, x: x(from - 0.5), y, width: Math.max(2, x(to + 0.5) - x(from - 0.5)), height: tall, rx: 2, ...more,
    });
    const parts = [];
    // The conversation.
    const { min, max } = m;
    if (min <= max) parts.push(bar('conversation', [Math.max(min, lo), max], Y.line - 2, 4));
    for (const edge of new Set([min, max])) if (edge > lo) parts.push(s('line', { class: 'conversation-edge', x1: x(edge), x2: x(edge), y1: Y.line - 6, y2: Y.line + 6 }));
    parts.push(...pairOf(x, width, [min > lo ? min : null, 'min '], [max, 'max '], Y.flag, 'label'));
    // What the user may see, and of that what is here.
    for (const v of m.visible) parts.push(bar('window', [Math.max(v[0], lo), v[1]], Y.band, 10));
    for (const k of m.known) parts.push(bar('known', [Math.max(k[0], lo), k[1]], Y.band + 3, 4));
    for (const e of new Set(m.visible.flat())) if (e > lo) parts.push(s('line', { class: 'window-edge', x1: x(e), x2: x(e), y1: Y.band - 3, y2: Y.band + 13 }));
    const first = m.visible.at(0)?.[0];
    const last = m.visible.at(-1)?.[1];
    if (m.visible.length > 1) parts.push(...eachOf(x, width, m.visible, lo));
    else if (first !== undefined) parts.push(...pairOf(x, width, [first > lo ? first : null, 'from '], [last, 'to '], Y.window, 'label window-label'));
    else parts.push(text(width / 2, Y.window, 'nothing may be seen', 'middle', 'label window-label'));
    if (m.read > lo && m.read <= hi) {
      const at = x(m.read);
      parts.push(s('path', { class: 'read', d: `M${at} ${Y.band + 5} l5 9 h-10 z` }));
    }
    pulls.forEach((p, i) => parts.push(...this.#pull(p, Y.pulls + i * LANE, x, lo, width, i === pulls.length - 1, bar)));
    if (pulls.length === 0) parts.push(text(PAD, Y.pulls + 9, 'nothing was pulled yet', 'start', 'ruler-empty'));
    this.svg.replaceChildren(...parts);
  }

  #pull(p, y, x, lo, width, newest, bar) {
    const [from, to] = p.covered ?? [p.begin, p.end];
    const words = `${p.begin}–${p.end}` + (p.covered && (from !== p.begin || to !== p.end) ? ` gave ${from}–${to}` : '') + (p.count === 0 ? ', empty' : '') + (p.isEnd ? ', that is all' : '');
    const asked = s('line', { class: 'asked', x1: x(Math.max(p.begin, lo) - 0.5), x2: x(p.end + 0.5), y1: y + 5, y2: y + 5 });
    const r = bar(newest ? 'pull newest' : 'pull', [Math.max(from, lo), to], y + 1, 8);
    const left = x(Math.max(from, lo)) > width / 2;
    return [asked, r, left ? text(x(Math.max(Math.min(from, p.begin), lo) - 0.5) - 5, y + 9, words, 'end', 'label') : text(Math.min(x(Math.max(to, p.end) + 0.5) + 5, width - 5.6 * words.length), y + 9, words, 'start', 'label')];
  }

  // #lowest keeps the interesting part large: what is here, was pulled, or ends
  // in sight of it. Of a long conversation the old part is left out.
  #lowest(m, pulls) {
    const edges = [...m.known.map((k) => k[0]), ...pulls.map((p) => p.begin), m.visible.at(0)?.[0], m.min].filter((n) => n > 0);
    const low = Math.min(...edges, m.max);
    const here = Math.min(...m.known.map((k) => k[0]), ...pulls.map((p) => p.begin), m.max);
    const span = Math.max(m.max - here + 1, 20);
    return m.max - low > 6 * span ? Math.max(1, here - span) : Math.min(low, m.min || low);
  }

  #words(m) {
    if (m.max < 1) return `${this.name}: no message yet`;
    const seen = m.visible.length ? m.visible.map((v) => `${v[0]} to ${v[1]}`).join(' and ') : 'nothing';
    return `${this.name}: the conversation has seq ${m.min} to ${m.max}; may be seen: ${seen}; read up to ${m.read}.`;
  }
}

const key = (cls, words) => h('span', {}, s('svg', { class: 'key', width: 14, height: 10, viewBox: '0 0 14 10' }, cls === 'read'
  ? s('path', { class: 'read', d: 'M7 0 l5 9 h-10 z' })
  : s('rect', { class: cls === 'pull' ? 'pull newest' : cls, x: 0, y: cls === 'conversation' || cls === 'known' ? 3 : 1, width: 14, height: cls === 'conversation' || cls === 'known' ? 4 : 8, rx: 2 })), words);

function text(x, y, words, anchor, cls) {
  return s('text', { x, y, 'text-anchor': anchor, class: cls }, words);
}

// pairOf labels two edges; where their labels would run into each other they are
// written as one.
function pairOf(x, width, [a, wordA], [b, wordB], y, cls) {
  const place = (seq, words) => {
    const half = words.length * 3.2;
    return text(Math.min(Math.max(x(seq), half + 1), width - half - 1), y, words, 'middle', cls);
  };
  if (a === null) return [place(b, wordB + b)];
  if (a === b) return [place(a, `${wordA}${a}, ${wordB}${b}`)];
  if (x(b) - x(a) < 72) return [place((a + b) / 2, `${wordA}${a}, ${wordB}${b}`)];
  return [place(a, wordA + a), place(b, wordB + b)];
}

// eachOf labels several intervals with both edges of each, from the newest on as
// long as there is room.
function eachOf(x, width, intervals, lo) {
  const out = [];
  let free = width;
  for (const [from, to] of [...intervals].reverse()) {
    const words = from === to ? `${from}` : `from ${from} to ${to}`;
    const half = words.length * 3.2;
    const at = Math.min(Math.max((x(Math.max(from, lo)) + x(Math.max(to, lo))) / 2, half + 1), free - half - 4);
    if (at < half) break;
    out.push(text(at, Y.window, words, 'middle', 'label window-label'));
    free = at - half - 4;
  }
  return out;
}
