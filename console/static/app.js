// Puts the page together: which view is shown, the theme, the administrator's
// token, and what is remembered.

import { Chat, faultOf } from './chat.js';
import { h, newId, set, show, stored } from './dom.js';
import { PipelineView } from './pipeline.js';

const theme = stored('localStorage', 'theme');
const last = stored('localStorage', 'chat');
const adminToken = stored('sessionStorage', 'token');

let token = adminToken.get() ?? '';

const $ = (id) => document.getElementById(id);

// Auto follows the system; a click goes on to light and to dark.
function themeButton() {
  const button = $('theme');
  const names = { '': 'Auto', light: 'Light', dark: 'Dark' };
  const next = { '': 'light', light: 'dark', dark: '' };
  const now = () => document.documentElement.dataset.theme ?? '';
  const draw = () => set(button, 'Theme: ' + names[now()]);
  button.addEventListener('click', () => {
    const to = next[now()];
    if (to) document.documentElement.dataset.theme = to;
    else delete document.documentElement.dataset.theme;
    theme.set(to);
    draw();
  });
  draw();
}

function tokenForm(about, changed) {
  const id = newId('token');
  const input = h('input', { id, type: 'password', autocomplete: 'off', spellcheck: 'false', value: token });
  const told = h('span', { role: 'status', class: 'more' });
  const node = h('details', { class: 'token card', open: !token }, h('summary', {}, 'Administrator’s token'),
    h('form', { onsubmit: (e) => {
      e.preventDefault();
      token = input.value.trim();
      adminToken.set(token);
      set(told, token ? 'In use.' : 'None is used.');
      changed();
    } },
    h('p', {}, 'Callers are asked who they are. Joins, kicks and the pipeline take an administrator’s token: ', h('code', {}, 'tidemark token --user ops --admin'), '. It is kept in this tab only.'),
    h('label', { for: id }, 'Token'), h('span', { class: 'joined' }, input, h('button', { type: 'submit' }, 'Use')), told));
  show(node, about.auth);
  return node;
}

const params = () => new URLSearchParams(location.hash.slice(1));

async function main() {
  themeButton();
  let about;
  try {
    const res = await fetch('about.json', { cache: 'no-store' });
    about = await res.json();
  } catch {
    set($('loading'), 'The server cannot be reached. Reload the page when it is back.');
    return;
  }
  const chat = new Chat({ about, token: () => token, moved: remember });
  const pipeline = new PipelineView({ token: () => token });
  $('loading').remove();
  $('main').append(tokenForm(about, () => chat.authorized()), chat.node, pipeline.node);

  function view() {
    return params().get('view') === 'pipeline' ? 'pipeline' : 'chat';
  }
  function remember() {
    if (!started) return;
    const p = new URLSearchParams({ conversation: chat.conversation, users: chat.panes.map((x) => x.user).join(',') });
    last.set(p.toString());
    if (view() === 'pipeline') p.set('view', 'pipeline');
    history.replaceState(null, '', '#' + p.toString().replaceAll('%3A', ':').replaceAll('%2C', ','));
    links(p);
  }
  function links(p) {
    p.delete('view');
    $('to-chat').href = '#' + p;
    p.set('view', 'pipeline');
    $('to-pipeline').href = '#' + p;
  }
  function turn() {
    const v = view();
    show(chat.node, v === 'chat');
    show(pipeline.node, v === 'pipeline');
    for (const x of ['chat', 'pipeline']) {
      if (x === v) $('to-' + x).setAttribute('aria-current', 'page');
      else $('to-' + x).removeAttribute('aria-current');
    }
    document.title = (v === 'chat' ? 'Chat' : 'Pipeline') + ' · Tidemark console';
    if (v === 'pipeline') pipeline.start();
    else pipeline.stop();
    for (const p of chat.panes) p.draw();
  }

  let started = false;
  const given = params();
  const before = new URLSearchParams(last.get() ?? '');
  const conversation = [given.get('conversation'), before.get('conversation'), 'group:lobby'].find((c) => c && !faultOf(c));
  const users = (given.get('users') ?? before.get('users') ?? 'alice,bob').split(',').filter(Boolean);
  turn();
  chat.show(conversation, users);
  started = true;
  remember();
  window.addEventListener('hashchange', () => {
    const p = params();
    if (p.get('conversation') && p.get('conversation') !== chat.conversation) chat.open(p.get('conversation'));
    turn();
  });
  document.addEventListener('visibilitychange', () => {
    if (view() !== 'pipeline') return;
    if (document.hidden) pipeline.stop();
    else pipeline.start();
  });
}

main();
