// The pipeline: what the processes say about themselves, asked for every two
// seconds while it is looked at. Rates are what changed from one answer to the
// next.

import { age, clock, count, decimal, h, plural, s, set, show, tip } from './dom.js';

const EVERY = 2000;
const SAMPLES = 60;
const NONE = 'no data';

const ROLES = [
  ['toredis', 'Numbers messages and appends the sequenced log'],
  ['tomongo', 'Writes the sequenced log into history'],
  ['topush', 'Hands events to devices'],
];

export class PipelineView {
  constructor({ token }) {
    this.token = token;
    this.samples = [];
    this.#build();
  }

  #build() {
    this.trouble = h('p', { class: 'fault', role: 'alert' });
    this.asOf = h('p', { class: 'as-of' });
    this.summary = h('p', { class: 'visually-hidden', role: 'status' });
    this.tiles = {};
    this.every = h('input', { type: 'checkbox', onchange: () => this.samples.length && this.#lag(this.samples.at(-1)) });
    const tile = (key, word, words) => {
      const value = h('span', { class: 'value', 'data-tile': key }, NONE);
      const more = h('span', { class: 'more' });
      this.tiles[key] = { value, more };
      return h('div', {}, h('dt', {}, tip(word, words)), h('dd', {}, value, more));
    };
    const body = (key) => (this[key] = h('tbody'));
    this.node = h('section', { 'aria-label': 'Pipeline' }, this.trouble, this.asOf, this.summary,
      h('dl', { class: 'tiles' },
        tile('in', 'Messages in', 'Records that toredis handled in a second, over the last ten seconds.'),
        tile('lag', 'Worst lag', 'The age of the oldest record that a worker has not handled, over all partitions.'),
        tile('flush', 'Last flush', 'How long ago the history writer last wrote the read watermarks that it holds back, to write many of them at once.'),
        tile('dead', 'Dead letters', 'Records that could not be accepted and were set aside with their cause. “tidemark dlq” lists them.'),
        tile('anomalies', 'isEnd anomalies', 'Pages of a pull that should be rare: empty and yet not the end, the same range again and again, or a row that is nowhere.'),
        tile('connections', 'Connections', 'Devices that are connected to gateways now.')),
      this.#table('Stages', 'stages', ['Stage', 'State', ['Partitions', 'n'], ['Records/s', 'n'], 'Last two minutes', ['Time of a batch', 'n'], ['Retries', 'n']], body),
      this.#table('Lag by partition', 'lag', ['Group', 'Topic', ['Partition', 'n'], ['Records', 'n'], ['Oldest', 'n'], 'Of the retention'], body,
        h('label', { class: 'check' }, this.every, 'also partitions where nothing waits')),
      this.#table('Processes', 'processes', ['Process', 'Part', 'State'], body),
      this.#table('Topics', 'topics', ['Topic', ['Appended', 'n'], ['Records/s', 'n'], ['Bytes/s', 'n']], body),
      h('div', { class: 'columns' },
        this.#table('Dead letters by cause', 'dead', ['Topic', 'Reason', ['Count', 'n']], body),
        this.#table('isEnd anomalies by kind', 'anomalies', ['Kind', ['Count', 'n']], body),
        this.#table('Calls of the sync API', 'calls', ['Method', 'Code', ['Count', 'n']], body)));
  }

  #table(title, key, heads, body, more = null) {
    const id = 'table-' + key;
    return h('div', { class: 'card' }, h('h2', { id }, title), more,
      h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-labelledby': id },
        h('table', { 'aria-labelledby': id }, h('thead', {}, h('tr', {}, heads.map((x) => (Array.isArray(x) ? h('th', { scope: 'col', class: 'number' }, x[0]) : h('th', { scope: 'col' }, x))))), body(key))));
  }

  start() {
    if (this.timer) return;
    const again = async () => {
      await this.#ask();
      if (this.timer) this.timer = setTimeout(again, EVERY);
    };
    this.timer = setTimeout(again, 0);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  async #ask() {
    const token = this.token();
    let fault = '';
    try {
      const res = await fetch('pipeline.json', { headers: token ? { authorization: 'Bearer ' + token } : {}, cache: 'no-store', signal: AbortSignal.timeout(10_000) });
      const body = await res.json();
      if (res.ok) {
        this.samples.push(body);
        if (this.samples.length > SAMPLES) this.samples.shift();
        this.#draw(body);
      } else if (res.status === 401) fault = token ? `The token is not taken: ${body.error}.` : 'This view is for administrators. Enter a token above.';
      else if (res.status === 403) fault = 'This view is for administrators, and the token is no administrator’s.';
      else fault = body.error ?? `The server answered ${res.status}.`;
    } catch {
      const last = this.samples.at(-1);
      fault = 'The process that serves this page cannot be reached. ' + (last ? `What stands below is from ${clock(last.nowMs)}.` : '') + ' Trying again.';
    }
    if (this.trouble.textContent !== fault) set(this.trouble, fault);
    this.node.classList.toggle('stale', fault !== '');
  }

  // #rate gives how much a counter grew in a second, over the last seconds; null
  // when nothing can be said.
  #rate(read, over = 10_000) {
    const now = this.samples.at(-1);
    const then = this.samples.find((x) => now.nowMs - x.nowMs <= over);
    const [a, b] = [then && read(then), read(now)];
    if (!then || then === now || a === undefined || b === undefined) return null;
    // A process that started again counts from 0.
    return Math.max(0, b - a) / ((now.nowMs - then.nowMs) / 1000);
  }

  #tile(key, value, cls = '', more = '') {
    set(this.tiles[key].value, value);
    this.tiles[key].value.className = 'value ' + (value === NONE ? 'none' : cls);
    set(this.tiles[key].more, more);
  }

  #draw(p) {
    set(this.asOf, `${plural(p.processes.length, 'process').replace('processs', 'processes')} asked at ${clock(p.nowMs)}`);
    const rate = this.#rate(recordsOf('toredis'));
    this.#tile('in', rate === null ? (stageOf(p, 'toredis') ? '…' : NONE) : decimal(rate) + '/s');
    const worst = p.lag.reduce((a, b) => (b.seconds > (a?.seconds ?? -1) ? b : a), null);
    const waiting = p.lag.reduce((n, l) => n + l.records, 0);
    this.#tile('lag', worst ? age(worst.seconds) : NONE, worst?.seconds > 60 ? 'bad' : worst?.seconds > 5 ? 'warn' : 'good', worst ? plural(waiting, 'record') + ' waiting' : '');
    this.#tile('flush', p.flush ? (p.flush.lastMs ? age(Math.max(0, p.nowMs - p.flush.lastMs) / 1000) + ' ago' : 'not yet') : NONE, '',
      p.flush ? `${count(p.flush.pending)} held back, ${count(p.flush.advances)} marks in ${count(p.flush.members)} writes` : '');
    this.#tile('dead', p.deadLetters ? count(p.deadLetters.total) : NONE, p.deadLetters?.total > 0 ? 'warn' : 'good', p.deadLetters ? 'since the start' : '');
    this.#tile('anomalies', p.anomalies ? count(p.anomalies.total) : NONE, p.anomalies?.total > 0 ? 'warn' : 'good', p.anomalies ? 'since the start' : '');
    this.#tile('connections', p.connections === null ? NONE : count(p.connections));
    this.#stages(p);
    this.#lag(p);
    this.#processes(p);
    fillRows(this.topics, p.topics.map((t) => [t.name, num(count(t.records)), num(perSecond(this.#rate((x) => x.topics.find((y) => y.name === t.name)?.records))), num(perSecond(this.#rate((x) => x.topics.find((y) => y.name === t.name)?.bytes)))]), 4, 'No process that was asked appends to a topic.');
    fillRows(this.dead, (p.deadLetters?.by ?? []).map((k) => [...k.labels, num(count(k.count))]), 3, p.deadLetters ? 'None since the start.' : 'No data: no process that was asked runs a worker.');
    fillRows(this.anomalies, (p.anomalies?.by ?? []).map((k) => [...k.labels, num(count(k.count))]), 2, p.anomalies ? 'None since the start.' : 'No data: no process that was asked serves the sync API.');
    fillRows(this.calls, (p.calls?.by ?? []).map((k) => [...k.labels, num(count(k.count))]), 3, p.calls ? 'None since the start.' : 'No data: no process that was asked serves the sync API.');
    this.#speak(p);
  }

  #stages(p) {
    const names = [...ROLES.map(([r]) => r), ...p.stages.filter((x) => !ROLES.some(([r]) => roleOf(x.name) === r)).map((x) => x.name)];
    fillRows(this.stages, names.map((name) => {
      const what = ROLES.find(([r]) => r === name)?.[1];
      const head = h('span', { class: 'named' }, h('b', {}, name), what ? h('small', {}, what) : null);
      const stage = stageOf(p, name);
      if (!stage) return [head, badge('off', 'Not seen', 'no process that was asked runs it'), num('–'), num('–'), '', num('–'), num('–')];
      const rates = this.#series(recordsOf(name));
      const [time, handled] = [this.#rate((x) => stageOf(x, name)?.handleSeconds), this.#rate((x) => stageOf(x, name)?.handled)];
      const state = stage.stuck.length > 0
        ? badge('bad', 'Stuck', stage.stuck.map((x) => `partition ${x.partition} for ${age(x.seconds)}: ${x.reason}`).join('; '))
        : stage.partitions === 0 ? badge('warn', 'Idle', 'no partition is claimed') : badge('good', 'Running');
      return [head, state, num(count(stage.partitions)), num(perSecond(this.#rate(recordsOf(name)))), spark(rates), num(handled > 0 ? decimal((1000 * time) / handled) + ' ms' : '–'),
        num(count(stage.retries))];
    }), 7, '');
  }

  // #series gives the rate between each two answers.
  #series(read) {
    const out = [];
    for (let i = 1; i < this.samples.length; i++) {
      const [a, b] = [this.samples[i - 1], this.samples[i]];
      const [from, to] = [read(a), read(b)];
      out.push(from === undefined || to === undefined ? null : Math.max(0, to - from) / ((b.nowMs - a.nowMs) / 1000));
    }
    return out;
  }

  #lag(p) {
    const rows = [];
    const cells = (first, l) => [...first, num(count(l.records)), num(l.records > 0 ? age(l.seconds) : '–', l.seconds > 60 ? 'bad' : ''),
      h('span', { class: 'used' }, meter(l.retention), ' ', l.retention > 0 && l.retention < 0.0001 ? '< 0.01 %' : `${decimal(100 * l.retention)} %`, l.lost > 0 ? h('b', { class: 'bad' }, ` ${count(l.lost)} lost`) : null)];
    for (const [, of] of Map.groupBy(p.lag, (l) => l.group + ' ' + l.topic)) {
      const all = of.reduce((a, l) => ({
        records: a.records + l.records, seconds: Math.max(a.seconds, l.seconds), retention: Math.max(a.retention, l.retention), lost: a.lost + l.lost,
      }), { records: 0, seconds: 0, retention: 0, lost: 0 });
      rows.push(cells([h('b', {}, of[0].group), of[0].topic, num(`all ${of.length}`)], all));
      for (const l of of) if (this.every.checked || l.records > 0 || l.lost > 0) rows.push(cells(['', '', num(l.partition)], l));
    }
    for (const [role] of ROLES) {
      if (!p.lag.some((l) => roleOf(l.group) === role)) rows.push([h('b', {}, role), { value: 'no data: no process that was asked looks at it', cls: 'none' }, '', '', '', '']);
    }
    fillRows(this.lag, rows, 6, '');
  }

  #processes(p) {
    const rows = [];
    for (const x of p.processes) {
      if (x.error) rows.push([h('b', {}, x.name), '', badge('bad', 'Not reached', x.error)]);
      x.parts.forEach((part, i) => rows.push([i === 0 && !x.error ? h('b', {}, x.name) : '', part.name, part.why ? badge('bad', 'Not ready', part.why) : badge('good', 'Ready')]));
      if (x.parts.length === 0 && !x.error) rows.push([h('b', {}, x.name), '', badge(x.ready ? 'good' : 'bad', x.ready ? 'Ready' : 'Not ready')]);
    }
    fillRows(this.processes, rows, 3, '');
  }

  // #speak tells who does not look when something stopped or works again.
  #speak(p) {
    const bad = [...p.processes.filter((x) => !x.ready).map((x) => x.name + (x.error ? ' is not reached' : ' is not ready')), ...p.stages.filter((x) => x.stuck.length > 0).map((x) => x.name + ' is stuck')];
    set(this.summary, bad.length ? bad.join(', ') : 'All processes are ready.');
    show(this.summary, true);
  }
}

const roleOf = (stage) => ROLES.find(([r]) => stage.includes(r))?.[0] ?? stage;
const stageOf = (p, name) => p.stages.find((x) => roleOf(x.name) === name);
const recordsOf = (name) => (p) => stageOf(p, name)?.records;
const perSecond = (n) => (n === null ? '…' : decimal(n));
const num = (value, cls = '') => ({ value, cls: 'number ' + cls });

function badge(cls, words, more = '') {
  return h('span', { class: 'state' }, h('span', { class: 'badge ' + cls }, words), more ? h('span', { class: 'more' }, ' ' + more) : null);
}

function meter(part) {
  const w = Math.min(1, Math.max(0, part)) * 60;
  return s('svg', { class: 'meter', width: 60, height: 8, 'aria-hidden': 'true' }, s('rect', { class: 'rail', width: 60, height: 8, rx: 4 }), s('rect', { class: part > 0.5 ? 'bad' : 'fill', width: Math.max(part > 0 ? 3 : 0, w), height: 8, rx: 4 }));
}

function spark(values) {
  const [w, hgt] = [120, 24];
  const most = Math.max(1e-9, ...values.filter((v) => v !== null));
  const step = w / (SAMPLES - 1);
  let d = '';
  let pen = 'M';
  values.forEach((v, i) => {
    if (v === null) { pen = 'M'; return; }
    d += `${pen}${(w - (values.length - 1 - i) * step).toFixed(1)} ${(hgt - 2 - (v / most) * (hgt - 4)).toFixed(1)}`;
    pen = 'L';
  });
  if (!d.includes('L')) d = '';
  return s('svg', { class: 'spark', width: w, height: hgt, viewBox: `0 0 ${w} ${hgt}`, role: 'img', 'aria-label': values.length ? `at most ${decimal(most < 1e-6 ? 0 : most)} a second` : 'nothing yet' }, d ? s('path', { d }) : null);
}

// fillRows shows rows, or one that says why there are none. Rows that did not
// change stay as they are.
function fillRows(body, rows, columns, none) {
  const made = rows.map((cells) => h('tr', {}, cells.map((c) => {
    if (c !== null && typeof c === 'object' && !(c instanceof Node)) return h('td', { class: c.cls.trim() }, c.value);
    return h('td', {}, c);
  })));
  if (made.length === 0) made.push(h('tr', {}, h('td', { class: 'none', colspan: columns }, none)));
  made.forEach((tr, i) => {
    const old = body.children[i];
    if (!old) body.append(tr);
    else if (!old.isEqualNode(tr)) old.replaceWith(tr);
  });
  while (body.children.length > made.length) body.lastChild.remove();
}
