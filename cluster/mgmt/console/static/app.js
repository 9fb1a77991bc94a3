// The page: a form for logging in, the frame with the menu, and the view that the address names.

import { get, loggedIn, logIn, logOut, path } from './client.js';
import { button, fill, h, link } from './dom.js';
import { field, input, View } from './view.js';
import { channel, channels, connection, connections } from './connections.js';
import { consumers } from './consumers.js';
import { exchange, exchanges } from './exchanges.js';
import { features } from './features.js';
import { nodes } from './nodes.js';
import { overview } from './overview.js';
import { policies } from './policies.js';
import { queues } from './queues.js';
import { queue } from './queue.js';
import { time } from './time.js';
import { definitions, user, users } from './users.js';
import { vhost, vhosts } from './vhosts.js';

// pages are the views by the first name in the address. Those with tags are in the menu for users
// with one of them, and for administrators.
const pages = {
  overview: { show: overview, title: 'Overview' },
  time: { show: time, title: 'Time' },
  queues: { show: queues, title: 'Queues' },
  queue: { show: queue, under: 'queues' },
  consumers: { show: consumers, title: 'Consumers' },
  connections: { show: connections, title: 'Connections' },
  connection: { show: connection, under: 'connections' },
  channels: { show: channels, title: 'Channels' },
  channel: { show: channel, under: 'channels' },
  exchanges: { show: exchanges, title: 'Exchanges' },
  exchange: { show: exchange, under: 'exchanges' },
  policies: { show: policies, title: 'Policies' },
  nodes: { show: nodes, title: 'Nodes', tags: ['monitoring'] },
  features: { show: features, title: 'Features', tags: ['monitoring'] },
  vhosts: { show: vhosts, title: 'Virtual hosts' },
  vhost: { show: vhost, under: 'vhosts' },
  users: { show: users, title: 'Users', tags: [] },
  user: { show: user, under: 'users' },
  definitions: { show: definitions, title: 'Definitions', tags: [] },
};

let view;

function loginPage(reason) {
  const problem = h('p', { class: 'notice bad', role: 'alert' }, reason);
  problem.hidden = !reason;
  const name = input('user', { required: true, autocomplete: 'username' });
  const password = input('password', { type: 'password', autocomplete: 'current-password' });
  const enter = h('button', { type: 'submit', class: 'primary' }, 'Log in');
  const form = h('form', { class: 'login', 'aria-label': 'Log in', on: { submit } }, h('h1', null, 'quorate'), problem, field('User', name), field('Password', password), enter);
  async function submit(event) {
    event.preventDefault();
    enter.disabled = true;
    try {
      if (name.value.includes(':')) throw new Error('Names with a colon cannot be used over HTTP.');
      frame(await logIn(name.value, password.value));
    } catch (failure) {
      problem.hidden = false;
      fill(problem, failure.error === 'not_authorized' ? 'The user or the password is wrong.' : failure.message);
      password.value = '';
      (name.value === '' ? name : password).focus();
    } finally {
      enter.disabled = false;
    }
  }
  document.title = 'Log in – quorate';
  document.body.className = '';
  document.body.replaceChildren(h('main', { class: 'alone' }, form));
  name.focus();
}

// frame shows the menu, and the view that the address names.
function frame(user) {
  const main = h('main', { id: 'main' });
  const menu = h('ul');
  const cluster = h('span', { class: 'cluster' });
  document.body.replaceChildren(
    h('a', { class: 'skip', href: '#main', on: { click: (e) => { e.preventDefault(); view?.heading?.focus(); } } }, 'Skip to the content'),
    h('header', null, h('strong', null, 'quorate'), cluster, h('span', { class: 'who' }, user.name, button('Log out', leave))),
    h('nav', { 'aria-label': 'Pages' }, menu), main);
  document.body.className = 'framed';

  let first = true;
  function route() {
    view?.end();
    const [name, ...names] = decode(location.hash);
    const page = Object.hasOwn(pages, name) ? pages[name] : pages.overview;
    view = new View(main, user);
    fill(menu, Object.entries(pages).filter(([, p]) => p.title && (!p.tags || view.may(...p.tags))).map(([key, p]) => {
      const item = link(`#/${key}`, p.title);
      if (p === page || page.under === key) item.setAttribute('aria-current', 'page');
      return h('li', null, item);
    }));
    try {
      page.show(view, ...names);
    } catch (failure) {
      if (!view.notices.isConnected) view.show('Not found');
      view.say(failure.message, 'bad');
    }
    if (!first) view.heading?.focus();
    first = false;
    scrollTo(0, 0);
  }
  window.onhashchange = route;
  route();
  view.settled().then(() => get(path('overview'), { columns: 'cluster_name' })).then((o) => fill(cluster, `${o.cluster_name}, node ${o.node}, version ${o.product_version}`), () => {});
}

// decode reads the names in an address within the page.
function decode(hash) {
  try {
    return hash.replace(/^#\/?|\?.*/g, '').split('/').map(decodeURIComponent);
  } catch {
    return [''];
  }
}

function leave(reason) {
  logOut();
  view?.end();
  window.onhashchange = null;
  loginPage(typeof reason === 'string' ? reason : '');
}

addEventListener('quorate-logout', () => leave('The node does not accept the login any more.'));

if (loggedIn()) {
  get(path('whoami')).then(frame, (failure) => (failure.status === 401 ? leave('') : unreachable(failure)));
} else {
  loginPage('');
}

// unreachable says why nothing can be shown, and tries again.
function unreachable(failure) {
  document.body.replaceChildren(h('main', { class: 'alone' }, h('h1', null, 'quorate'), h('p', { class: 'notice bad', role: 'alert' }, failure.message),
    button('Try again', () => location.reload()), button('Log out', leave)));
}
