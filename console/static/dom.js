// Small helpers to build a page without markup in strings.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'value') node.value = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

let ids = 0;
export const newId = (what) => `${what}-${++ids}`;

// set changes a text only when it is another one, so that nothing flickers and
// a live region speaks once.
export function set(node, text) {
  if (node.textContent !== String(text)) node.textContent = text;
}

export const show = (node, yes) => { node.hidden = !yes; };

// say puts a text into a live region, also when it is the one that stands there.
export function say(node, text) {
  node.textContent = '';
  requestAnimationFrame(() => { node.textContent = text; });
}

// tip makes a button that explains a word: on hover, on focus, and on a click
// where there is neither. Escape puts it away.
export function tip(word, text) {
  const id = newId('tip');
  const box = h('span', { id, role: 'tooltip', class: 'tip', hidden: true }, text);
  const open = (yes) => () => { box.hidden = !yes; };
  const button = h('button', {
    type: 'button', class: 'term', 'aria-describedby': id,
    onfocus: open(true), onblur: open(false), onmouseenter: open(true), onclick: open(true),
    onkeydown: (e) => { if (e.key === 'Escape' && !box.hidden) { box.hidden = true; e.stopPropagation(); } },
  }, word);
  // The pointer may go from the word to its explanation.
  const both = h('span', { class: 'tipped', onmouseleave: () => { if (document.activeElement !== button) box.hidden = true; } }, button, box);
  return both;
}

const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];

// age gives seconds in words: 0 s, 12 s, 3 min, 2 h.
export function age(seconds) {
  if (seconds < 1) return seconds > 0 ? '< 1 s' : '0 s';
  const [size, unit] = units.find(([n]) => seconds >= n);
  return `${Math.floor(seconds / size)} ${unit}`;
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });

export const count = (n) => (n < 100_000 ? whole.format(n) : compact.format(n));
export const decimal = (n) => (n >= 1000 ? compact.format(n) : short.format(n));

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`;

export const clock = (t) => new Date(t).toLocaleTimeString('en-GB');

// stored keeps a value in a storage that may not be there.
export function stored(area, key) {
  return {
    get() { try { return window[area].getItem('tidemark.' + key); } catch { return null; } },
    set(v) { try { if (v) window[area].setItem('tidemark.' + key, v); else window[area].removeItem('tidemark.' + key); } catch { /* not kept */ } },
  };
}
